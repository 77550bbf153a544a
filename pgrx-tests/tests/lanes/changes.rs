//! Changes to the table by other statements: INSERT, COPY, UPDATE and DELETE reach the lanes and the waiting
//! sessions.

use std::io::Write;

use super::*;

#[test]
fn every_way_to_insert_a_task_wakes_waiting_sessions() {
    let cluster = cluster("lanes-ways-in");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.create('other')");
    let claim_one = |client: &mut Client, what: &str| {
        // The worker may have the task locked, to end its lease.
        eventually(what, SOON, || claim(client, "default", 10).len() == 1);
        run(client, "DELETE FROM queue.tasks");
    };
    for (before, statement) in [
        ("", "SELECT queue.push('default')"),
        ("", "SELECT queue.push_many('default', '{1}')"),
        ("", "SET queue.fast_path = off; SELECT queue.push('default'); RESET queue.fast_path"),
        ("", "INSERT INTO queue.tasks (queue) VALUES ('default')"),
        ("", "WITH i AS (INSERT INTO queue.tasks (queue) VALUES ('default') RETURNING id) SELECT FROM i"),
        (
            "SELECT queue.push('default', delay => '1 day')",
            "UPDATE queue.tasks SET run_at = clock_timestamp()",
        ),
        ("SELECT queue.push('other')", "UPDATE queue.tasks SET queue = 'default'"),
        (
            "SELECT queue.push('default'); SELECT queue.claim('1 hour')",
            "UPDATE queue.tasks SET state = 'queued', lease_until = NULL",
        ),
        (
            "SELECT queue.push('default'); SELECT queue.claim('1 hour')",
            "SELECT queue.release(id, token) FROM queue.tasks",
        ),
        (
            "SELECT queue.push('default'); SELECT queue.fail(id, token, 'no', permanent => true) FROM queue.claim()",
            "SELECT queue.redrive('default')",
        ),
        ("SELECT queue.push('default'); SELECT queue.pause('default')", "SELECT queue.resume('default')"),
        ("", "SELECT queue.push('default', delay => '100 ms')"),
        ("SELECT queue.push('default'); SELECT queue.claim('300 ms')", "SELECT"),
    ] {
        run(&mut client, before);
        wakes(&cluster, "default", statement, || run(&mut client, statement));
        claim_one(&mut client, statement);
    }
    wakes(&cluster, "default", "COPY", || {
        let mut copy = client.copy_in("COPY queue.tasks (queue, payload) FROM STDIN").expect("copy");
        copy.write_all(b"default\t{}\n").expect("a line");
        copy.finish().expect("copy");
    });
    claim_one(&mut client, "COPY");
}

#[test]
fn a_lane_keeps_nothing_that_is_gone_or_changed() {
    let cluster = cluster("lanes-changed");
    let (mut one, mut other) = (cluster.connect(), cluster.connect());
    run(&mut one, "SELECT queue.create('other')");
    let ids = push(&mut one, "default", 8);
    assert_eq!(claim(&mut other, "default", 1), ids[..1]);
    let statements = format!(
        "DELETE FROM queue.tasks WHERE id = {}; UPDATE queue.tasks SET priority = 5 WHERE id = {};
         UPDATE queue.tasks SET queue = 'other' WHERE id = {}; UPDATE queue.tasks SET priority = -5 WHERE id = {}",
        ids[1], ids[2], ids[3], ids[7]
    );
    run(&mut one, &statements);
    assert_eq!(claim(&mut other, "default", 10), [ids[7], ids[4], ids[5], ids[6], ids[2]]);
    assert_eq!(claim(&mut other, "other", 10), ids[3..4]);

    // A table that was emptied, and the same ids again.
    push(&mut one, "default", 5);
    run(&mut one, "TRUNCATE queue.tasks; SELECT setval('queue.tasks_id_seq', 1, false)");
    assert_eq!(claim(&mut other, "default", 10), NONE);
    let ids = push(&mut one, "default", 3);
    assert_eq!(claim(&mut other, "default", 10), ids);

    // VACUUM FULL and CLUSTER move every row.
    let ids = push(&mut one, "default", 20);
    assert_eq!(claim(&mut other, "default", 2), ids[..2]);
    run(&mut one, "VACUUM FULL queue.tasks");
    assert_eq!(claim(&mut other, "default", 2), ids[2..4]);
    run(&mut one, "CLUSTER queue.tasks USING tasks_pkey");
    assert_eq!(claim(&mut other, "default", 2), ids[4..6]);
    run(&mut one, "REINDEX TABLE queue.tasks");
    assert_eq!(claim(&mut other, "default", 100), ids[6..]);
}

