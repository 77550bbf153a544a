//! Claims and pushes that are rolled back, wholly or in part, at once or after PREPARE.

use super::*;

#[test]
fn tasks_of_a_claim_return_when_it_rolls_back() {
    let cluster = cluster("lanes-rollback");
    let (mut one, mut other) = (cluster.connect(), cluster.connect());
    let ids = push(&mut one, "default", 10);

    run(&mut one, "BEGIN");
    assert_eq!(claim(&mut one, "default", 5), ids[..5]);
    assert_eq!(claim(&mut other, "default", 2), ids[5..7], "others get what comes next");
    run(&mut one, "ROLLBACK");
    assert_eq!(claim(&mut other, "default", 100), [&ids[..5], &ids[7..]].concat(), "in their old places");

    // To a savepoint: only the claims since then.
    let ids = push(&mut one, "default", 6);
    run(&mut one, "BEGIN");
    assert_eq!(claim(&mut one, "default", 2), ids[..2]);
    run(&mut one, "SAVEPOINT outer_one");
    assert_eq!(claim(&mut one, "default", 1), ids[2..3]);
    run(&mut one, "SAVEPOINT inner_one");
    assert_eq!(claim(&mut one, "default", 1), ids[3..4]);
    run(&mut one, "RELEASE inner_one; ROLLBACK TO outer_one");
    assert_eq!(claim(&mut other, "default", 3), ids[2..5]);
    assert_eq!(claim(&mut one, "default", 1), ids[5..6]);
    run(&mut one, "COMMIT");
    assert_eq!(claim(&mut other, "default", 10), NONE);
    let complete =
        "SELECT count(*) FROM queue.complete_many($1::bigint[], array_fill(1, ARRAY[cardinality($1)]))";
    let mine = vec![ids[0], ids[1], ids[5]];
    assert_eq!(one.query_one(complete, &[&mine]).expect("complete").get::<_, i64>(0), 3);

    // In a block with an exception handler.
    let ids = push(&mut one, "default", 3);
    run(
        &mut one,
        "DO $$ BEGIN
             BEGIN PERFORM queue.claim('1 hour', max_tasks => 2); RAISE division_by_zero;
             EXCEPTION WHEN division_by_zero THEN NULL; END;
         END $$",
    );
    assert_eq!(claim(&mut other, "default", 10), ids);
    assert!(served(&mut one) >= 15, "all of this is native: {}", stats(&mut one));
}

#[test]
fn a_claim_that_rolls_back_leaves_the_lease_that_another_session_gave_meanwhile() {
    // Without the worker, so that only claims end expired leases.
    let extra = "queue.sweep_interval = '1h'\nqueue.worker_enabled = off";
    let cluster = Cluster::start_with("lanes-rollback-lease", &Settings { preload: true, extra });
    let (mut one, mut other) = (cluster.connect(), cluster.connect());
    run(&mut one, "CREATE EXTENSION queue_ext");
    let ids = push(&mut one, "default", 1);
    run(&mut other, "SELECT queue.claim('10 milliseconds')");
    let over = "SELECT count(*) FROM queue.tasks WHERE lease_until < clock_timestamp()";
    eventually("the lease is over", SOON, || count(&mut one, over) == 1);
    run(&mut other, &format!("BEGIN; SELECT queue.extend({}, 1, '4 seconds')", ids[0]));
    // It sees that the lease is over and cannot end it.
    run(&mut one, "BEGIN");
    assert_eq!(claim(&mut one, "default", 1), NONE);
    run(&mut other, "COMMIT");
    run(&mut one, "ROLLBACK");
    assert_eq!(claim(&mut one, "default", 1), NONE, "it was extended");
    eventually("the extended lease is over", SOON, || count(&mut one, over) == 1);
    assert_eq!(claim(&mut one, "default", 1), ids);
}

