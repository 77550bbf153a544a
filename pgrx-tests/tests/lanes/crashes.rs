//! Statements that are cut short, sessions and servers that are killed, and a standby that takes over.

use super::*;

/// A statement that is cancelled after so many microseconds, unless it ends before.
fn cut_short(cluster: &Cluster, client: &mut Client, after: u64, statement: &str) -> bool {
    let canceller = client.cancel_token();
    let (done, finished) = std::sync::mpsc::channel::<()>();
    let timer = std::thread::spawn(move || {
        let in_time = finished.recv_timeout(Duration::from_micros(after)).is_ok();
        if !in_time {
            canceller.cancel_query(NoTls).expect("cancel");
        }
    });
    let result = client.batch_execute(statement);
    let _ = done.send(());
    timer.join().expect("the timer");
    if let Err(error) = &result {
        assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error:?}");
    }
    // A cancel that came too late hits nothing else.
    eventually("the session is idle", SOON, || cluster.try_connect("postgres").is_some());
    let _ = client.batch_execute("ROLLBACK");
    result.is_err()
}

#[test]
fn batches_cut_short_lose_nothing_and_keep_nothing() {
    let cluster = cluster("lanes-cut-short");
    let (mut one, mut other) = (cluster.connect(), cluster.connect());
    let total = 20_000;
    push(&mut one, "default", total);
    let running = "SELECT count(*) FROM queue.tasks WHERE state = 'running'";
    let mut cut = 0;
    for n in 1..=60 {
        let statement = match n % 3 {
            0 => {
                "BEGIN; SAVEPOINT s; SELECT count(*) FROM queue.claim('1 hour', max_tasks => 7000); ROLLBACK"
            }
            1 => {
                "BEGIN; SELECT count(*) FROM (SELECT queue.claim('1 hour', max_tasks => 10) FROM generate_series(1, 500)) AS c; ROLLBACK"
            }
            _ => {
                "BEGIN; SELECT count(*) FROM queue.push_many('default', array_fill('1'::jsonb, ARRAY[5000])); ROLLBACK"
            }
        };
        cut += i32::from(cut_short(&cluster, &mut one, n * 700, statement));
        assert_eq!(count(&mut other, running), 0);
    }
    for n in 1..=20 {
        run(&mut one, &format!("SET statement_timeout = {n}"));
        let result = one.batch_execute("SELECT count(*) FROM queue.claim('1 hour', max_tasks => 20000)");
        // Which can itself be cut short.
        while one.batch_execute("RESET statement_timeout").is_err() {}
        if result.is_ok() {
            run(&mut one, "SELECT count(queue.release(id, token)) FROM queue.tasks WHERE state = 'running'");
        }
        cut += i32::from(result.is_err());
    }
    assert!(cut > 20, "{cut} statements were cut short");
    let mut found = std::collections::HashSet::new();
    loop {
        let claimed = claim(&mut other, "default", 3000);
        if claimed.is_empty() {
            break;
        }
        assert!(claimed.into_iter().all(|id| found.insert(id)), "no task twice");
    }
    assert_eq!(found.len() as i32, total);
}

/// The worker reads one lane after the other, and may be ended at any of them.
#[test]
fn a_worker_that_ends_while_it_reads_lanes_blocks_no_claims() {
    const QUEUES: usize = 6;
    const TASKS: i32 = 1500;
    let cluster = with_settings("lanes-read-anew", "queue.sweep_interval = '1s'");
    let (mut client, mut holder) = (cluster.connect(), cluster.connect());
    let queues: Vec<String> = (0..QUEUES).map(|n| format!("q{n}")).collect();
    for queue in &queues {
        run(&mut client, &format!("SELECT queue.create('{queue}')"));
        push(&mut client, queue, TASKS);
        assert_eq!(claim(&mut client, queue, 1).len(), 1);
    }
    for _ in 0..3 {
        run(&mut holder, "BEGIN; LOCK TABLE queue.tasks IN ACCESS EXCLUSIVE MODE");
        let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                     WHERE backend_type = 'queue_ext worker' AND wait_event_type = 'Lock'";
        eventually("the worker is ended", SOON, || count(&mut client, ended) == 1);
        run(&mut holder, "ROLLBACK");
    }
    // More than a lane knows without reading on.
    run(&mut client, "SET statement_timeout = '30s'");
    for queue in &queues {
        assert_eq!(claim(&mut client, queue, TASKS).len() as i32, TASKS - 1, "{queue}");
    }
}

