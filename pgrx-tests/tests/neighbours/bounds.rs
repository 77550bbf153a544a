//! No transaction of the worker takes long, because nothing else that it does can begin before its end.

use super::*;

#[test]
fn events_that_are_not_due_are_not_read_once_for_each_queue() {
    let (_cluster, mut client, _worker) = start("bounds-queues");
    without_worker(&mut client);
    run(
        &mut client,
        "SELECT queue.create('q' || n) FROM generate_series(1, 50) AS n;
         INSERT INTO queue_internal.events (queue, group_key, due_at)
         SELECT 'a', n, now() + interval '1 hour' FROM generate_series(1, 1000) AS n;
         SELECT queue.push('b', group_key => 'g'); ANALYZE queue_internal.events, queue.queues",
    );
    run(&mut client, "BEGIN");
    assert_eq!(number(&mut client, "SELECT queue_internal.process_all_events(1000)"), 1);
    let reads = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_all_tables
                 WHERE relid = 'queue_internal.events'::regclass";
    let reads = number(&mut client, reads);
    assert!(reads < 1000, "{reads} rows read");
}

#[test]
fn future_keys_and_events_are_not_read_each_minute() {
    let (_cluster, mut client, _worker) = start("bounds-later");
    without_worker(&mut client);
    run(
        &mut client,
        "INSERT INTO queue_internal.keys (queue, key, task_id, expires_at)
         SELECT 'a', n, n, now() + interval '1 day' FROM generate_series(1, 5000) AS n;
         INSERT INTO queue_internal.events (queue, group_key, due_at)
         SELECT 'a', n, now() + interval '10 seconds' FROM generate_series(1, 5000) AS n;
         INSERT INTO queue_internal.group_starts
         SELECT 'a', n, now(), n, 1, now() + interval '1 day' FROM generate_series(1, 5000) AS n;
         ANALYZE queue_internal.keys, queue_internal.events, queue_internal.group_starts",
    );
    let reads = "SELECT sum(seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_xact_all_tables
                 WHERE relid IN ('queue_internal.keys'::regclass, 'queue_internal.events'::regclass,
                               'queue_internal.group_starts'::regclass)";
    for look in [
        "SELECT queue_internal.retire_keys(1000)",
        "SELECT queue_internal.retire_group_starts(1000)",
        "SELECT queue_internal.sweep_groups(q, NULL, 50, true) FROM queue.queues AS q WHERE name = 'a'",
        "SELECT queue_internal.sweep_groups(q, 'g', 50, true) FROM queue.queues AS q WHERE name = 'a'",
    ] {
        run(&mut client, &format!("BEGIN; {look}"));
        let reads = number(&mut client, reads);
        run(&mut client, "ROLLBACK");
        assert!(reads < 100, "{look}: {reads} rows read");
    }
}

#[test]
fn a_group_with_many_blocked_tasks_is_not_admitted_in_one_transaction() {
    let (_cluster, mut client, _worker) = start("bounds-group");
    without_worker(&mut client);
    run(
        &mut client,
        "SELECT queue.configure('a', '{\"max_running_per_group\": 10000}');
         CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$;
         SELECT count(queue.push('a', group_key => 'g')) FROM generate_series(1, 100);
         CREATE TRIGGER slowly BEFORE UPDATE OF admission ON queue.tasks FOR EACH ROW EXECUTE FUNCTION slowly()",
    );
    let admitted = "SELECT count(*) FROM queue.tasks WHERE admission = 1";
    run(&mut client, "SELECT queue_internal.process_all_events(1000)");
    let at_once = number(&mut client, admitted);
    assert!((1..50).contains(&at_once), "{at_once} tasks");
    eventually("the rest is admitted later", SOON, || {
        run(&mut client, "SELECT queue_internal.process_all_events(1000)");
        number(&mut client, admitted) == 100
    });
}

