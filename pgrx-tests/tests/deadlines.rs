//! Start deadlines: no claim starts a task after its deadline, and the background worker ends it in time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postgres::Client;
use queue_ext_tests::{
    Cluster, SOON, Settings, WOKEN, at_best, counters_agree, eventually, stalls::processor_time,
};

/// A server whose background worker looks for what nobody announced only after an hour.
fn without_sweeps(name: &str) -> (Cluster, Client) {
    let settings =
        Settings { preload: true, extra: "queue.sweep_interval = 1h\nmax_prepared_transactions = 5" };
    let mut cluster = Cluster::installed(name, &settings);
    let mut client = cluster.connect();
    cluster.await_worker("postgres");
    // The first round sweeps.
    client.batch_execute("SELECT queue.push('default', start_by => '2020-01-01')").expect("push");
    eventually("the worker works", SOON, || {
        count(&mut client, "SELECT count(*) FROM queue.dead_letters") == 1
    });
    client.batch_execute("TRUNCATE queue.dead_letters").expect("truncate");
    (cluster, client)
}

fn count(client: &mut Client, query: &str) -> i64 {
    client.query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}

const UNFINISHED: &str = "SELECT count(*) FROM queue.tasks";

#[test]
fn the_worker_ends_a_task_at_its_deadline_however_it_came() {
    let (_cluster, mut client) = without_sweeps("deadlines-worker");
    client
        .batch_execute(
            "SELECT queue.create('codes', '{\"ttl\": \"300 ms\"}'), queue.push('default', '\"first\"', priority => 9)",
        )
        .expect("set up");
    let first = count(&mut client, "SELECT id FROM queue.tasks");
    for push in [
        "SELECT queue.push('default', ttl => '300 ms')".to_owned(),
        "SELECT queue.push('default', start_by => clock_timestamp() + interval '300 ms')".to_owned(),
        "SELECT queue.push('codes')".to_owned(),
        "SELECT queue.push_many('codes', '{1, 2}')".to_owned(),
        "INSERT INTO queue.tasks (queue) VALUES ('codes')".to_owned(),
        "SELECT queue.push('default', key => 'k', ttl => '300 ms')".to_owned(),
        "SELECT queue.push('default', key => 'l'), queue.push('default', key => 'l', on_duplicate => 'replace', ttl => '300 ms')".to_owned(),
        "SELECT queue.push('default', delay => '1 hour', ttl => '300 ms')".to_owned(),
        format!("SELECT queue.push('default', after => '{{{first}}}', ttl => '300 ms')"),
        "SELECT queue.create_batch('default', ttl => '300 ms')".to_owned(),
        "SELECT queue.push('default', group_key => 'g', ttl => '300 ms'), queue.push('default', group_key => 'g', ttl => '300 ms')".to_owned(),
        // Late at its push already.
        "SELECT queue.push('default', start_by => '2020-01-01')".to_owned(),
        // Together with one that is late already.
        "BEGIN; SELECT queue.push('default', start_by => '2020-01-01'), queue.push('default', ttl => '300 ms'); COMMIT".to_owned(),
        // Committed after its deadline.
        "BEGIN; SELECT queue.push('default', ttl => '1 ms'); SELECT pg_sleep(0.05); COMMIT".to_owned(),
        // Seen after its deadline, although the worker knew of it before.
        "BEGIN; SELECT queue.push('default', ttl => '1 ms'); PREPARE TRANSACTION 'p'; SELECT pg_sleep(0.05); COMMIT PREPARED 'p'".to_owned(),
        // One that has to be started earlier comes after one with more time.
        "SELECT queue.push('default', ttl => '1 hour', key => 'm'); SELECT queue.push('default', ttl => '300 ms');
         SELECT queue.cancel('default', 'm')".to_owned(),
    ] {
        // One by one, because COMMIT PREPARED cannot be in a transaction.
        for statement in push.split(';') {
            client.batch_execute(statement).unwrap_or_else(|error| panic!("{push}: {error:?}"));
        }
        eventually(&push, WOKEN, || count(&mut client, UNFINISHED) == 1);
        let wrong = "SELECT count(*) FROM queue.dead_letters WHERE errors -> 0 ->> 'error' <> 'expired' OR failed_at < start_by";
        assert_eq!(count(&mut client, wrong), 0, "{push}");
    }
    // And it does so within milliseconds.
    let delay = at_best(Duration::from_millis(50), || {
        client
            .batch_execute("TRUNCATE queue.dead_letters; SELECT queue.push('default', ttl => '200 ms')")
            .expect("push");
        eventually("it ends", WOKEN, || count(&mut client, UNFINISHED) == 1);
        let late =
            "SELECT (extract(epoch FROM failed_at - start_by) * 1000000)::bigint FROM queue.dead_letters";
        Duration::from_micros(count(&mut client, late).unsigned_abs())
    });
    assert!(delay < Duration::from_millis(50), "{delay:?}");
    assert_eq!(count(&mut client, "SELECT id FROM queue.tasks"), first);
    counters_agree(&mut client);
}

