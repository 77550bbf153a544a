//! Notifications: hints that come soon, and seldom.

use std::time::{Duration, Instant};

use fallible_iterator::FallibleIterator;
use postgres::Client;
use queue_ext_tests::{Cluster, SOON, eventually};

fn listen(cluster: &Cluster, channel: &str) -> Client {
    let mut listener = cluster.connect();
    listener.batch_execute(&format!("LISTEN \"{channel}\"")).expect("LISTEN");
    listener
}

/// The time until the next notification, if one comes within `limit`.
fn next(listener: &mut Client, limit: Duration) -> Option<Duration> {
    let started = Instant::now();
    let notification = listener.notifications().timeout_iter(limit).next().expect("listen")?;
    assert_eq!(notification.payload(), "", "a notification carries nothing");
    Some(started.elapsed())
}

fn quiet(listener: &mut Client, what: &str) {
    assert_eq!(next(listener, Duration::from_millis(400)), None, "{what}");
}

#[test]
fn listeners_are_notified_of_claimable_tasks() {
    // No sweep may run during this test.
    let settings = queue_ext_tests::Settings {
        preload: true,
        extra: "queue.sweep_interval = 1h\nmax_prepared_transactions = 5",
    };
    let mut cluster = Cluster::installed("notify", &settings);
    let mut client = cluster.connect();
    cluster.await_worker("postgres");
    let mut listener = listen(&cluster, "queue_default");
    quiet(&mut listener, "nothing happened yet");

    client.batch_execute("SELECT queue.push('default')").expect("push");
    assert!(next(&mut listener, SOON).is_some(), "a push");
    client.batch_execute("INSERT INTO queue.tasks (queue) VALUES ('default')").expect("insert");
    assert!(next(&mut listener, SOON).is_some(), "a plain INSERT");
    client.batch_execute("BEGIN; SELECT queue.push('default'); ROLLBACK").expect("roll back");
    quiet(&mut listener, "a push that was rolled back");

    // At commit, and not before.
    client.batch_execute("BEGIN; SELECT queue.push('default')").expect("push");
    quiet(&mut listener, "a push that is not committed");
    client.batch_execute("COMMIT").expect("commit");
    assert!(next(&mut listener, SOON).is_some(), "its commit");

    let pushed = Instant::now();
    client
        .batch_execute("SELECT queue.purge('default'); SELECT queue.push('default', delay => '700 ms')")
        .expect("push");
    assert!(next(&mut listener, SOON).is_some(), "a task that came due");
    assert!(pushed.elapsed() >= Duration::from_millis(700), "not before it is due");
    // A due and a delayed task together: each is notified in its time.
    for together in [
        "INSERT INTO queue.tasks (queue, run_at) VALUES ('default', now()), ('default', now() + interval '2 seconds')",
        "SELECT queue.push('default'), queue.push('default', delay => '2 seconds')",
    ] {
        client.batch_execute(together).expect("push");
        assert!(next(&mut listener, SOON).is_some(), "the one that is due: {together}");
        assert!(next(&mut listener, SOON).is_some(), "the one for later: {together}");
    }
    // An earlier one appears while the worker sleeps for a later one.
    client.batch_execute("SELECT queue.push('default', delay => '1 hour'); SELECT queue.push('default', delay => '300 ms')").expect("push");
    assert!(next(&mut listener, SOON).is_some(), "the earlier one");

    client.batch_execute("SELECT queue.purge('default'); SELECT queue.push('default')").expect("push");
    assert!(next(&mut listener, SOON).is_some());
    client.batch_execute("SELECT queue.release(id, token) FROM queue.claim('1 minute')").expect("release");
    assert!(next(&mut listener, SOON).is_some(), "a release");
    client
        .batch_execute("SELECT queue.fail(id, token, 'x', retry_in => '100 ms') FROM queue.claim('1 minute')")
        .expect("fail");
    assert!(next(&mut listener, SOON).is_some(), "a retry that came due");
    client.batch_execute("SELECT count(*) FROM queue.claim('300 ms')").expect("claim");
    assert!(next(&mut listener, SOON).is_some(), "a lease that ran out");

    // A paused queue sends no notification until it is resumed.
    client.batch_execute("SELECT queue.pause('default'); SELECT queue.push('default')").expect("pause");
    quiet(&mut listener, "a paused queue");
    client.batch_execute("SELECT queue.resume('default')").expect("resume");
    assert!(next(&mut listener, SOON).is_some(), "the end of a pause");

    // Names of any kind and length.
    for name in ["Mixed \"Case\"".to_owned(), "ü".repeat(64)] {
        client.execute("SELECT queue.create($1)", &[&name]).expect("create");
        let channel: String = client.query_one("SELECT queue.channel($1)", &[&name]).expect("channel").get(0);
        let mut listener = listen(&cluster, &channel.replace('"', "\"\""));
        client.execute("SELECT queue.push($1)", &[&name]).expect("push");
        assert!(next(&mut listener, SOON).is_some(), "{name}");
    }

    // Pushes work with two-phase commit, and a sweep finds changes that no session announced.
    client.batch_execute("ALTER SYSTEM SET queue.sweep_interval = '1s'").expect("set");
    client.batch_execute("SELECT queue.purge('default'); SELECT pg_reload_conf()").expect("reload");
    while next(&mut listener, Duration::from_millis(1200)).is_some() {}
    client.batch_execute("BEGIN; SELECT queue.push('default'); PREPARE TRANSACTION 'p'").expect("prepare");
    while next(&mut listener, Duration::from_millis(400)).is_some() {}
    client.batch_execute("COMMIT PREPARED 'p'").expect("commit");
    assert!(next(&mut listener, SOON).is_some(), "a prepared push");
}