#[test]
fn a_failing_event_gives_later_ones_no_extra_time() {
    let (_cluster, mut client, _worker) = start("bounds-failing");
    without_worker(&mut client);
    run(
        &mut client,
        "SELECT count(queue.push('a', group_key => n::text)) FROM generate_series(1, 10) AS n;
         CREATE SEQUENCE tries;
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN PERFORM nextval('public.tries'), pg_sleep(0.1); RAISE 'not this one'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE OF admission ON queue.tasks FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    run(&mut client, "SELECT queue_internal.process_all_events(1000)");
    let tries = number(&mut client, "SELECT last_value FROM tries");
    assert!(tries <= 2, "{tries} tries of a tenth of a second each");
    eventually("each has its turn", SOON, || {
        run(&mut client, "SELECT queue_internal.process_all_events(1000)");
        number(&mut client, "SELECT count(*) FROM queue_internal.events WHERE tries > 0") == 10
    });
}

#[test]
fn many_schedules_with_a_key_that_is_held_cost_little_more_than_one() {
    let (cluster, mut client, _worker) = start("bounds-keys");
    without_worker(&mut client);
    let mut holder = cluster.connect();
    run(&mut holder, "BEGIN; SELECT queue.push('a', key => 'nightly')");
    let mut takes = |schedules: i64| {
        let make = format!(
            "SELECT queue.schedule('nightly ' || n, '@yearly', 'a', options => '{{\"key\": \"nightly\"}}')
             FROM generate_series(1, {schedules}) AS n; UPDATE queue.schedules SET next_run_at = now(), last_error_at = NULL"
        );
        run(&mut client, &make);
        let started = Instant::now();
        run(&mut client, "SELECT queue_internal.fire_schedules(NULL, '1 minute')");
        let failed =
            number(&mut client, "SELECT count(*) FROM queue.schedules WHERE last_error LIKE '%lock timeout'");
        assert_eq!(failed, schedules);
        started.elapsed()
    };
    let one = takes(1);
    let forty = at_best(20 * one, || takes(40));
    assert!(forty < 20 * one, "one takes {one:?}, forty {forty:?}");
}

#[test]
fn schedules_on_time_come_first_and_late_ones_still_run() {
    let (_cluster, mut client, _worker) = start("bounds-on-time");
    without_worker(&mut client);
    run(
        &mut client,
        "SELECT queue.create('m' || n) FROM generate_series(1, 5000) AS n; SELECT queue.create('z');
         SELECT queue.schedule('tick ' || name, '* * * * * *', name, options => '{\"missed_runs\": \"all\"}') FROM queue.queues",
    );
    // All but one of the queues are in one state, and the last one by its name is in the other.
    for behind in ["queue <> 'z'", "queue = 'z'"] {
        // The others become due in a while, because the update may take longer than they count as on time.
        run(
            &mut client,
            &format!(
                "DELETE FROM queue.tasks; UPDATE queue.schedules SET next_run_at = now()
                 + CASE WHEN {behind} THEN interval '-1 day' ELSE '5 s' END"
            ),
        );
        run(
            &mut client,
            "SELECT pg_sleep_until(max(next_run_at)) FROM queue.schedules;
             SELECT queue_internal.fire_schedules(10000, '1 minute')",
        );
        let pushed = |client: &mut Client, of: &str| {
            number(client, &format!("SELECT count(*) FROM queue.tasks WHERE queue {of} 'z'"))
        };
        assert!(pushed(&mut client, "=") > 0, "{behind}");
        assert!(pushed(&mut client, "<>") > 0, "{behind}: the others");
    }
}

#[test]
fn dead_versions_that_an_old_snapshot_keeps_do_not_slow_down_schedules() {
    let (cluster, mut client, _worker) = start("bounds-snapshot");
    without_worker(&mut client);
    run(&mut client, "SELECT queue.schedule('tick ' || n, '@yearly', 'a') FROM generate_series(1, 100) AS n");
    let mut old = cluster.connect();
    run(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queue.schedules");
    let multixacts = |client: &mut Client| {
        run(client, "CHECKPOINT");
        number(client, "SELECT next_multixact_id::text::bigint FROM pg_control_checkpoint()")
    };
    let before = multixacts(&mut client);
    run(&mut client, "UPDATE queue.schedules SET next_run_at = now()");
    run(&mut client, "SELECT queue_internal.fire_schedules(NULL, '1 minute')");
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue.tasks"), 100);
    assert_eq!(multixacts(&mut client), before);
    for _ in 0..300 {
        run(&mut client, "UPDATE queue.schedules SET next_run_at = now()");
    }
    run(&mut client, "UPDATE queue.schedules SET next_run_at = now() + interval '1 hour'");
    let mut blocks = |since: &str| {
        let explain = format!(
            "EXPLAIN (ANALYZE, BUFFERS) SELECT * FROM queue_internal.fire_schedules(100, '1 minute', '', {since})"
        );
        let plan: Vec<String> =
            client.query(&explain, &[]).expect("plan").iter().map(|row| row.get(0)).collect();
        let hit = plan.iter().find_map(|line| line.split_once("shared hit=")).expect("blocks").1;
        hit.split(' ').next().expect("a number").parse::<i64>().expect("a number")
    };
    let (_, all) = (blocks("clock_timestamp()"), blocks("NULL"));
    let since = blocks("clock_timestamp()");
    assert!(10 * since < all, "{since} blocks of what became due, {all} of all schedules");
}

#[test]
fn a_due_task_of_a_group_does_not_cause_all_delayed_ones_to_be_read() {
    let (cluster, mut client, _worker) = start("bounds-delayed");
    without_worker(&mut client);
    run(
        &mut client,
        "SELECT queue.configure('a', '{\"delayed_head\": \"pass\"}');
         INSERT INTO queue.tasks (queue, group_key, run_at)
         SELECT 'a', 'g', now() + CASE WHEN n BETWEEN 1000 AND 1009 THEN '0' ELSE interval '1 hour' END
         FROM generate_series(1, 5000) AS n;
         UPDATE queue.tasks SET admission = 0;
         INSERT INTO queue.tasks (queue) SELECT 'b' FROM generate_series(1, 5000);
         ANALYZE queue.tasks",
    );
    let first = number(&mut client, "SELECT min(id) FROM queue.tasks WHERE run_at <= now()");
    // In a session of its own, which has read nothing before.
    let mut client = cluster.connect();
    run(
        &mut client,
        &format!("BEGIN; SELECT queue_internal.block_due_tasks(t) FROM queue.tasks AS t WHERE id = {first}"),
    );
    let reads = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_all_tables WHERE relid = 'queue.tasks'::regclass";
    let reads = number(&mut client, reads);
    assert!(reads < 1000, "{reads} rows read");
    assert_eq!(
        number(&mut client, "SELECT count(*) FROM queue.tasks WHERE admission = 2"),
        10,
        "the due ones, all at once"
    );
}

#[test]
fn a_lease_that_cannot_be_ended_is_checked_again_after_a_pause() {
    let (cluster, mut client, _worker) = start("bounds-locked");
    without_worker(&mut client);
    run(
        &mut client,
        "SELECT queue.push('a'); SELECT queue.claim('1 minute', 'a');
         UPDATE queue.tasks SET lease_until = clock_timestamp() - interval '2 seconds'",
    );
    let mut holder = cluster.connect();
    run(&mut holder, "BEGIN; SELECT FROM queue.tasks FOR UPDATE");
    // At least, since the statement began; at most, from its end on.
    let pauses = "SELECT extract(milliseconds FROM next_expiry - now())::bigint,
                         extract(milliseconds FROM next_expiry - clock_timestamp())::bigint FROM queue_internal.reap(1000)";
    let pauses = client.query_one(pauses, &[]).expect("reap");
    let (least, most): (i64, i64) = (pauses.get(0), pauses.get(1));
    assert!(least >= 1000 && most <= 5000, "{least} ms, {most} ms");
    run(&mut holder, "ROLLBACK");
    assert_eq!(number(&mut client, "SELECT reaped FROM queue_internal.reap(1000)"), 1);
}

#[test]
fn maintain_ends_leases_before_it_searches_for_lost_events() {
    let (_cluster, mut client, _worker) = start("bounds-order");
    without_worker(&mut client);
    run(
        &mut client,
        "CREATE TABLE public.order_of (number bigserial, what text);
         CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN INSERT INTO public.order_of (what) VALUES (TG_ARGV[0]); RETURN NULL; END $$;
         SELECT queue.push('a'); SELECT queue.claim('1 minute', 'a');
         UPDATE queue.tasks SET lease_until = clock_timestamp() - interval '2 seconds';
         SELECT queue.push('b', group_key => 'g'); DELETE FROM queue_internal.events;
         CREATE TRIGGER note AFTER UPDATE OF state ON queue.tasks FOR EACH ROW EXECUTE FUNCTION public.note('lease');
         CREATE TRIGGER note AFTER INSERT ON queue_internal.events FOR EACH ROW EXECUTE FUNCTION public.note('lost event')",
    );
    run(&mut client, "CALL queue.maintain()");
    let order = "SELECT string_agg(what, ', ' ORDER BY number) FROM public.order_of";
    // One of those more, if the first one could not be processed at once.
    let order = text(&mut client, order);
    assert!(order.starts_with("lease, lost event"), "{order}");
}

#[test]
fn the_next_of_a_group_is_found_without_reading_tasks_of_other_queues() {
    let (cluster, mut client, _worker) = start("bounds-next");
    without_worker(&mut client);
    // To the planner all tasks seem to be of one group, so that an index of all ids would do.
    run(
        &mut client,
        "INSERT INTO queue.tasks (queue, group_key) SELECT 'a', 'g' FROM generate_series(1, 50000);
         ANALYZE queue.tasks;
         INSERT INTO queue.tasks (queue, group_key) VALUES ('b', 'h'), ('b', 'h')",
    );
    let mut client = cluster.connect();
    run(
        &mut client,
        "BEGIN; SELECT s.* FROM queue.queues AS q, queue_internal.next_admission(q, 'h', 0, 0, NULL, NULL) AS s WHERE q.name = 'b'",
    );
    let reads = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_all_tables WHERE relid = 'queue.tasks'::regclass";
    let reads = number(&mut client, reads);
    assert!(reads < 100, "{reads} rows read");
}

#[test]
fn the_dependents_of_a_task_are_not_all_notified_in_one_transaction() {
    let (_cluster, mut client, _worker) = start("bounds-dependents");
    without_worker(&mut client);
    run(
        &mut client,
        "SELECT queue.push('a');
         INSERT INTO queue.tasks (queue, state, admission) SELECT 'a', 'waiting', 2 FROM generate_series(1, 20000);
         INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
         SELECT p.id, t.id, 'fail' FROM queue.tasks AS p, queue.tasks AS t WHERE p.state = 'queued' AND t.state = 'waiting';
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$",
    );
    // A trigger that refuses one of them does not delay the others.
    let refused = number(&mut client, "SELECT max(id) - 10000 FROM queue.tasks");
    run(
        &mut client,
        &format!(
            "CREATE TRIGGER refuse BEFORE UPDATE OF state ON queue.tasks FOR EACH ROW
             WHEN (NEW.id = {refused} AND NEW.state = 'queued') EXECUTE FUNCTION refuse();
             ALTER TABLE queue.tasks ENABLE ALWAYS TRIGGER refuse; ANALYZE"
        ),
    );
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'a')");
    let notified = "SELECT count(*) FROM queue_internal.dependencies WHERE outcome = 'completed'";
    assert_eq!(number(&mut client, notified), 1000);
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue_internal.events"), 1000);
    let waiting = "SELECT count(*) FROM queue.tasks WHERE state = 'waiting'";
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).expect("the session").get(0);
    let mut longest = Duration::ZERO;
    eventually("all others are unblocked", 3 * SOON, || {
        let (started, excuse) = (Instant::now(), Excuse::of(pid));
        run(&mut client, "SELECT queue_internal.process_all_events(1000)");
        longest = longest.max(started.elapsed().saturating_sub(excuse.so_far()));
        number(&mut client, waiting) == 1
    });
    println!("the longest transaction took {longest:?}");
    assert!(longest < Duration::from_millis(500), "{longest:?}");
}

