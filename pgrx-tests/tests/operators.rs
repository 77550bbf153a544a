//! Bulk changes by operators while workers work, and waiting for results.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use postgres::Client;
use queue_ext_tests::{Cluster, SOON, WOKEN, brief, eventually, number, stalls};

/// These tests keep the machine busy, and some measure: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn tasks() -> i64 {
    if brief() { 20_000 } else { 100_000 }
}

/// The state and result that a session got, and when.
type Answer = (Option<String>, Option<i64>, Instant);

/// A session that waits for a task in a thread of its own.
struct Waiter {
    pid: i32,
    thread: JoinHandle<Result<Answer, postgres::Error>>,
}

fn wait_for(cluster: &Cluster, id: i64, settings: &str) -> Waiter {
    let mut client = cluster.connect();
    client.batch_execute(settings).expect("settings");
    let pid = client.query_one("SELECT pg_backend_pid()", &[]).expect("pid").get(0);
    let thread = thread::spawn(move || {
        let row = client.query_one("CALL queue.wait_result($1, '5 minutes')", &[&id])?;
        let result: Option<serde_json::Value> = row.get(1);
        Ok((row.get(0), result.and_then(|result| result.as_i64()), Instant::now()))
    });
    Waiter { pid, thread }
}

/// Sooner than anything that nobody announced, or than the timeout.
fn is_soon(since: Instant, told: Instant) {
    let late = stalls::took(since, told);
    assert!(late < WOKEN, "{late:?}");
}

/// Waits until the session waits and holds nothing but its entry among the transactions.
fn holds_nothing(client: &mut Client, pid: i32) {
    eventually("a session that waits and holds nothing", SOON, || {
        let query = "SELECT count(*) FROM pg_stat_activity AS a WHERE a.pid = $1
                     AND a.wait_event IN ('Extension', 'QueueExtWait') AND a.backend_xmin IS NULL AND a.backend_xid IS NULL
                     AND NOT EXISTS (SELECT FROM pg_locks AS l WHERE l.pid = a.pid AND l.locktype <> 'virtualxid')";
        client.query_one(query, &[&pid]).expect("look").get::<_, i64>(0) == 1
    });
}

fn push(client: &mut Client) -> i64 {
    number(client, "SELECT queue.push('default')")
}

#[test]
fn wait_result_returns_soon_and_holds_back_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("operators-result");
    let mut client = cluster.connect();
    let id = push(&mut client);
    let waiter = wait_for(&cluster, id, "SET application_name = 'waiter'");
    // Repeatedly and at any time: the session is active only for an instant and then sleeps.
    for _ in 0..20 {
        holds_nothing(&mut client, waiter.pid);
    }
    // So vacuum cleans up behind it.
    client
        .batch_execute("CREATE TABLE rubbish AS SELECT generate_series(1, 1000) AS n; DELETE FROM rubbish")
        .expect("rubbish");
    eventually("vacuum is not held back", SOON, || {
        client.batch_execute("VACUUM rubbish").expect("vacuum");
        number(&mut client, "SELECT pg_relation_size('rubbish')") == 0
    });
    client.batch_execute("SELECT queue.complete(id, token, '42') FROM queue.claim()").expect("complete");
    let completed = Instant::now();
    let (state, result, told) = waiter.thread.join().expect("join").expect("a result");
    assert_eq!((state.as_deref(), result), (Some("completed"), Some(42)));
    is_soon(completed, told);

    // A task that left no trace is reported as unknown.
    client
        .batch_execute("SELECT queue.configure('default', '{\"keep_history\": false}')")
        .expect("configure");
    let waiter = wait_for(&cluster, push(&mut client), "");
    holds_nothing(&mut client, waiter.pid);
    client.batch_execute("SELECT queue.complete(id, token, '42') FROM queue.claim()").expect("complete");
    let (state, result, _) = waiter.thread.join().expect("join").expect("an answer");
    assert_eq!((state, result), (None, None));
}