#[test]
fn a_deadline_that_no_session_announced_is_found_by_the_sweep() {
    let (_cluster, mut client) = without_sweeps("deadlines-sweep");
    client.batch_execute("ALTER SYSTEM SET queue.sweep_interval = '1s'").expect("set");
    client.batch_execute("SELECT pg_reload_conf()").expect("reload");
    client
        .batch_execute(
            "SET session_replication_role = replica; INSERT INTO queue.tasks (queue, start_by) VALUES ('default', '2020-01-01');
             RESET session_replication_role",
        )
        .expect("insert");
    eventually("it ends", SOON, || count(&mut client, UNFINISHED) == 0);
}

/// After a restart nobody knows what a prepared transaction has changed, so its end lets the worker read all deadlines.
#[test]
fn tasks_of_a_transaction_that_was_prepared_before_a_restart_end() {
    let (mut cluster, mut client) = without_sweeps("deadlines-prepared");
    let push =
        "SELECT count(*) FROM queue.push_many('default', array_fill('1'::jsonb, '{5000}'), ttl => '1 ms')";
    for statement in ["BEGIN", push, "PREPARE TRANSACTION 'before'"] {
        client.batch_execute(statement).expect(statement);
    }
    drop(client);
    cluster.stop("fast");
    cluster.launch();
    cluster.await_worker("postgres");
    let mut client = cluster.connect();
    // The first round sweeps.
    client.batch_execute("SELECT queue.push('default', start_by => '2020-01-01')").expect("push");
    eventually("the worker works", SOON, || {
        count(&mut client, "SELECT count(*) FROM queue.dead_letters") == 1
    });
    client.batch_execute("COMMIT PREPARED 'before'").expect("commit");
    eventually("all end", SOON, || count(&mut client, UNFINISHED) == 0);
    let errors = cluster
        .log()
        .lines()
        .filter(|line| line.contains("queue_ext worker") && line.contains("ERROR"))
        .count();
    assert_eq!(errors, 0);
}

#[test]
fn a_task_that_was_locked_at_its_deadline_ends_soon_after_it_is_free() {
    let (mut cluster, mut client) = without_sweeps("deadlines-locked");
    let worker = cluster.await_worker("postgres");
    let mut other = cluster.connect();
    let late_by = |client: &mut Client, time: &str| {
        let late = format!(
            "SELECT count(*) FROM queue.tasks WHERE start_by < clock_timestamp() - interval '{time}'"
        );
        let before = count(client, "SELECT count(*) FROM queue.tasks");
        eventually("all are late", SOON, || count(client, &late) == before);
        assert_eq!(count(client, "SELECT count(*) FROM queue.claim('1 minute')"), 0);
    };
    for lock in [
        "SELECT queue.push('default', after => ARRAY(SELECT id FROM queue.tasks), ttl => '1 ms')",
        "SELECT FROM queue.tasks FOR KEY SHARE",
    ] {
        client.batch_execute("SELECT queue.push('default', ttl => '100 ms')").expect("push");
        other.batch_execute(&format!("BEGIN; {lock}")).expect(lock);
        let worked = processor_time(worker);
        late_by(&mut client, "1 second");
        // The worker does not try again and again meanwhile.
        let worked = processor_time(worker) - worked;
        assert!(worked < Duration::from_millis(500), "{worked:?}");
        other.batch_execute("COMMIT").expect("commit");
        eventually("all end", WOKEN, || count(&mut client, UNFINISHED) == 0);
    }
    // A task that is locked for a moment does not wait as long as one that has been locked for a long time.
    client.batch_execute("SELECT queue.push('default', ttl => '100 ms')").expect("push");
    other.batch_execute("BEGIN; SELECT FROM queue.tasks FOR KEY SHARE").expect("lock");
    late_by(&mut client, "7 seconds");
    let first = count(&mut client, "SELECT min(id) FROM queue.tasks");
    let mut third = cluster.connect();
    third
        .batch_execute(&format!(
            "SELECT queue.push('default', ttl => '100 ms');
             BEGIN; SELECT FROM queue.tasks WHERE id <> {first} FOR KEY SHARE"
        ))
        .expect("lock");
    late_by(&mut client, "1 ms");
    third.batch_execute("COMMIT").expect("commit");
    eventually("the second one ends", Duration::from_secs(3), || count(&mut client, UNFINISHED) == 1);
    other.batch_execute("COMMIT").expect("commit");
    eventually("all end", SOON, || count(&mut client, UNFINISHED) == 0);
    counters_agree(&mut client);
}

