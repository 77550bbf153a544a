//! Tasks that wait for others: few or very many of one predecessor, and ends that happen at the same time.

use std::time::{Duration, Instant};

use postgres::Client;
use queue_ext_tests::{Cluster, Edition, SOON, Settings, eventually, number, run};

use super::{cluster, excused, excuses};

#[test]
fn an_end_finds_its_dependents_when_its_row_has_moved_to_a_new_page_meanwhile() {
    let cluster = cluster(Edition::FastPath, "moved");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.create('p'), queue.create('d'); SELECT queue.push('p')");
    let (id, token) = {
        let row = client.query_one("SELECT id, token FROM queue.claim('1 minute', 'p')", &[]).expect("claim");
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    run(&mut client, &format!("SELECT queue.push('d', after => ARRAY[{id}::bigint])"));
    let mut other = cluster.connect();
    run(&mut other, &format!("BEGIN; SELECT FROM queue.tasks WHERE id = {id} FOR UPDATE"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run(&mut cluster.connect(), &format!("SELECT queue.complete({id}, {token})"));
        });
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'";
        eventually("the end waits for the row", SOON, || number(&mut client, waits) == 1);
        // Its versions fill the page; the last page is one that the end did not know of when it began.
        run(
            &mut other,
            &format!(
                "INSERT INTO queue.tasks (queue, payload)
                 SELECT 'p', to_jsonb(repeat('x', 100)) FROM generate_series(1, 2000);
                 DO $$ BEGIN FOR n IN 1..200 LOOP
                     UPDATE queue.tasks SET progress = to_jsonb(n) WHERE id = {id};
                 END LOOP; END $$;
                 COMMIT"
            ),
        );
    });
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue.history"), 1);
    // Found through the event, and not by the sweep.
    let told = "SELECT count(*) FROM queue_internal.dependencies WHERE outcome IS NULL";
    assert_eq!(number(&mut client, told), 0);
    eventually("the dependent is claimed", SOON, || {
        number(&mut client, "SELECT count(*) FROM queue.claim('1 minute', 'd')") == 1
    });
}

/// Tasks of queue "many" that wait for all tasks that are queued.
fn dependents(number: u32) -> String {
    format!(
        "INSERT INTO queue.tasks (queue, state, admission) SELECT 'many', 'waiting', 2 FROM generate_series(1, {number});
         INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
         SELECT p.id, t.id, 'fail' FROM queue.tasks AS p, queue.tasks AS t WHERE p.state = 'queued' AND t.state = 'waiting'"
    )
}

#[test]
fn fifty_thousand_dependents_of_one_task_go_on_within_seconds_and_do_not_delay_its_end() {
    for edition in Edition::different().iter().copied() {
        let cluster = cluster(edition, "dependents");
        let mut client = cluster.connect();
        run(&mut client, "SELECT queue.create('one'), queue.create('many'); SELECT queue.push('one')");
        run(&mut client, &dependents(50_000));
        run(&mut client, "ANALYZE queue.tasks, queue_internal.dependencies");
        let (started, excuses) = (Instant::now(), excuses(&mut client));
        run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim(queue => 'one')");
        let end = excused(started.elapsed(), &excuses);
        let waiting = "SELECT count(*) FROM queue.tasks WHERE state = 'waiting'";
        eventually("all are unblocked", 2 * SOON, || {
            if edition == Edition::SqlOnly {
                run(&mut client, "CALL queue.maintain()");
            }
            number(&mut client, waiting) == 0
        });
        println!("{}: the end took {end:?}, all of it {:?}", edition.name(), started.elapsed());
        assert!(end < Duration::from_secs(1), "the end took {end:?}");
        let all = excused(started.elapsed(), &excuses);
        assert!(all < SOON / 2, "{all:?}");
        assert_eq!(number(&mut client, "SELECT count(*) FROM queue_internal.dependencies"), 0);
        let events = number(&mut client, "SELECT queue_internal.newest_event()");
        assert!(events < 5000, "{events} events were left");
    }
}

#[test]
fn a_batch_of_tasks_with_few_dependents_each_notifies_all_of_them_at_once() {
    for edition in Edition::different().iter().copied() {
        let cluster = cluster(edition, "few-dependents");
        let mut client = cluster.connect();
        run(
            &mut client,
            "SELECT queue.create('one'), queue.create('many'); SELECT count(queue.push('one')) FROM generate_series(1, 1000);
             INSERT INTO queue.tasks (queue, state, admission) SELECT 'many', 'waiting', 2 FROM generate_series(1, 2000);
             INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
             SELECT p.id, t.id, 'fail'
             FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM queue.tasks WHERE queue = 'one') AS p
             JOIN (SELECT id, row_number() OVER (ORDER BY id) AS n FROM queue.tasks WHERE queue = 'many') AS t
             ON p.n = (t.n + 1) / 2;
             BEGIN;
             SELECT count(m.id) FROM (
                 SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM queue.claim('1 minute', 'one', 1000)
             ) AS c, LATERAL queue.complete_many(c.ids, c.tokens) AS m (id)",
        );
        assert_eq!(
            number(&mut client, "SELECT count(*) FROM queue_internal.outcomes"),
            0,
            "{}",
            edition.name()
        );
        assert_eq!(
            number(&mut client, "SELECT count(*) FROM queue_internal.events"),
            2000,
            "{}",
            edition.name()
        );
        run(&mut client, "ROLLBACK");
    }
}

