//! Transactions that change more than the library records one by one: only the queues that they changed are read again.

use super::bystander::server;
use super::*;
use queue_ext_tests::counters_agree;

/// Claims up to so many tasks of each of the queues m1 to m10; returns how many there were.
fn claim_each(client: &mut Client, most: i32) -> i64 {
    let query = format!(
        "SELECT count(*) FROM (SELECT (queue.claim('1 hour', 'm' || n, {most})).id FROM generate_series(1, 10) AS n) AS c"
    );
    number(client, &query)
}

#[test]
fn more_changes_than_a_transaction_records_have_only_its_own_queues_read_again() {
    let (_cluster, mut client, mut b) = server("changes");
    // From here on each of the queues has a lane.
    assert_eq!(claim_each(&mut client, 1), 0);
    let push = "SELECT count(queue.push('m' || 1 + n % 10)) FROM generate_series(1, 2200) AS n";
    for end in ["ROLLBACK", "COMMIT"] {
        run(&mut client, &format!("BEGIN; {push}; {end}"));
        b.is_left_alone(&mut client, end);
    }
    assert_eq!(claim_each(&mut client, 500), 2200);
    b.is_left_alone(&mut client, "the claims");
}

#[test]
fn more_times_than_a_transaction_records_have_only_its_own_queue_counted_again() {
    let (_cluster, mut client, mut b) = server("times");
    let tasks = "INSERT INTO queue.tasks (queue, run_at)
                 SELECT 'a', now() + n * interval '1 hour' FROM generate_series(1, 600) AS n";
    let history =
        "INSERT INTO queue.history (id, queue, state, priority, run_at, attempt, token, created_at, finished_at, payload)
         SELECT 1000000 + n, 'a', 'completed', 0, now(), 1, 1, now(), now() - n * interval '1 minute' - interval '30 seconds', '1'
         FROM generate_series(1, 600) AS n";
    let push = "SELECT queue.push('b', priority => 1)";
    for (what, statements) in [
        ("the tasks", tasks.to_owned()),
        ("the history", history.to_owned()),
        // The few changes of b are counted, before and after the others.
        ("changes of b as well", format!("{push}; {tasks}; {push}")),
    ] {
        run(&mut client, &format!("BEGIN; {statements}; COMMIT"));
        b.is_left_alone(&mut client, what);
        counters_agree(&mut client);
    }
}

#[test]
fn a_rollback_after_refills_has_only_the_refilled_lanes_read_again() {
    let (_cluster, mut client, mut b) = server("refills");
    run(&mut client, "SELECT queue.push('m' || n), queue.push('m' || n) FROM generate_series(1, 10) AS n");
    // By SQL, so that the queues have no lanes yet.
    run(&mut client, "SET queue.fast_path = off");
    assert_eq!(claim_each(&mut client, 1), 10);
    run(&mut client, "RESET queue.fast_path; BEGIN");
    run(
        &mut client,
        "SELECT queue.complete(id, token) FROM queue.tasks WHERE queue LIKE 'm%' AND state = 'running'",
    );
    assert_eq!(claim_each(&mut client, 1), 10);
    run(&mut client, "ROLLBACK");
    b.is_left_alone(&mut client, "the rollback");
    assert_eq!(claim_each(&mut client, 10), 10);
}
