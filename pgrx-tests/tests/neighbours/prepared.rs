//! Transactions in two phases that have nothing to do with queues.

use super::bystander::{STATS, reads};
use super::*;
use postgres::NoTls;

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