/// A server without a worker, with tasks of queue "one" that have so many dependents in queue "many" each.
pub fn without_worker(name: &str, predecessors: u32, number: u32) -> (Cluster, Client) {
    let settings = Settings { preload: true, extra: "queue.worker_enabled = off" };
    let cluster = Cluster::start_with(&format!("events-{name}"), &settings);
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext; SELECT queue.create('one'), queue.create('many')");
    for _ in 0..predecessors {
        run(
            &mut client,
            &format!(
                "WITH p AS (SELECT queue.push('one') AS id), t AS (
                     INSERT INTO queue.tasks (queue, state, admission)
                     SELECT 'many', 'waiting', 2 FROM generate_series(1, {number}) RETURNING id)
                 INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure) SELECT p.id, t.id, 'fail' FROM p, t"
            ),
        );
    }
    (cluster, client)
}

pub const WAITING: &str = "SELECT count(*) FROM queue.tasks WHERE state = 'waiting'";
pub const END: &str = "SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'one', 100)";

#[test]
fn a_dependent_that_cannot_be_notified_delays_few_others() {
    let (cluster, mut client) = without_worker("refused", 3, 3000);
    run(
        &mut client,
        "CREATE TABLE public.refused AS SELECT min(id) + 1200 AS id FROM queue.tasks WHERE queue = 'many'",
    );
    run(
        &mut client,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.task_id = (SELECT id FROM public.refused) THEN RAISE 'not this one'; END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON queue_internal.dependencies FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    run(&mut client, END);
    let process = "SELECT queue_internal.process_all_events(1000)";
    while number(&mut client, process) > 0 {}
    assert_eq!(number(&mut client, WAITING), 500);
    assert_eq!(cluster.log().matches("cannot be notified: not this one").count(), 1);
    // The sweep finds them.
    run(&mut client, "DROP TRIGGER refuse ON queue_internal.dependencies");
    run(&mut client, "CALL queue.maintain()");
    assert_eq!(number(&mut client, WAITING), 0);
}

#[test]
fn dependents_that_nobody_notifies_are_found_by_the_sweep() {
    let (_cluster, mut client) = without_worker("fallback", 1, 1500);
    run(&mut client, END);
    let events = "SELECT count(*) FROM queue_internal.events";
    let mut left = |sweep: &str| {
        run(&mut client, sweep);
        number(&mut client, events)
    };
    let sweep = "SELECT queue_internal.sweep_dependencies(NULL, NULL, 5000)";
    assert_eq!(left(sweep), 1000, "the worker notifies the others");
    assert_eq!(left("BEGIN; SELECT queue_internal.sweep_dependencies(NULL, NULL, 5000, 'many')"), 1500);
    assert_eq!(left("ROLLBACK"), 1000);
    run(&mut client, "UPDATE queue_internal.outcomes SET ended_at = now() - interval '11 minutes'");
    run(&mut client, sweep);
    assert_eq!(number(&mut client, events), 1500);
}

#[test]
fn dependents_of_two_tasks_that_end_at_once_go_on_without_a_sweep() {
    let settings = Settings { preload: true, extra: "queue.worker_enabled = off" };
    let cluster = Cluster::start_with("events-two-ends", &settings);
    let mut client = cluster.connect();
    run(
        &mut client,
        "CREATE EXTENSION queue_ext; SELECT queue.create('one'), queue.create('many');
         SELECT queue.push('one'), queue.push('one')",
    );
    run(&mut client, &dependents(2500));
    let mut other = cluster.connect();
    run(&mut other, "BEGIN; SELECT queue.complete(id, token) FROM queue.claim(queue => 'one')");
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim(queue => 'one')");
    let process = "SELECT queue_internal.process_all_events(1000)";
    while number(&mut client, process) > 0 {}
    let waiting = "SELECT count(*) FROM queue.tasks WHERE state = 'waiting'";
    assert_eq!(number(&mut client, waiting), 2500);
    run(&mut other, "COMMIT");
    eventually("all are unblocked", SOON, || {
        number(&mut client, process);
        number(&mut client, waiting) == 0
    });
    let left = "SELECT (SELECT count(*) FROM queue_internal.dependencies) + (SELECT count(*) FROM queue_internal.events)
                + (SELECT count(*) FROM queue_internal.outcomes WHERE rest_after IS NOT NULL)";
    assert_eq!(number(&mut client, left), 0);
}
