//! Lost events of one queue, while another queue has very many rows that the sweep reads.

use std::time::Duration;

use queue_ext_tests::{Edition, SOON, Worker, eventually, number, run};

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

/// A session keeps a plan that it made while the table of events was empty. The sweep finds that a task has no event with
/// it, also when the queue of the task has very many events of groups.
#[test]
fn a_sweep_planned_without_events_does_not_read_those_of_a_full_queue() {
    let cluster = Edition::FastPath.cluster("events-plans", Worker::Off);
    let mut client = cluster.connect();
    Edition::FastPath.install(&cluster, "postgres");
    run(
        &mut client,
        "SELECT queue.create('a');
         INSERT INTO queue_internal.events (queue, group_key) SELECT 'a', 'g' FROM generate_series(1, 20000);
         ANALYZE queue_internal.events;
         DELETE FROM queue_internal.events",
    );
    // Its index looks cheapest now: it has no pages to descend through.
    run(&mut client, "VACUUM queue_internal.events");
    run(&mut client, "REINDEX INDEX queue_internal.events_pkey");
    let dependent = "SELECT queue.push('a', after => ARRAY[queue.push('a')])";
    let suspended = "SELECT c.id FROM queue.claim('1 hour', 'a') AS c
                     WHERE NOT EXISTS (SELECT FROM queue.await_event(c.id, c.token, 'go'))";
    let batch = "SELECT queue.create_batch('a')";
    let mut waiting =
        [dependent, suspended, batch].map(|push| client.query_one(push, &[]).expect(push).get::<_, i64>(0));
    waiting.sort();
    client
        .execute("SELECT queue.push('a', batch => $1), queue.seal_batch($1)", &[&waiting[2]])
        .expect("a batch");
    run(
        &mut client,
        "UPDATE queue_internal.dependencies SET outcome = 'completed'; SELECT queue.emit('a', 'go')",
    );
    let found = |client: &mut postgres::Client| {
        let mut transaction = client.transaction().expect("begin");
        transaction
            .batch_execute("DELETE FROM queue_internal.events WHERE task_id IS NOT NULL")
            .expect("lose");
        let entries = "SELECT pg_stat_get_xact_tuples_returned('queue_internal.events_pkey'::regclass)";
        let before: i64 = transaction.query_one(entries, &[]).expect("count").get(0);
        let sweep =
            "SELECT queue_internal.sweep_dependencies(NULL, NULL, 9), queue_internal.sweep_awaits(NULL, 9),
                            queue_internal.sweep_batches(NULL, 9)";
        transaction.execute(sweep, &[]).expect("sweep");
        let read = transaction.query_one(entries, &[]).expect("count").get::<_, i64>(0) - before;
        let found = "SELECT array_agg(DISTINCT task_id ORDER BY task_id) FROM queue_internal.events WHERE task_id IS NOT NULL";
        let found: Vec<i64> = transaction.query_one(found, &[]).expect("events").get(0);
        transaction.commit().expect("commit");
        assert_eq!(found, waiting);
        read
    };
    // After five times, the plan stays.
    for _ in 0..8 {
        run(&mut client, "DELETE FROM queue_internal.events");
        run(&mut client, "VACUUM queue_internal.events");
        found(&mut client);
    }
    run(
        &mut client,
        "INSERT INTO queue_internal.events (queue, group_key) SELECT 'a', 'g' FROM generate_series(1, 5000)",
    );
    let read = found(&mut client);
    assert!(read < 100, "a sweep for three tasks read {read} events of a group");
}

/// Whether a predecessor has failed is asked for each event of a waiting task, while claims disable sorting.
#[test]
fn an_event_of_a_waiting_task_does_not_read_the_dependencies_of_all_others() {
    let cluster = Edition::FastPath.cluster("events-dependencies", Worker::Off);
    let mut client = cluster.connect();
    Edition::FastPath.install(&cluster, "postgres");
    run(
        &mut client,
        "SELECT queue.create('a'), queue.create('b'), queue.push('a');
         INSERT INTO queue.tasks (queue, state, admission) SELECT 'a', 'waiting', 2 FROM generate_series(1, 20000) AS n;
         INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
         SELECT min(id) OVER (), id, 'fail' FROM queue.tasks WHERE queue = 'a' AND state = 'waiting';
         ANALYZE queue_internal.dependencies;
         SELECT queue.push('b', after => ARRAY[queue.push('b')])",
    );
    let done = "SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'b')";
    client.execute(done, &[]).expect("the predecessor");
    // Claims by SQL disable sorting.
    run(&mut client, "SET queue.fast_path = off");
    let mut pages = || {
        run(&mut client, "SELECT pg_stat_force_next_flush()");
        let query = "SELECT pg_stat_get_blocks_fetched('queue_internal.dependencies_pkey'::regclass)";
        (number(&mut client, query), client.execute(done, &[]).expect("the waiting task"))
    };
    let (before, done) = pages();
    assert_eq!(done, 1);
    let read = pages().0 - before;
    assert!(read < 20, "a claim of one task read {read} pages of the dependencies");
}

/// What a transaction has locked and let go, by a rollback, looks as if it was still locked (next_event.sql).
#[test]
fn a_claim_does_not_read_events_that_somebody_had_locked_again_for_each_of_them() {
    const EVENTS: i64 = 5000;
    let cluster = Edition::FastPath.cluster("events-locked", Worker::Off);
    let mut client = cluster.connect();
    Edition::FastPath.install(&cluster, "postgres");
    run(&mut client, "SET queue.fast_path = off");
    let mut read = |queue: &str, meanwhile: &str| {
        let prepare = format!(
            "SELECT queue.create('{queue}'), queue.push('{queue}', group_key => 'x');
             SELECT count(*) FROM queue.claim('1 hour', '{queue}');
             INSERT INTO queue_internal.events (queue, group_key) SELECT '{queue}', 'y' || n FROM generate_series(1, {EVENTS}) AS n"
        );
        run(&mut client, &prepare);
        run(&mut client, meanwhile);
        let mut transaction = client.transaction().expect("begin");
        let entries = |transaction: &mut postgres::Transaction| -> i64 {
            transaction.query_one("SELECT queue_internal.entries_passed()", &[]).expect("count").get(0)
        };
        let before = entries(&mut transaction);
        transaction.execute("SELECT queue.claim('1 hour', $1)", &[&queue]).expect("claim");
        let read = entries(&mut transaction) - before;
        transaction.commit().expect("commit");
        read
    };
    let never = read("never", "");
    let once = read(
        "once",
        "BEGIN; SELECT count(*) FROM (SELECT FROM queue_internal.events FOR UPDATE) AS e; ROLLBACK",
    );
    println!("never locked: {never} entries, locked once: {once}");
    // Each of the sixteen times that a claim processes events, it reads them once or twice.
    assert!(once < 50 * EVENTS, "{once} entries of the index read, for {EVENTS} events");
}
