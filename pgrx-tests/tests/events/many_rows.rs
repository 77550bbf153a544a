//! Lost events of one queue, while another queue has very many rows that the sweep reads.

use std::time::Duration;

use queue_ext_tests::{Edition, SOON, eventually, number, run};

use super::{SWEEP, cluster, excused, excuses};

/// The longest delay of a task of b without an event, while queue a has so many rows.
fn late_beside(name: &str, much: &str) -> Duration {
    let cluster = cluster(Edition::FastPath, name);
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.create('a'), queue.create('b')");
    run(&mut client, much);
    let admitted = "SELECT count(*) FROM queue.tasks WHERE queue = 'b' AND admission = 1";
    let mut worst = Duration::ZERO;
    for group in 0..4 {
        run(
            &mut client,
            &format!(
                "DO $$ BEGIN
                     PERFORM queue.push('b', group_key => 'g{group}');
                     DELETE FROM queue_internal.events WHERE queue = 'b';
                 END $$"
            ),
        );
        let excuses = excuses(&mut client);
        let late = eventually("it goes on", SOON, || number(&mut client, admitted) == group + 1);
        let late = excused(late, &excuses);
        println!("{name}: {late:?}");
        worst = worst.max(late);
    }
    worst
}

#[test]
fn keys_of_one_queue_do_not_delay_lost_events_of_another() {
    let late = late_beside(
        "keys",
        "SELECT queue.push('a');
         INSERT INTO queue_internal.keys (queue, key, task_id)
         SELECT t.queue, n::text, t.id FROM queue.tasks AS t, generate_series(1, 300000) AS n",
    );
    assert!(late < SWEEP + Duration::from_secs(1), "{late:?}");
}

#[test]
fn groups_of_one_queue_do_not_delay_lost_events_of_another() {
    let late = late_beside(
        "groups",
        "INSERT INTO queue.tasks (queue, group_key, admission) SELECT 'a', n::text, 1 FROM generate_series(1, 100000) AS n",
    );
    assert!(late < SWEEP + Duration::from_secs(1), "{late:?}");
}

#[test]
fn dependencies_of_one_queue_do_not_delay_lost_events_of_another() {
    let late = late_beside(
        "many-dependencies",
        "SELECT queue.push('a');
         INSERT INTO queue.tasks (queue, state, admission) SELECT 'a', 'waiting', 2 FROM generate_series(1, 200000) AS n;
         INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
         SELECT min(id) OVER (), id, 'fail' FROM queue.tasks WHERE queue = 'a' AND state = 'waiting'",
    );
    assert!(late < SWEEP + Duration::from_secs(1), "{late:?}");
}