#[test]
fn dependents_of_one_queue_delay_no_other() {
    let (mut cluster, mut client, worker) = start("bounds-dependents-beside");
    run(
        &mut client,
        "SELECT queue.push('a'), queue.push('a');
         INSERT INTO queue.tasks (queue, state, admission) SELECT 'a', 'waiting', 2 FROM generate_series(1, 60000);
         INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
         SELECT p.id, t.id, 'fail' FROM queue.tasks AS p, queue.tasks AS t WHERE p.state = 'queued' AND t.state = 'waiting'",
    );
    run(&mut client, TICK);
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'a')");
    // The second one fails, and every dependent has to end by itself.
    run(
        &mut client,
        "SELECT queue.fail(id, token, 'no', permanent => true) FROM queue.claim('1 minute', 'a')",
    );
    b_is_in_time(&mut client, while_it_lasts());
    assert!(number(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'waiting'") < 60_000);
    assert_eq!(cluster.await_worker("postgres"), worker);
}

#[test]
fn dead_rows_that_an_old_snapshot_keeps_are_not_all_read_at_once() {
    let (cluster, mut client, _worker) = start("bounds-dead");
    without_worker(&mut client);
    let mut old = cluster.connect();
    run(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queue.tasks");
    run(
        &mut client,
        "INSERT INTO queue.tasks (queue, priority, run_at)
         SELECT 'a', n % 3, now() - n * interval '1 ms' FROM generate_series(1, 100000) AS n;
         DELETE FROM queue.tasks;
         INSERT INTO queue_internal.events (queue, group_key) SELECT 'a', n FROM generate_series(1, 100000) AS n;
         DELETE FROM queue_internal.events",
    );
    run(
        &mut client,
        "SELECT queue.push('b', priority => 5), queue.push('b', priority => -5);
         SELECT queue.claim('1 minute', 'b');
         UPDATE queue.tasks SET lease_until = clock_timestamp() - interval '2 seconds' WHERE state = 'running';
         ANALYZE queue.tasks, queue_internal.events",
    );
    let entries = |client: &mut Client, index: &str, query: &str| {
        let read = format!("SELECT pg_stat_get_xact_tuples_returned('{index}'::regclass)");
        run(client, "BEGIN");
        let before = number(client, &read);
        let result = text(client, query);
        let count = number(client, &read) - before;
        run(client, "COMMIT");
        println!("{query}: {count} entries, {result}");
        (count, result)
    };
    let due =
        "SELECT array_to_string(ready, ',') FROM queue_internal.due_queues('-infinity', clock_timestamp())";
    let (count, ready) = entries(&mut client, "queue.tasks_order", due);
    assert!(count < 50_000, "{count} entries");
    assert_eq!(ready, "a,b", "a may be ready, and b is");
    let (mut after, mut reaped, mut pieces) = ("-1".to_owned(), 0, 0);
    while !after.is_empty() {
        let reap = format!("SELECT concat(reaped, ' ', last) FROM queue_internal.reap(500, {after}, 4000)");
        let (count, result) = entries(&mut client, "queue.tasks_pkey", &reap);
        assert!(count < 10_000, "{count} entries");
        let (ended, last) = result.split_once(' ').expect("two numbers");
        (reaped, pieces, after) =
            (reaped + ended.parse::<i64>().expect("a number"), pieces + 1, last.to_owned());
    }
    assert_eq!(reaped, 1);
    assert!(pieces > 20, "{pieces} pieces");
    let process = "SELECT queue_internal.process_all_events(1000)::text";
    entries(&mut client, "queue_internal.events_pkey", process);
    let (count, _) = entries(&mut client, "queue_internal.events_pkey", process);
    assert!(count < 1000, "{count} entries");
    // An event that comes later is processed.
    run(&mut client, "SELECT queue.push('a', group_key => 'g')");
    eventually("it is admitted", SOON, || {
        text(&mut client, process);
        number(&mut client, "SELECT count(*) FROM queue.tasks WHERE queue = 'a' AND admission = 1") == 1
    });
}

#[test]
fn a_task_that_arrives_while_a_piece_is_read_is_not_skipped() {
    let (_cluster, mut client, _worker) = start("bounds-arrives");
    without_worker(&mut client);
    run(
        &mut client,
        "SELECT count(queue.push('a')) FROM generate_series(1, 10); SELECT count(*) FROM queue.claim('1 hour', 'a', 10)",
    );
    // As if a task had arrived before the bound since it was read: six tasks in a piece of five.
    run(
        &mut client,
        "CREATE OR REPLACE FUNCTION queue_internal.id_bound(after bigint, entries integer) RETURNS bigint
         LANGUAGE sql STABLE AS
         'SELECT t.id FROM queue.tasks AS t WHERE t.id > after ORDER BY t.id OFFSET entries LIMIT 1'",
    );
    let (mut pieces, mut after) = (0, "0".to_owned());
    let sixth = text(&mut client, "SELECT id::text FROM queue.tasks ORDER BY id OFFSET 5 LIMIT 1");
    run(
        &mut client,
        &format!("UPDATE queue.tasks SET lease_until = now() - interval '1 second' WHERE id = {sixth}"),
    );
    while !after.is_empty() {
        let reap = format!("SELECT coalesce(last::text, '') FROM queue_internal.reap(500, {after}, 5)");
        (pieces, after) = (pieces + 1, text(&mut client, &reap));
    }
    assert!(pieces < 5, "{pieces} pieces");
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'queued'"), 1);
}

#[test]
fn looking_for_due_tasks_does_not_wait_for_an_index_that_is_created() {
    let (cluster, mut client, _worker) = start("bounds-locked");
    without_worker(&mut client);
    let mut other = cluster.connect();
    run(&mut other, "BEGIN; LOCK TABLE queue.tasks IN SHARE MODE");
    run(&mut client, "SET lock_timeout = '1 s'");
    for look in ["queue_internal.due_queues('-infinity', now())", "queue_internal.id_bound(0, 1)"] {
        run(&mut client, &format!("SELECT {look}"));
    }
}