#[test]
fn a_thousand_pushes_cause_few_notifications_and_few_worker_rounds() {
    let cluster = Cluster::start("notify-coalesced");
    let mut client = cluster.connect();
    let mut listener = listen(&cluster, "queue_default");
    let rounds = |client: &mut Client| {
        let stats: serde_json::Value =
            client.query_one("SELECT queue.engine_stats()", &[]).expect("stats").get(0);
        stats["worker"]["rounds"].as_u64().expect("rounds")
    };
    // A push to a paused queue causes no notification.
    for paused in [false, true] {
        if paused {
            client.batch_execute("SELECT queue.pause('default')").expect("pause");
        }
        let (before, started) = (rounds(&mut client), Instant::now());
        for _ in 0..1000 {
            client.query("SELECT queue.push('default')", &[]).expect("push");
        }
        let took = started.elapsed();
        let rounds = rounds(&mut client) - before;
        let mut heard = 0;
        while next(&mut listener, Duration::from_millis(500)).is_some() {
            heard += 1;
        }
        // At most one every 100 ms, and one for the last push.
        let most = took.as_millis() / 100 + 2;
        let least = u128::from(!paused);
        assert!((least..=most).contains(&heard), "{heard} notifications in {took:?}, paused: {paused}");
        assert!(u128::from(rounds) <= 3 * most, "{rounds} rounds in {took:?}, paused: {paused}");
    }
}

