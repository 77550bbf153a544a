//! After a slow check for events, SQL checks for a while, because it knows where to start.

use std::time::{Duration, Instant};

use queue_ext_tests::eventually;

use super::{SOON, cluster, ids, number, run, send_the_worker_away, telling};

#[test]
fn after_a_slow_check_for_events_sql_checks_for_a_while() {
    let Some(cluster) = cluster("injection-events") else { return };
    let mut other = cluster.connect();
    send_the_worker_away(&mut other);
    run(&mut other, "SELECT queue.create('q')");
    let (mut one, said) = telling(&cluster);
    // Claims a task for which there is an event. Returns whether the claim checked for events natively.
    let mut claims = |fault: &str| {
        let id = number(&mut other, "SELECT queue.push('q', group_key => 'g')");
        run(&mut one, &format!("SET queue.fault_at = EventsSought; SET queue.fault = {fault}"));
        run(&mut one, "BEGIN");
        assert_eq!(ids(&mut one, "SELECT id FROM queue.claim('1 hour', 'q')"), [id].into());
        run(&mut one, &format!("SELECT queue.complete({id}, 1); COMMIT"));
        said.try_iter().any(|point| point == "EventsSought")
    };
    assert!(claims("tell"), "a native claim looks");

    let before = Instant::now();
    claims("linger");
    // For twenty times as long as the check took, of which the fault is 20 ms.
    eventually("claims look again", SOON, || claims("tell"));
    assert!(before.elapsed() >= Duration::from_millis(400), "not before: {:?}", before.elapsed());
}