#[test]
fn a_result_can_be_waited_for_on_a_standby() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let primary = Cluster::start("operators-primary");
    let mut client = primary.connect();
    let id = push(&mut client);
    let standby = primary.standby("operators-standby");
    let waiter = wait_for(&standby, id, "");
    holds_nothing(&mut standby.connect(), waiter.pid);
    client.batch_execute("SELECT queue.complete(id, token, '42') FROM queue.claim()").expect("complete");
    let (state, result, _) = waiter.thread.join().expect("join").expect("a result");
    assert_eq!((state.as_deref(), result), (Some("completed"), Some(42)));
}

#[test]
fn fifty_sessions_wait_at_once_and_each_gets_its_own_result() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("operators-fifty");
    let mut client = cluster.connect();
    let ids: Vec<i64> = (0..50).map(|_| push(&mut client)).collect();
    let waiters: Vec<Waiter> = ids.iter().map(|id| wait_for(&cluster, *id, "")).collect();
    for waiter in &waiters {
        holds_nothing(&mut client, waiter.pid);
    }
    client
        .batch_execute("SELECT queue.complete(id, token, to_jsonb(id)) FROM queue.claim(max_tasks => 50)")
        .expect("complete");
    let completed = Instant::now();
    for (id, waiter) in ids.into_iter().zip(waiters) {
        let (state, result, told) = waiter.thread.join().expect("join").expect("a result");
        assert_eq!((state.as_deref(), result), (Some("completed"), Some(id)));
        is_soon(completed, told);
    }
}

#[test]
fn waiting_ends_at_once_when_the_session_is_cancelled_or_terminated() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("operators-interrupt");
    let mut client = cluster.connect();
    let id = push(&mut client);
    for (signal, said) in [
        ("pg_cancel_backend", "ERROR:  canceling statement due to user request"),
        ("pg_terminate_backend", "FATAL:  terminating connection due to administrator command"),
    ] {
        let waiter = wait_for(&cluster, id, "");
        holds_nothing(&mut client, waiter.pid);
        let sent = Instant::now();
        client.execute(&format!("SELECT {signal}($1)"), &[&waiter.pid]).expect("signal");
        waiter.thread.join().expect("join").expect_err("interrupted");
        is_soon(sent, Instant::now());
        // The log has it for certain; the client may learn no more than that the connection is gone.
        eventually(said, SOON, || cluster.log().contains(said));
    }
    let started = Instant::now();
    let waiter = wait_for(&cluster, id, "SET statement_timeout = '300 ms'");
    let error = waiter.thread.join().expect("join").expect_err("timed out");
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error}");
    is_soon(started, Instant::now());
    // A session continues to work after a cancel.
    client.batch_execute("SET statement_timeout = '50 ms'").expect("set");
    for _ in 0..3 {
        client.execute("CALL queue.wait_result($1)", &[&id]).expect_err("timed out");
    }
    // Which can itself be cut short.
    while client.batch_execute("RESET statement_timeout").is_err() {}
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue.tasks"), 1);
}

/// Claims and completes until no task is left; returns the ids whose completion was accepted.
fn work(mut client: Client) -> Vec<i64> {
    let claim = client.prepare("SELECT id, token FROM queue.claim(max_tasks => 10)").expect("prepare");
    let complete = client.prepare("SELECT queue.complete($1, $2)").expect("prepare");
    let mut accepted = Vec::new();
    loop {
        let tasks = client.query(&claim, &[]).expect("claim");
        if tasks.is_empty() && number(&mut client, "SELECT count(*) FROM queue.tasks") == 0 {
            return accepted;
        }
        for task in tasks {
            let (id, token): (i64, i64) = (task.get(0), task.get(1));
            client.query(&complete, &[&id, &token]).expect("nobody may take a leased task away");
            accepted.push(id);
        }
    }
}

fn push_all(client: &mut Client) {
    let pushed = format!("SELECT count(queue.push('default')) FROM generate_series(1, {})", tasks());
    assert_eq!(number(client, &pushed), tasks());
}