#[test]
fn a_push_that_rolls_back_leaves_nothing_in_the_lane() {
    let cluster = cluster("lanes-unpushed");
    let (mut one, mut other) = (cluster.connect(), cluster.connect());
    assert_eq!(claim(&mut other, "default", 1), NONE);
    run(&mut one, "BEGIN");
    push(&mut one, "default", 3);
    assert_eq!(claim(&mut other, "default", 1), NONE, "not before it is committed");
    run(&mut one, "ROLLBACK");
    assert_eq!(claim(&mut other, "default", 1), NONE);

    run(&mut one, "BEGIN");
    let kept = push(&mut one, "default", 1);
    run(&mut one, "SAVEPOINT s");
    push(&mut one, "default", 1);
    run(&mut one, "ROLLBACK TO s");
    let later = push(&mut one, "default", 1);
    run(&mut one, "COMMIT");
    assert_eq!(claim(&mut other, "default", 10), [kept, later].concat());

    // A transaction claims a task that it pushed itself; a rollback undoes both.
    run(&mut one, "BEGIN");
    let own = push(&mut one, "default", 2);
    assert_eq!(claim(&mut one, "default", 10), own);
    run(&mut one, "ROLLBACK");
    assert_eq!(claim(&mut other, "default", 10), NONE);
    assert_eq!(count(&mut one, "SELECT count(*) FROM queue.tasks WHERE state = 'queued'"), 0);
}

#[test]
fn a_candidate_changed_by_its_own_transaction_returns_when_that_rolls_back() {
    let cluster = cluster("lanes-spoiled");
    let (mut one, mut other) = (cluster.connect(), cluster.connect());
    for spoil in [
        "DELETE FROM queue.tasks WHERE state = 'queued'",
        "SELECT queue.cancel(id) FROM queue.tasks WHERE state = 'queued'",
        "UPDATE queue.tasks SET run_at = '2100-01-01' WHERE state = 'queued'",
        "UPDATE queue.tasks SET state = 'running', lease_until = '2100-01-01' WHERE state = 'queued'",
    ] {
        let ids = push(&mut one, "default", 3);
        run(&mut one, &format!("BEGIN; SAVEPOINT s; {spoil}"));
        assert_eq!(claim(&mut one, "default", 10), NONE, "{spoil}");
        run(&mut one, "ROLLBACK TO s");
        assert_eq!(claim(&mut other, "default", 10), ids, "{spoil}");
        run(&mut one, "ROLLBACK");
    }
    // Locked by the claiming transaction itself: that is no reason to pass it by.
    let ids = push(&mut one, "default", 2);
    run(&mut one, "BEGIN; SELECT FROM queue.tasks WHERE state = 'queued' FOR UPDATE");
    assert_eq!(claim(&mut other, "default", 10), NONE, "others pass it by");
    assert_eq!(claim(&mut one, "default", 10), ids);
    run(&mut one, "COMMIT");

    // A lease that was never given does not make a task due.
    run(&mut one, "SELECT queue.push('default', delay => '1 day')");
    run(
        &mut one,
        "BEGIN; UPDATE queue.tasks SET state = 'running', lease_until = '2100-01-01' WHERE state = 'queued'; ROLLBACK",
    );
    assert_eq!(claim(&mut other, "default", 10), NONE);
}

