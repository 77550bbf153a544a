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
        assert_eq!(claim(client, "default", 10).len(), 1, "{what}");
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
    run(&mut one, "SELECT queue.create('q', jsonb_build_object('max_running_per_group', 3))");
    let pushed = one.query("SELECT queue.push('q', group_key => 'g') FROM generate_series(1, 3)", &[]);
    let ids: Vec<i64> = pushed.expect("push").iter().map(|row| row.get(0)).collect();
    // The worker may be about to admit them, and a claim does not wait for it.
    let mut first = Vec::new();
    eventually("the first is claimed", SOON, || {
        first = claim(&mut other, "q", 1);
        !first.is_empty()
    });
    assert_eq!(first, ids[..1]);
    // The second claim is native, and refills the lane.
    assert_eq!(claim(&mut other, "q", 1), ids[1..2]);
    let candidates = |client: &mut Client| stats(client)["lanes"]["q"]["ready"].as_i64();
    assert_eq!(candidates(&mut one), Some(1));
    let mut limit = |limit: i32, admission: i64| {
        run(
            &mut one,
            &format!("SELECT queue.configure('q', jsonb_build_object('max_running_per_group', {limit}))"),
        );
        eventually("the group is looked at", SOON, || {
            count(&mut one, &format!("SELECT admission::bigint FROM queue.tasks WHERE id = {}", ids[2]))
                == admission
        });
    };
    // It stays: if the lane forgot it now, a later admission that is published first would be forgotten with it.
    limit(2, 2);
    assert_eq!(candidates(&mut other), Some(1));
    assert_eq!(claim(&mut other, "q", 1), NONE);
    assert_eq!(candidates(&mut other), Some(0));
    limit(3, 1);
    assert_eq!(claim(&mut other, "q", 1), ids[2..]);
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
         SELECT count(*) FROM queue.claim();
         INSERT INTO queue.tasks (queue, run_at, priority)
         SELECT 'default', t, n % 3 FROM (SELECT clock_timestamp() + '2 seconds' AS t) AS t, generate_series(1, 10000) AS n",
    );
    let waiter = wait_for(&cluster, "default");
    let due: i64 = count(
        &mut client,
        "SELECT (extract(epoch FROM min(run_at) - clock_timestamp()) * 1e6)::bigint FROM queue.tasks",
    );
    let due = Instant::now() + Duration::from_micros(due.max(0) as u64);
    let (ready, at) = waiter.join().expect("the waiter");
    assert!(ready && at + Duration::from_millis(5) >= due && at < due + Duration::from_secs(1));
    in_order(&mut client, "default", 37);
    assert_eq!(count(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'running'"), 10_000);
}
