//! The background worker runs unattended as a superuser. Nothing that is stored may make it run code, or disturb it.

use std::time::Instant;

use super::{attempt, cluster, column, login, number, refusal, run};
use postgres::Client;
use queue_ext_tests::{Cluster, SOON, eventually};

/// How many rounds the worker has made.
fn rounds(admin: &mut Client) -> i64 {
    number(admin, "SELECT (queue.engine_stats() -> 'worker' ->> 'rounds')::bigint")
}

/// The worker does its work, and is the one that it was.
pub fn works(cluster: &mut Cluster, admin: &mut Client, worker: i32) {
    run(admin, "SELECT queue.resume('default'); SELECT queue.push('default', key => 'probe')");
    let reaped = "SELECT (queue.engine_stats() -> 'worker' ->> 'leases_reaped')::bigint";
    let before = number(admin, reaped);
    run(admin, "SELECT queue.claim('10 ms', 'default', 100)");
    eventually("the worker ends a lease", SOON, || number(admin, reaped) > before);
    assert_eq!(cluster.await_worker("postgres"), worker, "the worker was never restarted");
}

/// Stores everything that no constraint refuses.
fn store(admin: &mut Client, statements: &str) {
    if let Err(error) = admin.batch_execute(statements) {
        assert_eq!(refusal(&error).0, "23514", "{statements}: {error:?}");
    }
}

#[test]
fn the_worker_evaluates_nothing_that_is_stored() {
    let mut cluster = cluster("security-stored", "queue.sweep_interval = 1");
    let worker = cluster.await_worker("postgres");
    let mut admin = cluster.connect();
    run(
        &mut admin,
        "CREATE SEQUENCE sprung; GRANT ALL ON SEQUENCE sprung TO PUBLIC; SELECT queue.create('mail')",
    );
    run(
        &mut admin,
        "SELECT queue.grant_operator('operator', 'mail'), queue.grant_producer('producer', 'mail')",
    );
    run(&mut admin, "SELECT queue.grant_worker('worker', 'mail')");
    let sql = "'); SELECT nextval($$public.sprung$$) --";
    let quoted = sql.replace('\'', "''");
    // Past the checks of the functions, into the tables, which only the owner can do.
    for (number, (column, value)) in [
        ("cron", format!("'{quoted}'")),
        ("timezone", format!("'{quoted}'")),
        ("timezone", "'Nowhere+3'".into()),
        ("options", "'{\"priority\": \"x\"}'".into()),
        ("options", format!("jsonb_build_object('key', '{quoted}', 'group_key', '{quoted}')")),
        ("options", "'[1]'".into()),
        ("next_run_at", "'-infinity'".into()),
        ("next_run_at", "'4713-01-01 BC'".into()),
        ("last_error", format!("'{quoted}'")),
        ("payload", format!("to_jsonb('{quoted}'::text)")),
    ]
    .into_iter()
    .enumerate()
    {
        store(
            &mut admin,
            &format!(
                "SELECT queue.schedule('s{number} {quoted}', '* * * * * *', 'mail');
                 UPDATE queue.schedules SET {column} = {value} WHERE name = 's{number} {quoted}'"
            ),
        );
    }
    store(
        &mut admin,
        "UPDATE queue.queues SET lease = '178000000 years', timeout = '178000000 years', backoff_base = '178000000 years', backoff_max = '178000000 years',
                                 key_ttl = '178000000 years', ageing = '1 microsecond'",
    );
    let mut producer = login(&cluster, "producer");
    run(
        &mut producer,
        &format!(
            "INSERT INTO queue.tasks (queue, priority, key, group_key)
             VALUES ('mail', -1, '{quoted}', '{quoted}'), ('mail', -1, 'b', 'b'), ('mail', -1, 'c', 'c')"
        ),
    );
    // Values for which an INSERT is refused.
    store(
        &mut admin,
        &format!(
            "UPDATE queue.tasks SET backoff = CASE key WHEN 'b' THEN '[1]' WHEN 'c' THEN '{{\"max\": 1}}' ELSE '{{\"base\": \"{quoted}\"}}' END::jsonb"
        ),
    );
    store(&mut admin, "UPDATE queue.tasks SET run_at = '-infinity' WHERE group_key = 'b'");
    let mut client = login(&cluster, "worker");
    run(&mut client, &format!("SELECT queue.claim('10 ms', 'mail', 100, '{quoted}')"));
    run(
        &mut admin,
        "UPDATE queue.tasks SET errors = '{\"a\": 1}', progress = '[]', lease_until = now() WHERE state = 'running'",
    );
    eventually("each lease is ended", SOON, || {
        number(&mut admin, "SELECT count(*) FROM queue.tasks WHERE state = 'running' AND lease_until < now()")
            == 0
    });
    eventually("schedules that cannot be run say why", SOON, || {
        number(&mut admin, "SELECT count(*) FROM queue.schedules WHERE last_error IS NOT NULL") >= 2
    });
    works(&mut cluster, &mut admin, worker);
    assert_eq!(number(&mut admin, "SELECT count(*) FROM sprung WHERE is_called"), 0);
}