#[test]
fn a_task_whose_admission_is_withdrawn_is_dropped_by_the_claim_that_meets_it() {
    let cluster = cluster("lanes-withdrawn");
    let (mut one, mut other) = (cluster.connect(), cluster.connect());
    run(&mut one, "SELECT queue.create('q', jsonb_build_object('max_running_per_group', 10))");
    let pushed = one.query("SELECT queue.push('q', group_key => 'g') FROM generate_series(1, 10)", &[]);
    let ids: Vec<i64> = pushed.expect("push").iter().map(|row| row.get(0)).collect();
    // The worker may be about to admit them, and a claim does not wait for it. As long as there may be events, claims are
    // those of SQL, which fill no lane.
    let candidates = |client: &mut Client| stats(client)["lanes"]["q"]["ready"].as_u64().unwrap_or(0);
    let mut first = Vec::new();
    eventually("a claim has filled the lane", SOON, || {
        first.extend(claim(&mut other, "q", 1));
        candidates(&mut one) > 0
    });
    let running = first.len();
    assert_eq!(first, ids[..running]);
    let rest = &ids[running..];
    let known = rest.len() as u64;
    assert_eq!(candidates(&mut one), known);
    let mut limit = |limit: usize, admission: i64| {
        run(
            &mut one,
            &format!("SELECT queue.configure('q', jsonb_build_object('max_running_per_group', {limit}))"),
        );
        let admitted = format!(
            "SELECT count(*) FROM queue.tasks WHERE queue = 'q' AND state = 'queued' AND admission = {admission}"
        );
        eventually("the group is looked at", SOON, || count(&mut one, &admitted) == rest.len() as i64);
    };
    // They stay: if the lane forgot them now, a later admission that is published first would be forgotten with them.
    limit(running, 2);
    assert_eq!(candidates(&mut other), known);
    eventually("a native claim meets them", SOON, || {
        assert_eq!(claim(&mut other, "q", 1), NONE);
        candidates(&mut other) == 0
    });
    limit(10, 1);
    // The worker publishes what it has committed.
    let mut found = Vec::new();
    eventually("they are claimed", SOON, || {
        found.extend(claim(&mut other, "q", 10));
        found.len() == rest.len()
    });
    assert_eq!(found, rest);
}

/// All tasks in the order of claims, claimed in batches of any size.
fn in_order(client: &mut Client, queue: &str, batch: i32) {
    let query =
        "SELECT id FROM queue.tasks WHERE queue = $1 AND state = 'queued' AND run_at <= clock_timestamp()
                 ORDER BY priority, run_at, id";
    let expected: Vec<i64> =
        client.query(query, &[&queue]).expect("list").iter().map(|row| row.get(0)).collect();
    let mut found = Vec::new();
    loop {
        let claimed = claim(client, queue, batch);
        if claimed.is_empty() {
            break;
        }
        found.extend(claimed);
    }
    assert_eq!(found.len(), expected.len());
    assert!(found == expected, "batches of {batch}, out of order");
}

#[test]
fn priorities_and_times_keep_their_order_however_they_come() {
    let cluster = cluster("lanes-order");
    let mut client = cluster.connect();
    for (round, batch) in [1, 7, 300, 5000].into_iter().enumerate() {
        // Past the size of a lane, in every order, some of them due only in a moment.
        run(
            &mut client,
            &format!(
                "SELECT setseed(0.{round}1);
                 INSERT INTO queue.tasks (queue, priority, run_at)
                 SELECT 'default', (random() * 6)::int - 3, clock_timestamp() + (random() - 0.8) * interval '1 second'
                 FROM generate_series(1, 3000);
                 SELECT count(queue.push('default', priority => (random() * 6)::int - 3,
                                         delay => random() * interval '500 ms')) FROM generate_series(1, 1000)"
            ),
        );
        claim(&mut client, "default", 1);
        eventually("all are due", SOON, || {
            count(&mut client, "SELECT count(*) FROM queue.tasks WHERE run_at > clock_timestamp()") == 0
        });
        in_order(&mut client, "default", batch);
        run(&mut client, "DELETE FROM queue.tasks");
    }
}

#[test]
fn ten_thousand_tasks_of_one_instant_come_due_in_order() {
    let cluster = cluster("lanes-instant");
    let mut client = cluster.connect();
    run(
        &mut client,
        "INSERT INTO queue.tasks (queue, run_at, priority)
         SELECT 'default', clock_timestamp() + '1 day', n % 3 FROM generate_series(1, 100) AS n;
         SELECT count(*) FROM queue.claim()",
    );
    let left = "SELECT (extract(epoch FROM min(run_at) - clock_timestamp()) * 1e6)::bigint FROM queue.tasks";
    // As far ahead as this machine needs to have them all before.
    let in_time = [2, 8, 30].into_iter().any(|seconds| {
        run(
            &mut client,
            &format!(
                "DELETE FROM queue.tasks WHERE run_at < now() + interval '1 hour';
                 INSERT INTO queue.tasks (queue, run_at, priority)
                 SELECT 'default', t, n % 3
                 FROM (SELECT clock_timestamp() + '{seconds} seconds' AS t) AS t, generate_series(1, 10000) AS n"
            ),
        );
        count(&mut client, left) > 1_000_000
    });
    assert!(in_time);
    let waiter = wait_for(&cluster, "default");
    let due = Instant::now() + Duration::from_micros(count(&mut client, left).max(0) as u64);
    let (ready, at) = waiter.join().expect("the waiter");
    assert!(ready && at + Duration::from_millis(5) >= due);
    assert!(stalls::took(due, at) < WOKEN, "{:?} late", stalls::took(due, at));
    in_order(&mut client, "default", 37);
    assert_eq!(count(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'running'"), 10_000);
}

#[test]
fn without_a_worker_maintain_finds_what_no_session_announced() {
    let extra = "queue.sweep_interval = '1s'\nqueue.worker_enabled = off";
    let cluster = Cluster::start_with("lane-maintain", &Settings { preload: true, extra });
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext");
    let claimed = "SELECT count(*) FROM queue.claim()";
    assert_eq!(client.query_one(claimed, &[]).expect("claim").get::<_, i64>(0), 0);
    run(
        &mut client,
        "BEGIN; ALTER TABLE queue.tasks DISABLE TRIGGER tasks_announced; INSERT INTO queue.tasks (queue) VALUES ('default');
         ALTER TABLE queue.tasks ENABLE ALWAYS TRIGGER tasks_announced; COMMIT",
    );
    run(&mut client, "CALL queue.maintain()");
    assert_eq!(client.query_one(claimed, &[]).expect("claim").get::<_, i64>(0), 1);
}