#[test]
fn every_task_ends_once_while_workers_claim_and_operators_cancel() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("operators-mixed");
    let mut client = cluster.connect();
    push_all(&mut client);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let client = cluster.connect();
            thread::spawn(move || work(client))
        })
        .collect();
    eventually("the workers work", SOON, || number(&mut client, "SELECT count(*) FROM queue.history") > 1000);
    // Two operators at once, in the same order, and a third in random order.
    let operators: Vec<_> = [
        "CALL queue.cancel_where('{\"state\": \"queued\"}', batch_size => 500)",
        "CALL queue.cancel_where('{\"state\": \"queued\", \"queue\": \"default\"}')",
        "CALL queue.reprioritise_where('{\"queue\": \"default\", \"state\": \"queued\"}', 7)",
    ]
    .into_iter()
    .map(|call| {
        let mut client = cluster.connect();
        thread::spawn(move || client.query_one(call, &[]).expect(call).get::<_, i64>(0))
    })
    .collect();
    let counts: Vec<i64> = operators.into_iter().map(|thread| thread.join().expect("an operator")).collect();
    let mut completed = HashSet::new();
    for worker in workers {
        for id in worker.join().expect("a worker") {
            assert!(completed.insert(id), "task {id} was completed twice");
        }
    }
    let row = client
        .query_one(
            "SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE state = 'completed'),
                    count(*) FILTER (WHERE state = 'cancelled') FROM queue.all_tasks",
            &[],
        )
        .expect("count");
    let (all, distinct, done, cancelled): (i64, i64, i64, i64) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    assert_eq!((all, distinct, done + cancelled), (tasks(), tasks(), tasks()));
    assert_eq!(done, completed.len() as i64);
    assert_eq!(cancelled, counts[0] + counts[1], "what was counted, and nothing else, was cancelled");
    assert!(cancelled > 0 && done > 1000, "{cancelled} cancelled, {done} completed");
}

#[test]
fn a_killed_bulk_procedure_keeps_only_its_committed_batches() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("operators-killed");
    let mut client = cluster.connect();
    push_all(&mut client);
    let history = "SELECT count(*) FROM queue.history WHERE state = 'cancelled'";
    // It stops in its second batch, and waits for the lock of this session.
    client
        .batch_execute(
            "SELECT pg_advisory_lock(1);
             CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN OLD; END'",
        )
        .expect("a trigger");
    for signal in ["pg_terminate_backend", "pg_cancel_backend"] {
        let before = number(&mut client, history);
        let trigger = format!(
            "CREATE TRIGGER hold BEFORE DELETE ON queue.tasks FOR EACH ROW WHEN (OLD.id = {})
             EXECUTE FUNCTION public.hold(); ALTER TABLE queue.tasks ENABLE ALWAYS TRIGGER hold",
            before + 1500
        );
        client.batch_execute(&trigger).expect("a trigger");
        let mut victim = cluster.connect();
        let pid: i32 = victim.query_one("SELECT pg_backend_pid()", &[]).expect("pid").get(0);
        let thread = thread::spawn(move || {
            victim.execute("CALL queue.cancel_where('{\"queue\": \"default\"}', batch_size => 1000)", &[])
        });
        let waits = format!(
            "SELECT count(*) FROM pg_locks WHERE pid = {pid} AND locktype = 'advisory' AND NOT granted"
        );
        eventually("it is in its second batch", SOON, || number(&mut client, &waits) == 1);
        assert_eq!(number(&mut client, history), before + 1000, "others see the first one");
        client.execute(&format!("SELECT {signal}($1)"), &[&pid]).expect("signal");
        thread.join().expect("join").expect_err("it was interrupted");
        eventually("it is gone", SOON, || {
            number(
                &mut client,
                &format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND state = 'active'"),
            ) == 0
        });
        client.batch_execute("DROP TRIGGER hold ON queue.tasks").expect("drop");
        let cancelled = number(&mut client, history);
        assert_eq!(cancelled, before + 1000, "whole batches");
        assert_eq!(
            number(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'queued'"),
            tasks() - cancelled
        );
    }
    // In a transaction it is all or nothing.
    let left = tasks() - number(&mut client, history);
    let mut transaction = client.transaction().expect("BEGIN");
    let count: i64 =
        transaction.query_one("CALL queue.cancel_where('{\"all\": true}')", &[]).expect("cancel").get(0);
    assert_eq!(count, left);
    transaction.rollback().expect("ROLLBACK");
    assert_eq!(number(&mut client, history), tasks() - left);
    // The rest, by asking again.
    assert_eq!(number(&mut client, "CALL queue.cancel_where('{\"all\": true}')"), left);
    assert_eq!(number(&mut client, history), tasks());
}