#[test]
fn a_view_of_an_old_partition_neither_stops_the_worker_nor_keeps_the_history() {
    let mut cluster = cluster("security-partition", "queue.sweep_interval = 1");
    let worker = cluster.await_worker("postgres");
    let mut admin = cluster.connect();
    run(&mut admin, "GRANT CREATE ON SCHEMA public TO monitor");
    run(
        &mut login(&cluster, "owner"),
        "CREATE TABLE queue.history_20200101 (LIKE queue.history_default INCLUDING ALL);
         INSERT INTO queue.history_20200101 (id, queue, state, priority, run_at, attempt, token, created_at, finished_at, payload)
         VALUES (1, 'default', 'completed', 0, now(), 1, 1, now(), '2020-01-01 12:00', '{}')",
    );
    // No right to read it is needed for that.
    run(
        &mut login(&cluster, "monitor"),
        "CREATE VIEW public.mine AS SELECT count(*) FROM queue.history_20200101",
    );
    run(
        &mut login(&cluster, "owner"),
        "ALTER TABLE queue.history ATTACH PARTITION queue.history_20200101
         FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00')",
    );
    // The worker may be at it at this moment, and have it locked.
    eventually("its rows are deleted", SOON, || {
        run(&mut admin, "CALL queue.maintain()");
        number(&mut admin, "SELECT count(*) FROM queue.history_20200101") == 0
    });
    run(&mut admin, &format!("SELECT pg_terminate_backend({worker})"));
    eventually("another worker, which begins with that", SOON, || cluster.await_worker("postgres") != worker);
    let worker = cluster.await_worker("postgres");
    works(&mut cluster, &mut admin, worker);
}

#[test]
fn forged_notifications_do_nothing() {
    let mut cluster = cluster("security-notify", "queue.sweep_interval = '1h'");
    let worker = cluster.await_worker("postgres");
    let mut admin = cluster.connect();
    run(&mut admin, "SELECT queue.push('default', delay => '1 hour')");
    let mut nobody = login(&cluster, "nobody");
    let channel = column(&mut admin, "SELECT queue.channel('default')").remove(0);
    run(&mut nobody, &format!("LISTEN {channel}"));
    let before = rounds(&mut admin);
    let started = Instant::now();
    for payload in 0..5_000 {
        // In transactions of their own, or the server would make one of them.
        run(&mut nobody, &format!("SELECT pg_notify('{channel}', '{payload}')"));
    }
    println!("5,000 notifications in {:?}", started.elapsed());
    // The rounds that it makes anyway.
    let extra = rounds(&mut admin) - before;
    assert!(extra <= 3, "{extra} rounds");
    assert_eq!(
        number(&mut admin, "SELECT (queue.engine_stats() -> 'worker' ->> 'notifications')::bigint"),
        0
    );
    works(&mut cluster, &mut admin, worker);
}

#[test]
fn only_a_superuser_can_signal_the_worker() {
    let mut cluster = cluster("security-signals", "");
    let worker = cluster.await_worker("postgres");
    let mut admin = cluster.connect();
    run(&mut admin, "GRANT pg_signal_backend TO operator");
    for role in ["nobody", "operator", "owner"] {
        let mut client = login(&cluster, role);
        for signal in ["pg_terminate_backend", "pg_cancel_backend"] {
            let code = attempt(&mut client, &format!("SELECT {signal}({worker})")).expect_err(signal).0;
            assert_eq!(code, "42501", "{role}: {signal}");
        }
    }
    works(&mut cluster, &mut admin, worker);
}