#[test]
fn no_claim_starts_a_task_after_its_deadline() {
    let (cluster, mut client) = without_sweeps("deadlines-claims");
    client
        .batch_execute("SELECT queue.create('sql', '{\"max_running\": 1000, \"on_expired\": \"cancel\"}')")
        .expect("create");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for queue in ["default", "default", "sql", "sql"] {
            let (cluster, done) = (&cluster, &done);
            scope.spawn(move || {
                let mut worker = cluster.connect();
                let work = format!(
                    "SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', '{queue}', 7)"
                );
                while !done.load(Ordering::Relaxed) {
                    worker.query(&work, &[]).expect("work");
                }
            });
        }
        for n in 0..400 {
            let ttl = n % 5 * 10;
            for queue in ["default", "sql"] {
                let push = format!(
                    "SELECT queue.push_many('{queue}', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, 20) AS n),
                                            ttl => '{ttl}.3 ms')"
                );
                client.batch_execute(&push).expect("push");
            }
        }
        eventually("all end", SOON, || count(&mut client, UNFINISHED) == 0);
        done.store(true, Ordering::Relaxed);
    });
    let late = "SELECT count(*) FROM queue.all_tasks WHERE claimed_at >= start_by";
    assert_eq!(count(&mut client, late), 0);
    let ended = |state: &str| format!("SELECT count(*) FROM queue.all_tasks WHERE state = '{state}'");
    let ends = ["completed", "failed", "cancelled"].map(|state| count(&mut client, &ended(state)));
    println!("completed, failed, cancelled: {ends:?}");
    assert_eq!(ends.iter().sum::<i64>(), 16_000);
    assert!(ends.iter().all(|ended| *ended > 0), "some are started in time, and some are not: {ends:?}");
    counters_agree(&mut client);
}

#[test]
fn a_backlog_of_late_tasks_ends_in_pieces_and_blocks_no_other() {
    let (_cluster, mut client) = without_sweeps("deadlines-backlog");
    // Started tasks whose deadline passes are left alone.
    client
        .batch_execute(
            "SELECT queue.push_many('default', array_fill('1'::jsonb, ARRAY[3000]), ttl => '1 hour')",
        )
        .expect("push");
    assert_eq!(count(&mut client, "SELECT count(*) FROM queue.claim('1 hour', max_tasks => 3000)"), 3000);
    client
        .batch_execute(
            "UPDATE queue.tasks SET start_by = '2020-01-01';
             SELECT queue.push_many('default', array_fill('1'::jsonb, ARRAY[5000]), priority => -1, start_by => '2021-01-01');
             SELECT queue.push('default', '\"in time\"')",
        )
        .expect("push");
    // Before them lie thousands of late tasks that may not have ended yet.
    let claimed = client.query_one("SELECT payload::text FROM queue.claim('1 hour')", &[]).expect("claim");
    assert_eq!(claimed.get::<_, &str>(0), "\"in time\"");
    eventually("the late ones end", SOON, || count(&mut client, UNFINISHED) == 3001);
    assert_eq!(count(&mut client, "SELECT count(*) FROM queue.dead_letters"), 5_000);
    counters_agree(&mut client);
}

#[test]
fn a_flood_of_late_tasks_does_not_delay_one_that_is_less_late() {
    let (cluster, mut client) = without_sweeps("deadlines-flood");
    // Started tasks with a passed deadline, which the worker reads again for each that is late.
    client
        .batch_execute(
            "SET session_replication_role = replica;
             INSERT INTO queue.tasks (queue, token, run_at, start_by)
             SELECT 'default', 1, '2100-01-01', '2021-01-01' FROM generate_series(1, 300000);
             RESET session_replication_role",
        )
        .expect("insert");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut flood = cluster.connect();
            while !done.load(Ordering::Relaxed) {
                flood.batch_execute("SELECT queue.push('default', start_by => '2020-01-01')").expect("push");
            }
        });
        client
            .batch_execute("SELECT queue.push('default', key => 'k', start_by => '2022-01-01')")
            .expect("push");
        let ended = "SELECT count(*) FROM queue.dead_letters WHERE key = 'k'";
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("the one in the middle ends", WOKEN, || count(&mut client, ended) == 1);
        }));
        done.store(true, Ordering::Relaxed);
        result.expect("it ends");
    });
}