#[test]
fn a_long_backlog_delays_no_notification() {
    let mut cluster = Cluster::start("notify-backlog");
    let mut client = cluster.connect();
    let mut listener = listen(&cluster, "queue_default");
    // Triggers make deleting so slow that each of these takes ten seconds or more.
    for (activity, table, pause, begin) in [
        (
            "applying retention",
            "queue.dead_letters",
            0.5,
            "INSERT INTO queue.dead_letters
                 (id, queue, priority, run_at, attempt, token, created_at, failed_at, payload)
             SELECT -n, 'default', 0, now(), 1, 1, now(), now() - interval '1 year', '{}'
             FROM generate_series(1, 20000) AS n;
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'queue_ext worker'",
        ),
        (
            "processing events",
            "queue_internal.events",
            0.03,
            "SELECT queue.create('grouped');
             SELECT count(queue.push('grouped', group_key => n::text)) FROM generate_series(1, 400) AS n",
        ),
    ] {
        client
            .batch_execute(&format!(
                "CREATE OR REPLACE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS
                     'BEGIN PERFORM pg_sleep({pause}); RETURN NULL; END';
                 CREATE TRIGGER slow AFTER DELETE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION public.slow();
                 {begin}"
            ))
            .expect("begin");
        eventually(activity, SOON, || {
            let query = "SELECT FROM pg_stat_activity WHERE backend_type = 'queue_ext worker' AND query = $1";
            client.query_opt(query, &[&activity]).expect("pg_stat_activity").is_some()
        });
        client.batch_execute("SELECT queue.push('default')").expect("push");
        assert!(next(&mut listener, SOON).is_some(), "a push beside {activity}");
        let is_done = |client: &mut Client| {
            let query = format!("SELECT NOT EXISTS (SELECT FROM {table})");
            client.query_one(&query, &[]).expect("left").get::<_, bool>(0)
        };
        assert!(!is_done(&mut client), "{activity} was over too soon for this test");
        client.batch_execute(&format!("DROP TRIGGER slow ON {table}")).expect("drop");
        eventually("all of it is done", SOON, || is_done(&mut client));
        client.batch_execute("SELECT queue.purge('default')").expect("purge");
        while next(&mut listener, Duration::from_millis(300)).is_some() {}
    }
    cluster.stop("fast");
}

#[test]
fn a_failure_to_create_partitions_delays_no_notification() {
    let mut cluster = Cluster::start("notify-upkeep");
    let mut client = cluster.connect();
    let mut listener = listen(&cluster, "queue_default");
    client
        .batch_execute(
            "CREATE ROLE stranger; GRANT USAGE ON SCHEMA queue TO stranger; GRANT TRIGGER ON queue.history_default TO stranger;
             GRANT CREATE ON SCHEMA public TO stranger; SET ROLE stranger;
             CREATE FUNCTION public.own() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END';
             CREATE TRIGGER own BEFORE DELETE ON queue.history_default FOR EACH ROW EXECUTE FUNCTION public.own();
             RESET ROLE;
             CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql AS
                 'BEGIN RAISE EXCEPTION ''not today''; END';
             CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION public.refuse()",
        )
        .expect("faults");
    // A worker that starts applies retention at once.
    let first = cluster.await_worker("postgres");
    client.execute("SELECT pg_terminate_backend($1)", &[&first]).expect("terminate");
    eventually("another worker starts", SOON, || cluster.await_worker("postgres") != first);
    let worker = cluster.await_worker("postgres");
    for _ in 0..20 {
        client.batch_execute("SELECT queue.push('default')").expect("push");
        assert!(next(&mut listener, SOON).is_some(), "a push");
    }
    assert_eq!(cluster.await_worker("postgres"), worker, "the worker goes on");
    for warning in [
        "cannot be created: not today",
        "WARNING:  applying retention failed: trigger \"own\" on table \"history_default\" must not run with the rights of the owner",
    ] {
        eventually(warning, SOON, || cluster.log().contains(warning));
        // Partitions once a minute, for all days together; retention at the first failure, the second, the fourth, and so on.
        let said = cluster.log().matches(warning).count();
        assert!(said <= 4, "{said} times: {warning}");
    }
    client.batch_execute("DROP EVENT TRIGGER refuse").expect("drop");
    client.execute("SELECT pg_terminate_backend($1)", &[&worker]).expect("terminate");
    eventually("the partitions are there", SOON, || {
        let query = "SELECT count(*) > 3 FROM queue_internal.history_partitions() WHERE attached";
        client.query_one(query, &[]).expect("partitions").get(0)
    });
}
