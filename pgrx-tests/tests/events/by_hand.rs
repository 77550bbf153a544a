//! Rows that were deleted, inserted or never created by hand, so that no event reports the change.

use std::time::{Duration, Instant};

use postgres::Client;
use queue_ext_tests::{Cluster, Edition, SOON, Settings, eventually, number, run, stalls};

use super::dependents::{END, WAITING, without_worker};
use super::{SWEEP, cluster};

/// No client claims or calls queue.maintain().
#[test]
fn the_worker_notices_that_the_head_of_a_group_or_a_predecessor_was_deleted_by_hand() {
    for edition in Edition::different().iter().copied().filter(|edition| *edition != Edition::SqlOnly) {
        let cluster = cluster(edition, "by-hand");
        let mut client = cluster.connect();
        run(
            &mut client,
            "SELECT queue.create('running'), queue.create('admitted'), queue.create('first'), queue.create('then');
             SELECT queue.push(q, to_jsonb(n), group_key => 'g') FROM unnest('{running,admitted}'::text[]) AS q, generate_series(1, 3) AS n;
             SELECT queue.claim('1 hour', 'running');
             SELECT queue.push('first');
             SELECT queue.push('then', to_jsonb(way), after => ARRAY[id], on_predecessor_failure => way)
             FROM queue.tasks, unnest('{continue,fail,cancel}'::text[]) AS way WHERE queue = 'first'",
        );
        let admitted = "SELECT string_agg(queue || ' ' || payload, ', ' ORDER BY queue) FROM queue.tasks
                        WHERE group_key = 'g' AND admission = 1 AND state = 'queued'";
        let admits = |expected: &str, client: &mut Client| {
            eventually(expected, SOON, || {
                let came: Option<String> = client.query_one(admitted, &[]).expect("look").get(0);
                came.as_deref() == Some(expected)
            });
        };
        admits("admitted 1", &mut client);
        run(
            &mut client,
            "DELETE FROM queue.tasks WHERE group_key = 'g' AND payload = '1' OR queue = 'first'",
        );
        let started = Instant::now();
        admits("admitted 2, running 2", &mut client);
        let ways = "SELECT string_agg(way, ', ' ORDER BY way) FROM (
                        SELECT format('%s is %s', payload, state) FROM queue.tasks WHERE queue = 'then'
                        UNION ALL SELECT format('%s is dead', payload) FROM queue.dead_letters WHERE queue = 'then'
                        UNION ALL SELECT format('%s is %s', payload, state) FROM queue.history WHERE queue = 'then'
                    ) AS v (way)";
        let expected = "\"cancel\" is cancelled, \"continue\" is queued, \"fail\" is dead";
        eventually(expected, SOON, || {
            client.query_one(ways, &[]).expect("look").get::<_, String>(0) == expected
        });
        let took = stalls::since(started);
        println!("{}: {took:?}", edition.name());
        assert!(took < 3 * (SWEEP + Duration::from_secs(1)), "{}: after {took:?}", edition.name());
    }
}

/// Like on a subscriber that took over: the triggers did not fire for replicated rows.
#[test]
fn groups_continue_in_a_queue_whose_row_of_locks_was_never_created() {
    for edition in Edition::different().iter().copied() {
        let cluster = cluster(edition, "locks");
        let mut client = cluster.connect();
        run(&mut client, "SELECT queue.create('q'); DELETE FROM queue_internal.locks");
        run(&mut client, "SELECT queue.push('q', group_key => 'g')");
        let claim = "SELECT count(*) FROM queue.claim('1 minute', 'q')";
        eventually("the task is claimed", 3 * (SWEEP + Duration::from_secs(1)), || {
            if edition == Edition::SqlOnly {
                run(&mut client, "CALL queue.maintain()");
            }
            number(&mut client, claim) == 1
        });
    }
}

#[test]
fn the_sweep_leaves_the_key_of_a_dead_letter_that_is_put_back_meanwhile() {
    let settings = Settings { preload: true, extra: "queue.worker_enabled = off" };
    let cluster = Cluster::start_with("events-redriven", &settings);
    let mut client = cluster.connect();
    run(
        &mut client,
        "CREATE EXTENSION queue_ext;
         SELECT queue.create('q', '{\"max_attempts\": 1}'), queue.push('q', key => 'k');
         SELECT queue.fail(id, token, 'no') FROM queue.claim('1 minute', 'q')",
    );
    let dead = number(&mut client, "SELECT id FROM queue.dead_letters");
    // As if it had kept its key.
    run(
        &mut client,
        &format!("INSERT INTO queue_internal.keys (queue, key, task_id) VALUES ('q', 'k', {dead})"),
    );
    run(&mut client, "BEGIN; LOCK TABLE queue_internal.keys IN EXCLUSIVE MODE");
    run(&mut client, &format!("SELECT queue.retry({dead})"));
    std::thread::scope(|scope| {
        // It has seen that the task ended, and waits for the table before it locks the row.
        scope.spawn(|| run(&mut cluster.connect(), "SELECT queue_internal.sweep_keys(NULL, NULL, 100)"));
        let waits =
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'queue_internal.keys'::regclass";
        eventually("the sweep waits", SOON, || number(&mut client, waits) == 1);
        run(&mut client, "COMMIT");
    });
    let held = format!("SELECT count(*) FROM queue_internal.keys WHERE key = 'k' AND task_id = {dead}");
    assert_eq!(number(&mut client, &held), 1);
}

#[test]
fn dependents_without_a_task_are_not_read_again_for_each_part() {
    let (_cluster, mut client) = without_worker("no-task", 1, 3000);
    run(
        &mut client,
        "DELETE FROM queue.tasks WHERE queue = 'many' AND id IN (
             SELECT id FROM queue.tasks WHERE queue = 'many' ORDER BY id OFFSET 1000 LIMIT 1000)",
    );
    run(&mut client, END);
    let skipped =
        "SELECT (SELECT count(*) FROM queue_internal.dependencies AS d WHERE d.task_id <= o.rest_after)
                   FROM queue_internal.outcomes AS o";
    assert_eq!(number(&mut client, skipped), 2000);
    while number(&mut client, "SELECT queue_internal.process_all_events(1000)") > 0 {}
    assert_eq!(number(&mut client, WAITING), 0);
}
