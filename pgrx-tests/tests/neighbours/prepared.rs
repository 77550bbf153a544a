//! Transactions in two phases: their ends concern only the queues that they changed.

use super::bystander::{STATS, reads, server};
use super::*;
use postgres::NoTls;
use queue_ext_tests::counters_agree;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn unrelated_prepared_transactions_cost_nothing() {
    let settings =
        Settings { preload: true, extra: "max_prepared_transactions = 10\nqueue.sweep_interval = '1h'" };
    let mut cluster = Cluster::start_with("neighbours-prepared", &settings);
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext; SELECT queue.create('b'); CREATE ROLE nobody LOGIN");
    cluster.await_worker("postgres");
    run(&mut client, "SELECT count(queue.push('b')) FROM generate_series(1, 5000)");
    let mut nobody = cluster.config("postgres").user("nobody").connect(NoTls).expect("connect");
    eventually("stats reads counters", SOON, || reads(&mut client, STATS) < 1000);
    for end in ["ROLLBACK", "COMMIT"] {
        run(&mut nobody, "BEGIN; PREPARE TRANSACTION 'n'");
        run(&mut nobody, &format!("{end} PREPARED 'n'"));
        let after = reads(&mut client, STATS);
        assert!(after < 1000, "{after} tasks read after {end} PREPARED");
    }
    // One that stays prepared is remembered, however many others come and go meanwhile.
    run(&mut nobody, "BEGIN; PREPARE TRANSACTION 'kept'");
    for _ in 0..300 {
        run(&mut nobody, "BEGIN; PREPARE TRANSACTION 'n'");
        run(&mut nobody, "ROLLBACK PREPARED 'n'");
    }
    run(&mut nobody, "ROLLBACK PREPARED 'kept'");
    let after = reads(&mut client, STATS);
    assert!(after < 1000, "{after} tasks read after the one that was kept has ended");
    // Another one of the same name counts.
    run(&mut nobody, "BEGIN; PREPARE TRANSACTION 'n'");
    nobody.batch_execute("BEGIN; ROLLBACK PREPARED 'n'").expect_err("in a transaction");
    run(&mut nobody, "ROLLBACK");
    run(&mut nobody, "ROLLBACK PREPARED 'n'");
    assert!(reads(&mut client, STATS) < 1000);
    let ready = "SELECT queued FROM queue.stats WHERE queue = 'b'";
    let before = number(&mut client, ready);
    run(&mut client, "BEGIN; SELECT queue.push('b', priority => -1); PREPARE TRANSACTION 'n'");
    run(&mut client, "COMMIT PREPARED 'n'");
    assert_eq!(number(&mut client, ready), before + 1);
    assert_eq!(number(&mut client, "SELECT priority::bigint FROM queue.claim('1 hour', 'b')"), -1);
}

#[test]
fn the_end_of_a_prepared_transaction_has_only_its_own_queues_read_again() {
    let (_cluster, mut client, mut b) = server("prepared-changes");
    without_worker(&mut client);
    run(&mut client, "SELECT count(queue.push('a')) FROM generate_series(1, 20)");
    for change in [
        "SELECT queue.push('a')",
        "SELECT queue.claim('1 hour', 'a')",
        "SELECT queue.complete(id, token) FROM queue.claim('1 hour', 'a')",
        "INSERT INTO queue.tasks (queue, run_at) SELECT 'a', now() + n * interval '1 hour' FROM generate_series(1, 600) AS n",
        "SELECT count(queue.push('m' || 1 + n % 10)) FROM generate_series(1, 2200) AS n",
        "SELECT queue.push('m' || n, group_key => 'g') FROM generate_series(1, 10) AS n",
    ] {
        for end in ["ROLLBACK", "COMMIT"] {
            run(&mut client, &format!("BEGIN; {change}; PREPARE TRANSACTION 'p'"));
            run(&mut client, &format!("{end} PREPARED 'p'"));
            b.is_left_alone(&mut client, &format!("{end} PREPARED of {change}"));
            counters_agree(&mut client);
        }
    }
    // Of 21 tasks a claim and a completion were committed.
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue.claim('1 hour', 'a', 100)"), 19);
}

#[test]
fn a_name_that_is_used_again_at_once_hides_no_task() {
    let (cluster, mut client, mut b) = server("prepared-names");
    let claim = "SELECT count(*) FROM queue.claim('1 hour', 'a', 1000)";
    assert_eq!(number(&mut client, claim), 0);
    let (begun, over) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (mut other, over) = (cluster.connect(), &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) && begun.elapsed() < 4 * SOON {
                    // Mostly there is none, or the other session ends it.
                    drop(other.batch_execute("COMMIT PREPARED 'n'"));
                }
            });
        }
        let mut prepared = 0;
        while prepared < 300 && begun.elapsed() < 3 * SOON {
            // Refused while the name is in use.
            let prepare = "BEGIN; SELECT queue.push('a'); PREPARE TRANSACTION 'n'";
            prepared += i32::from(client.batch_execute(prepare).is_ok());
        }
        eventually("the last one has ended", SOON, || {
            number(&mut client, "SELECT count(*) FROM pg_prepared_xacts") == 0
        });
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(number(&mut client, claim), 300);
    b.is_left_alone(&mut client, "prepared transactions of one name");
}