fn all_claimable(cluster: &Cluster, expected: usize) {
    let mut client = cluster.connect();
    let mut found = 0;
    eventually("all tasks are claimed", SOON, || {
        found += claim(&mut client, "default", 1000).len();
        found == expected
    });
    assert_eq!(claim(&mut client, "default", 1000), NONE);
}

#[test]
fn a_killed_session_loses_no_task() {
    let cluster = cluster("lanes-killed");
    let mut client = cluster.connect();
    push(&mut client, "default", 50);
    let pid = count(&mut client, "SELECT pg_backend_pid()::bigint");
    run(&mut client, "BEGIN");
    assert_eq!(claim(&mut client, "default", 30).len(), 30);
    push(&mut client, "default", 10);
    // SAFETY: a signal to a process of this test's own server.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    eventually("the server notices", SOON, || cluster.log().contains("was terminated by signal 9"));
    eventually("the server is back", SOON, || cluster.try_connect("postgres").is_some());
    all_claimable(&cluster, 50);

    // Terminated, which ends the session in order.
    let mut client = cluster.connect();
    push(&mut client, "default", 50);
    let pid = count(&mut client, "SELECT pg_backend_pid()::bigint");
    run(&mut client, "BEGIN");
    assert_eq!(claim(&mut client, "default", 30).len(), 30);
    run(&mut cluster.connect(), &format!("SELECT pg_terminate_backend({pid}, 5000)"));
    all_claimable(&cluster, 50);
}

#[test]
fn after_a_restart_empty_lanes_find_every_task() {
    let mut cluster = cluster("lanes-restart");
    for mode in ["fast", "immediate"] {
        let mut client = cluster.connect();
        push(&mut client, "default", 2000);
        run(
            &mut client,
            "SELECT count(*) FROM queue.claim('300 ms', max_tasks => 500);
                          SELECT queue.push('default', delay => '300 ms')",
        );
        cluster.stop(mode);
        cluster.launch();
        all_claimable(&cluster, 2001);
    }
}

#[test]
fn a_promoted_standby_continues() {
    let mut cluster = cluster("lanes-primary");
    let mut client = cluster.connect();
    push(&mut client, "default", 100);
    assert_eq!(claim(&mut client, "default", 20).len(), 20);
    let mut standby = cluster.standby("lanes-standby");
    let mut reader = standby.connect();
    for statement in [
        "SELECT queue.push('default')",
        "SELECT queue.push_many('default', '{1}')",
        "SELECT queue.claim()",
        "SELECT queue.complete(id, token) FROM queue.tasks WHERE state = 'running'",
        "SELECT queue.complete_many('{1}', '{1}')",
        "SELECT queue.complete_and_claim(id, token) FROM queue.tasks WHERE state = 'running'",
        "SELECT queue.extend(id, token) FROM queue.tasks WHERE state = 'running'",
    ] {
        let error = reader.batch_execute(statement).expect_err(statement);
        assert_eq!(error.code().map(|code| code.code()), Some("25006"), "{statement}: {error}");
    }
    // A waiting session gets an answer there as well.
    let ready = reader.simple_query("CALL queue.wait('default', '1 second', NULL)").expect("wait");
    assert!(
        ready.iter().any(|m| matches!(m, postgres::SimpleQueryMessage::Row(row) if row.get(0) == Some("t")))
    );
    cluster.stop("immediate");
    standby.promote();
    standby.await_worker("postgres");
    assert_eq!(claim(&mut reader, "default", 1000).len(), 80);
    let query = "SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.tasks ORDER BY id), ARRAY(SELECT token FROM queue.tasks ORDER BY id))";
    assert_eq!(count(&mut reader, query), 100);
    assert!(served(&mut reader) >= 2);
}
