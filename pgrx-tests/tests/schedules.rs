//! Schedules and the worker that runs them: in time, and each time once.

use std::time::Duration;

use postgres::Client;
use queue_ext_tests::{Cluster, SOON, Settings, WOKEN, eventually, number, stalls::Excuse};

fn start(name: &str) -> (Cluster, Client) {
    // No sweep may run during this test.
    let settings = Settings { preload: true, extra: "queue.sweep_interval = 1h" };
    let mut cluster = Cluster::installed(name, &settings);
    let client = cluster.connect();
    cluster.await_worker("postgres");
    (cluster, client)
}

const RUNS: &str = "SELECT count(*) FROM queue.tasks WHERE headers ->> 'schedule' = 'tick'";

fn await_runs(client: &mut Client, more: i64) {
    let enough = number(client, RUNS) + more;
    eventually("it runs", SOON, || number(client, RUNS) >= enough);
}

/// The seconds for which there are tasks have no gap and no double.
fn assert_every_second_once(client: &mut Client) {
    let query = "SELECT count(*), count(DISTINCT run), extract(epoch FROM max(run) - min(run))::bigint + 1
                 FROM (SELECT (headers ->> 'scheduled_for')::timestamptz FROM queue.tasks) AS t (run)";
    let row = client.query_one(query, &[]).expect("the runs");
    let (all, distinct, seconds) = (row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, i64>(2));
    assert_eq!((all, distinct), (seconds, seconds), "tasks and different times, of so many seconds");
}

#[test]
fn each_second_runs_once_through_crashes_and_restarts() {
    let (mut cluster, mut client) = start("schedules-crash");
    client
        .batch_execute(
            "SELECT queue.schedule('tick', '* * * * * *', 'default', options => '{\"missed_runs\": \"all\"}')",
        )
        .expect("schedule");
    for round in 0..2 {
        await_runs(&mut client, 2);
        let pid = cluster.await_worker("postgres");
        // SAFETY: a signal to a process of this test's own server.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        // Postgres restarts everything when a process that shares its memory is killed.
        let killed = || cluster.log().matches("was terminated by signal 9").count();
        eventually("the server notices", SOON, || killed() > round);
        client = cluster.connect();
        await_runs(&mut client, 2);
        cluster.kill_postmaster();
        cluster.launch();
        client = cluster.connect();
        await_runs(&mut client, 2);
        cluster.stop(if round == 0 { "immediate" } else { "fast" });
        // Long enough to miss some.
        std::thread::sleep(Duration::from_secs(3));
        cluster.launch();
        client = cluster.connect();
    }
    await_runs(&mut client, 2);
    eventually("what was missed is made up for", SOON, || {
        let late = "SELECT count(*) FROM queue.schedules WHERE last_run_at < clock_timestamp() - interval '2 seconds'";
        number(&mut client, late) == 0
    });
    client.batch_execute("SELECT queue.pause_schedule('tick')").expect("pause");
    assert_every_second_once(&mut client);
}

#[test]
fn runs_are_on_time_and_never_early() {
    let (mut cluster, mut client) = start("schedules-time");
    let excuse = Excuse::of(cluster.await_worker("postgres"));
    client.batch_execute("SELECT queue.schedule('tick', '* * * * * *', 'default')").expect("schedule");
    await_runs(&mut client, 4);
    let query = "SELECT extract(epoch FROM min(late))::float8, extract(epoch FROM max(late))::float8
                 FROM (SELECT created_at - (headers ->> 'scheduled_for')::timestamptz FROM queue.tasks) AS t (late)";
    let row = client.query_one(query, &[]).expect("how late");
    let (best, worst) = (row.get::<_, f64>(0), row.get::<_, f64>(1));
    assert!(best >= 0.0, "a task was pushed {best} s before its time");
    assert!(best < 0.1 && worst < 1.0 + excuse.so_far().as_secs_f64(), "from {best} to {worst} s late");

    // If the clock is set back by three seconds, the next run is three seconds further away.
    client
        .batch_execute("UPDATE queue.schedules SET next_run_at = next_run_at + interval '3 seconds'")
        .expect("put back");
    let ahead = "SELECT count(*) FROM queue.tasks AS t, queue.schedules AS s
                 WHERE (t.headers ->> 'scheduled_for')::timestamptz >= s.next_run_at";
    assert_eq!(number(&mut client, ahead), 0);
    let before = number(&mut client, RUNS);
    let first_after: String =
        client.query_one("SELECT next_run_at::text FROM queue.schedules", &[]).expect("next").get(0);
    await_runs(&mut client, 2);
    let between = format!(
        "SELECT count(*) FROM queue.tasks WHERE (headers ->> 'scheduled_for')::timestamptz < '{first_after}'"
    );
    assert_eq!(number(&mut client, &between), before, "nothing came before, and nothing twice");
    assert_eq!(number(&mut client, "SELECT count(*) - count(DISTINCT headers) FROM queue.tasks"), 0);

    // A pause ends the runs, its end wakes the worker.
    client.batch_execute("SELECT queue.pause_schedule('tick'), queue.purge('default')").expect("pause");
    client.batch_execute("SELECT pg_sleep(1.5)").expect("wait");
    assert_eq!(number(&mut client, RUNS), 0, "it is paused");
    client.batch_execute("SELECT queue.resume_schedule('tick')").expect("resume");
    await_runs(&mut client, 2);
    // A run that is late by more than a second is skipped.
    assert_eq!(number(&mut client, "SELECT count(*) - count(DISTINCT headers) FROM queue.tasks"), 0);
}

#[test]
fn a_failing_schedule_delays_no_other() {
    let (mut cluster, mut client) = start("schedules-fail");
    let pid = cluster.await_worker("postgres");
    client
        .batch_execute(
            "SELECT queue.create('gone'), queue.schedule('lost', '* * * * * *', 'gone'), queue.drop('gone', true);
             SELECT queue.schedule('tick', '* * * * * *', 'default')",
        )
        .expect("schedule");
    await_runs(&mut client, 3);
    let error = "SELECT last_error FROM queue.schedules WHERE name = 'lost'";
    let error: String = client.query_one(error, &[]).expect("the error").get(0);
    assert_eq!(error, "queue \"gone\" does not exist");
    assert_eq!(cluster.await_worker("postgres"), pid, "the worker minds nothing of this");
    // A schedule whose row is locked is not waited for, and not retried in a busy loop.
    let mut holder = cluster.connect();
    holder
        .batch_execute("BEGIN; SELECT * FROM queue.schedules WHERE name = 'tick' FOR UPDATE")
        .expect("hold");
    let rounds = "SELECT (queue.engine_stats() #>> '{worker, rounds}')::bigint";
    let before = number(&mut client, rounds);
    client.batch_execute("SELECT pg_sleep(3)").expect("wait");
    let made = number(&mut client, rounds) - before;
    assert!(made < 20, "{made} rounds in three seconds");
    holder.batch_execute("ROLLBACK").expect("let go");
    // Scheduled again after its queue was created again, it runs at once.
    client
        .batch_execute("SELECT queue.create('gone'), queue.schedule('lost', '* * * * * *', 'gone')")
        .expect("schedule");
    eventually("it runs", WOKEN, || {
        number(&mut client, "SELECT count(*) FROM queue.tasks WHERE queue = 'gone'") > 0
    });
    await_runs(&mut client, 1);
}
