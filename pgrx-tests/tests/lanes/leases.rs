//! Leases that expire while no session claims: the worker requeues their tasks in time, however many there are and
//! whatever happens to their lane.

use super::*;

/// Waits for the task to be queued again after its lease of so long; fails if that is late.
fn is_back(client: &mut Client, id: i64, lease: Duration) {
    let query = format!("SELECT count(*) FROM queue.tasks WHERE id = {id} AND state = 'queued'");
    eventually("the task is back", lease + WOKEN, || count(client, &query) == 1);
}

#[test]
fn a_short_lease_among_thousands_of_long_ones_ends_in_time() {
    let cluster = cluster("lanes-short-lease");
    let mut client = cluster.connect();
    push(&mut client, "default", 6000);
    assert_eq!(claim(&mut client, "default", 6000).len(), 6000);
    // Wherever it is in the order.
    for priority in [0, -1, 1] {
        run(&mut client, &format!("SELECT queue.push('default', priority => {priority})"));
        let id = count(&mut client, "SELECT id FROM queue.claim('1 second')");
        is_back(&mut client, id, Duration::from_secs(1));
        run(&mut client, &format!("DELETE FROM queue.tasks WHERE id = {id}"));
    }
    // And thousands that end together.
    run(&mut client, "UPDATE queue.tasks SET lease_until = clock_timestamp() + interval '1 second'");
    let back = "SELECT count(*) FROM queue.tasks WHERE state = 'queued'";
    eventually("all are back", SOON, || count(&mut client, back) == 6000);
}

/// A refill of the lane ends with the backlog, and does not reach the running tasks after it.
#[test]
fn leases_behind_a_long_backlog_end_in_time() {
    let cluster = cluster("lanes-leases-behind");
    let mut client = cluster.connect();
    run(&mut client, "SELECT count(queue.push('default', priority => 5)) FROM generate_series(1, 6000)");
    assert_eq!(count(&mut client, "SELECT count(*) FROM queue.claim('4 seconds', max_tasks => 6000)"), 6000);
    push(&mut client, "default", 3000);
    run(&mut client, "BEGIN; SELECT queue.push('default'); PREPARE TRANSACTION 'x'");
    run(&mut client, "ROLLBACK PREPARED 'x'");
    assert_eq!(claim(&mut client, "default", 1).len(), 1);
    let back = "SELECT count(*) FROM queue.tasks WHERE priority = 5 AND state = 'queued'";
    eventually("all are back", SOON, || count(&mut client, back) == 6000);
}

#[test]
fn leases_that_ended_while_their_transaction_was_prepared_are_ended_at_once_when_it_is_committed() {
    let cluster = cluster("lanes-leases-prepared");
    let mut client = cluster.connect();
    // Some of them are more than a transaction records.
    push(&mut client, "default", 3000);
    run(
        &mut client,
        "BEGIN; SELECT count(*) FROM queue.claim('200 ms', max_tasks => 3000); PREPARE TRANSACTION 'late'",
    );
    let over =
        "SELECT count(*) FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - interval '1 second'";
    eventually("the leases are over", SOON, || count(&mut client, over) == 1);
    run(&mut client, "COMMIT PREPARED 'late'");
    let back = "SELECT count(*) FROM queue.tasks WHERE state = 'queued'";
    // By itself the worker scans once a minute.
    eventually("all are back", Duration::from_secs(30), || count(&mut client, back) == 3000);
}

#[test]
fn a_lane_that_is_given_to_another_queue_leaves_its_leases_to_the_worker() {
    let cluster = with_settings("lanes-handed-on", "queue.lanes = 2\nqueue.sweep_interval = '1h'");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.create('limited', '{\"max_running\": 5}'); SELECT queue.push('limited')");
    // Reading the counters gives both queues a lane, which no claim uses yet.
    run(&mut client, "SELECT FROM queue.stats");
    assert_eq!(stats(&mut client)["lanes"].as_object().map(serde_json::Map::len), Some(2));
    let id = count(&mut client, "SELECT id FROM queue.claim('3 seconds', 'limited')");
    for queue in ["third", "fourth"] {
        run(&mut client, &format!("SELECT queue.create('{queue}')"));
        assert_eq!(claim(&mut client, queue, 1), NONE);
    }
    assert_eq!(stats(&mut client)["lanes"]["limited"], serde_json::Value::Null, "its lane is taken");
    is_back(&mut client, id, Duration::from_secs(3));
}

/// A session that waits for the refill of another one is no lock's waiter, and so no deadlock is noticed.
#[test]
fn a_claim_does_not_wait_for_a_refill_that_waits_for_it() {
    let cluster = cluster("lanes-refill-waits");
    let (mut one, mut other, mut owner) = (cluster.connect(), cluster.connect(), cluster.connect());
    for client in [&mut one, &mut other] {
        push(client, "default", 3);
        assert_eq!(claim(client, "default", 1).len(), 1);
        // If it does.
        run(client, "SET statement_timeout = '30s'");
    }
    run(&mut one, "BEGIN");
    // Which locks the indexes until the end.
    assert_eq!(count(&mut one, "SELECT count(*) FROM queue.tasks WHERE state = 'queued'"), 4);
    let waits = |pid: i32| format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted");
    let pid = |client: &mut Client| client.query_one("SELECT pg_backend_pid()", &[]).expect("pid").get(0);
    let (other_pid, owner_pid) = (pid(&mut other), pid(&mut owner));
    let mut watcher = cluster.connect();
    // The lane has to be refilled.
    run(&mut watcher, "BEGIN; SELECT queue.push('default'); PREPARE TRANSACTION 'x'");
    run(&mut watcher, "ROLLBACK PREPARED 'x'");
    let altering = std::thread::spawn(move || {
        run(&mut owner, "ALTER INDEX queue.tasks_order SET TABLESPACE pg_default");
    });
    eventually("the owner waits", SOON, || count(&mut watcher, &waits(owner_pid)) == 1);
    let refilling = std::thread::spawn(move || {
        claim(&mut other, "default", 1);
    });
    eventually("the other one refills and waits", SOON, || count(&mut watcher, &waits(other_pid)) == 1);
    assert_eq!(claim(&mut one, "default", 1).len(), 1, "by the core");
    run(&mut one, "COMMIT");
    altering.join().expect("the owner");
    refilling.join().expect("the other one");
}