#[test]
fn an_expired_lease_that_could_not_be_ended_is_kept() {
    let cluster = cluster("lanes-expired");
    // The worker would be quicker.
    run(&mut cluster.connect(), "ALTER SYSTEM SET queue.worker_enabled = off");
    run(&mut cluster.connect(), "SELECT pg_reload_conf()");
    eventually("the worker leaves", SOON, || stats(&mut cluster.connect())["worker"].is_null());
    let (mut one, mut other) = (cluster.connect(), cluster.connect());
    let ids = push(&mut one, "default", 3);
    assert_eq!(claim(&mut one, "default", 1), ids[..1]);
    run(&mut one, "SELECT queue.claim('1 us', max_tasks => 2)");
    for end in ["ROLLBACK", "ROLLBACK TO s"] {
        run(&mut one, "BEGIN; SAVEPOINT s");
        assert_eq!(claim(&mut one, "default", 10), ids[1..]);
        run(&mut one, end);
    }
    // Locked by a session that then changes nothing.
    run(&mut one, "COMMIT; BEGIN; SELECT FROM queue.tasks FOR UPDATE");
    assert_eq!(claim(&mut other, "default", 10), NONE);
    run(&mut one, "ROLLBACK");
    let mut found = Vec::new();
    eventually("they are claimed again", SOON, || {
        found.extend(claim(&mut other, "default", 10));
        found.len() == 2
    });
    found.sort_unstable();
    assert_eq!(found, ids[1..]);
}

#[test]
fn a_returned_task_wakes_a_waiting_session() {
    let cluster = cluster("lanes-woken");
    let mut one = cluster.connect();
    let ids = push(&mut one, "default", 1);
    for end in ["ROLLBACK", "ROLLBACK TO s"] {
        run(&mut one, "BEGIN; SAVEPOINT s");
        assert_eq!(claim(&mut one, "default", 1), ids);
        wakes(&cluster, "default", end, || run(&mut one, end));
        run(&mut one, "ROLLBACK");
    }
    // Also when the session is simply gone.
    let mut gone = cluster.connect();
    run(&mut gone, "BEGIN");
    assert_eq!(claim(&mut gone, "default", 1), ids);
    wakes(&cluster, "default", "gone", || drop(gone));
    assert_eq!(claim(&mut one, "default", 1), ids);
}

#[test]
fn prepared_transactions_are_published_to_lanes() {
    let mut cluster = cluster("lanes-two-phases");
    let (mut one, mut other) = (cluster.connect(), cluster.connect());
    let ids = push(&mut one, "default", 4);
    run(&mut one, "BEGIN");
    assert_eq!(claim(&mut one, "default", 2), ids[..2]);
    let pushed = push(&mut one, "default", 1);
    run(&mut one, "PREPARE TRANSACTION 'kept'; BEGIN");
    assert_eq!(claim(&mut one, "default", 1), ids[2..3]);
    push(&mut one, "default", 1);
    run(&mut one, "PREPARE TRANSACTION 'undone'");
    assert_eq!(claim(&mut other, "default", 10), ids[3..], "what is prepared is in nobody's reach");
    run(&mut other, "ROLLBACK PREPARED 'undone'");
    assert_eq!(claim(&mut one, "default", 10), ids[2..3]);
    run(&mut other, "COMMIT PREPARED 'kept'");
    assert_eq!(claim(&mut one, "default", 10), pushed);
    run(&mut one, "BEGIN");
    let pushed = push(&mut one, "default", 1);
    run(&mut one, "PREPARE TRANSACTION 'pushed'");
    wakes(&cluster, "default", "COMMIT PREPARED", || run(&mut other, "COMMIT PREPARED 'pushed'"));
    assert_eq!(claim(&mut one, "default", 10), pushed);

    // Prepared before a restart and ended after it; the lease runs on meanwhile.
    let ids = push(&mut one, "default", 2);
    run(&mut one, "BEGIN; SELECT queue.claim('200 ms'); PREPARE TRANSACTION 'leased'; BEGIN");
    let pushed = push(&mut one, "default", 1);
    run(&mut one, "PREPARE TRANSACTION 'pushed'");
    cluster.stop("immediate");
    cluster.launch();
    let mut one = cluster.connect();
    assert_eq!(claim(&mut one, "default", 10), ids[1..]);
    run(&mut one, "COMMIT PREPARED 'pushed'");
    assert_eq!(claim(&mut one, "default", 10), pushed);
    run(&mut one, "COMMIT PREPARED 'leased'");
    eventually("its lease runs out", SOON, || claim(&mut one, "default", 10) == ids[..1]);
}
