//! Events are hints: losing all of them repeatedly only costs a bounded delay.
//!
//! LOST_EVENTS_SECONDS sets the duration, 5 by default.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use queue_ext_tests::stalls::{self, Excuse};
use queue_ext_tests::{Cluster, Edition, SOON, Settings, Worker, brief, eventually};

/// The setting "queue.sweep_interval", or the interval at which queue.maintain() runs instead.
const SWEEP: Duration = Duration::from_secs(2);

fn number(client: &mut Client, query: &str) -> i64 {
    client.query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error}")).get(0)
}

fn run(client: &mut Client, query: &str) {
    client.batch_execute(query).unwrap_or_else(|error| panic!("{query}: {error}"));
}

/// What this session and the background worker, where there is one, may be late by.
fn excuses(client: &mut Client) -> Vec<Excuse> {
    let query = "SELECT pid FROM pg_stat_activity WHERE pid = pg_backend_pid()
                 OR backend_type = 'queue_ext worker' AND datname = current_database()";
    client.query(query, &[]).expect("the processes").iter().map(|row| Excuse::of(row.get(0))).collect()
}

/// A time without what these processes have lost so far.
fn excused(time: Duration, excuses: &[Excuse]) -> Duration {
    time.saturating_sub(excuses.iter().map(Excuse::so_far).sum())
}

/// A server of the edition with a short sweep interval.
fn cluster(edition: Edition, name: &str) -> Cluster {
    let cluster = edition.cluster(&format!("events-{name}"), Worker::On);
    if edition != Edition::SqlOnly {
        let sweep = format!("ALTER SYSTEM SET queue.sweep_interval = '{}s'", SWEEP.as_secs());
        run(&mut cluster.connect(), &sweep);
        run(&mut cluster.connect(), "SELECT pg_reload_conf()");
    }
    edition.install(&cluster, "postgres");
    cluster
}

fn editions() -> &'static [Edition] {
    if brief() { &[Edition::FastPath] } else { &[Edition::FastPath, Edition::Core, Edition::SqlOnly] }
}

#[test]
fn tasks_end_in_order_and_within_limits_while_all_events_are_lost() {
    let seconds = std::env::var("LOST_EVENTS_SECONDS").ok().and_then(|value| value.parse().ok()).unwrap_or(5);
    for edition in editions().iter().copied() {
        lose_events(edition, Duration::from_secs(seconds));
    }
}

/// Pushes, claims and completes for some time while another session deletes all events, then drains.
fn lose_events(edition: Edition, time: Duration) {
    let cluster = cluster(edition, "lost");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.create('grouped'), queue.create('limited', '{\"max_running\": 3}'),
                queue.create('dependent'), queue.create('rated', '{\"group_rate_limit\": 10, \"rate_period\": \"1 second\",
                                                                  \"max_running_per_group\": 3}');
         CREATE TABLE public.ran (queue text, id bigint, group_key text, begun timestamptz, ended timestamptz)",
    );
    let over = AtomicBool::new(false);
    let connect = || cluster.config("postgres").connect(NoTls).expect("connect");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut loser = connect();
            while !over.load(Ordering::Relaxed) {
                run(&mut loser, "DELETE FROM queue_internal.events");
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        if edition == Edition::SqlOnly {
            // Instead of the worker.
            scope.spawn(|| {
                let mut keeper = connect();
                while !over.load(Ordering::Relaxed) {
                    run(&mut keeper, "CALL queue.maintain()");
                    std::thread::sleep(SWEEP / 4);
                }
            });
        }
        for number in 0..4 {
            let over = &over;
            scope.spawn(move || work(connect(), number, over));
        }
        let mut producer = connect();
        let started = Instant::now();
        let mut last = 0;
        for round in 0.. {
            if started.elapsed() >= time {
                break;
            }
            last = number(
                &mut producer,
                &format!(
                    "WITH a AS (SELECT queue.push('dependent') AS id)
                     SELECT queue.push('dependent', after => ARRAY(SELECT a.id FROM a UNION SELECT {last} WHERE {last} > 0))
                     FROM a"
                ),
            );
            run(
                &mut producer,
                "SELECT queue.push('grouped', group_key => g) FROM unnest('{a,b,c}'::text[]) AS g;
                 SELECT queue.push('limited', group_key => 'only')",
            );
            let (group, weight) = (round % 3, 1 + round % 2);
            run(
                &mut producer,
                &format!("SELECT queue.push('rated', group_key => 'r{group}', weight => {weight})"),
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        let left = "SELECT count(*) FROM queue.tasks";
        eventually("all of them end", SOON + 4 * time, || number(&mut producer, left) == 0);
        over.store(true, Ordering::Relaxed);
    });
    let tasks = number(&mut client, "SELECT count(*) FROM public.ran");
    let ended = number(&mut client, "SELECT count(*) FROM queue.history WHERE state = 'completed'");
    assert_eq!(tasks, ended, "{}: each ran once", edition.name());
    for (promise, query) in [
        (
            "in order within groups",
            "SELECT count(*) FROM (SELECT id, lag(id) OVER (PARTITION BY queue, group_key ORDER BY begun) AS earlier
                                   FROM public.ran WHERE group_key IS NOT NULL AND queue <> 'rated') AS r WHERE earlier > id",
        ),
        (
            "one of a group at a time",
            "SELECT count(*) FROM (SELECT begun, lag(ended) OVER (PARTITION BY queue, group_key ORDER BY begun) AS earlier
                                   FROM public.ran WHERE group_key IS NOT NULL AND queue <> 'rated') AS r WHERE earlier > begun",
        ),
        (
            "never over the rate of a group",
            "SELECT count(*) FROM (SELECT sum(h.weight) OVER (PARTITION BY r.group_key ORDER BY r.begun
                                          RANGE BETWEEN CURRENT ROW AND interval '999999 microseconds' FOLLOWING) AS started
                                   FROM public.ran AS r JOIN queue.history AS h USING (id)
                                   WHERE r.queue = 'rated') AS r WHERE started > 10",
        ),
        (
            "never over the limit",
            "SELECT count(*) FROM public.ran AS r WHERE r.queue = 'limited' AND 3 < (
                 SELECT count(*) FROM public.ran AS o
                 WHERE o.queue = r.queue AND o.begun <= r.begun AND o.ended > r.begun)",
        ),
    ] {
        assert_eq!(number(&mut client, query), 0, "{}: {promise}", edition.name());
    }
    println!("{}: {tasks} tasks", edition.name());
}

/// Claims and completes one task at a time from all queues.
fn work(mut client: Client, worker: usize, over: &AtomicBool) {
    let claim = "SELECT id, token, queue, group_key FROM queue.claim('1 minute', ARRAY['grouped', 'limited', 'dependent', 'rated'], 1, $1)";
    while !over.load(Ordering::Relaxed) {
        let Some(task) = client.query_opt(claim, &[&format!("w{worker}")]).expect("claim") else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let (id, token): (i64, i64) = (task.get(0), task.get(1));
        let (queue, group): (String, Option<String>) = (task.get(2), task.get(3));
        let insert = "WITH done AS MATERIALIZED (
                          INSERT INTO public.ran SELECT $1, t.id, $2, t.claimed_at, clock_timestamp() FROM queue.tasks AS t
                          WHERE t.id = $3)
                      SELECT queue.complete($3, $4)";
        client.execute(insert, &[&queue, &group, &id, &token]).expect("complete");
    }
}

#[test]
fn one_lost_event_costs_a_sweep_interval_at_most() {
    for edition in editions().iter().copied() {
        let cluster = cluster(edition, "late");
        let mut client = cluster.connect();
        run(
            &mut client,
            "SELECT queue.create('q'), queue.create('rated', '{\"group_rate_limit\": 1, \"rate_period\": \"1 second\",
                                                              \"max_running_per_group\": 2}')",
        );
        // In one transaction, so that no session processes the event.
        run(
            &mut client,
            "DO $$
             DECLARE
                 first bigint := queue.push('q');
             BEGIN
                 PERFORM queue.push('q', '\"dependent\"', after => ARRAY[first]);
                 PERFORM queue.push('q', '1', group_key => 'g');
                 PERFORM queue.push('q', '2', group_key => 'g');
                 PERFORM queue.push('rated', '1', group_key => 'g'), queue.push('rated', '2', group_key => 'g');
                 DELETE FROM queue_internal.events;
             END $$",
        );
        let started = Instant::now();
        let mut done = 0;
        while done < 6 {
            assert!(
                stalls::since(started) < 3 * (SWEEP + Duration::from_secs(1)),
                "{}: {done} so far",
                edition.name()
            );
            if edition == Edition::SqlOnly {
                run(&mut client, "CALL queue.maintain()");
            }
            run(&mut client, "BEGIN");
            done += number(
                &mut client,
                "SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', ARRAY['q', 'rated'], 9)",
            );
            run(&mut client, "DELETE FROM queue_internal.events; COMMIT");
            std::thread::sleep(Duration::from_millis(20));
        }
        println!("{}: {:?}", edition.name(), started.elapsed());
    }
}

/// No client claims or calls queue.maintain().
#[test]
fn the_worker_notices_that_the_head_of_a_group_or_a_predecessor_was_deleted_by_hand() {
    for edition in editions().iter().copied().filter(|edition| *edition != Edition::SqlOnly) {
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

#[test]
fn a_shorter_sweep_interval_applies_to_the_wait_that_has_begun() {
    let settings = Settings { preload: true, extra: "queue.sweep_interval = 1h" };
    let mut cluster = Cluster::start_with("events-shorter", &settings);
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext");
    cluster.await_worker("postgres");
    let lose = "DO $$
         DECLARE
             first bigint := queue.push('default');
         BEGIN
             PERFORM queue.push('default', after => ARRAY[first]);
             PERFORM queue.complete(id, token) FROM queue.claim('1 minute', 'default') WHERE id = first;
             DELETE FROM queue_internal.events;
         END $$";
    let left = "SELECT count(*) FROM queue.tasks WHERE state = 'waiting'";
    // The first turns end what came before, and then the wait of an hour begins.
    eventually("no turn comes", SOON, || {
        run(&mut client, lose);
        std::thread::sleep(Duration::from_secs(1));
        number(&mut client, left) > 0
    });
    run(&mut client, "ALTER SYSTEM SET queue.sweep_interval = '1s'");
    run(&mut client, "SELECT pg_reload_conf()");
    eventually("the sweep finds it", SOON, || number(&mut client, left) == 0);
}

/// Like on a subscriber that took over: the triggers did not fire for replicated rows.
#[test]
fn groups_continue_in_a_queue_whose_row_of_locks_was_never_created() {
    for edition in editions().iter().copied() {
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

/// As one that was postponed before the clock was set back.
#[test]
fn an_event_that_is_due_in_an_hour_is_processed_by_the_sweep() {
    for edition in editions().iter().copied() {
        let cluster = cluster(edition, "ahead");
        let mut client = cluster.connect();
        run(&mut client, "SELECT queue.create('q')");
        run(
            &mut client,
            "DO $$
             DECLARE
                 first bigint := queue.push('q');
             BEGIN
                 PERFORM queue.push('q', group_key => 'g');
                 PERFORM queue.push('q', after => ARRAY[first]);
                 PERFORM queue.complete(id, token) FROM queue.claim('1 minute', 'q') WHERE id = first;
                 UPDATE queue_internal.events SET due_at = clock_timestamp() + interval '1 hour', tries = 1;
             END $$",
        );
        let mut done = 0;
        eventually("both tasks are claimed", 3 * (SWEEP + Duration::from_secs(1)), || {
            if edition == Edition::SqlOnly {
                run(&mut client, "CALL queue.maintain()");
            }
            done += number(&mut client, "SELECT count(*) FROM queue.claim('1 minute', 'q', 9)");
            done >= 2
        });
    }
}

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

#[test]
fn the_worker_remembers_when_a_postponed_event_is_due_while_it_processes_others() {
    let settings = Settings { preload: true, extra: "queue.sweep_interval = '1h'" };
    let mut cluster = Cluster::start_with("events-remembered", &settings);
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext; SELECT queue.create('q'), queue.create('other')");
    cluster.await_worker("postgres");
    run(&mut client, "SELECT queue.push('q')");
    let dependent =
        number(&mut client, "SELECT queue.push('q', after => ARRAY[(SELECT max(id) FROM queue.tasks)])");
    let mut holder = cluster.connect();
    run(&mut holder, &format!("BEGIN; SELECT FROM queue.tasks WHERE id = {dependent} FOR UPDATE"));
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim(queue => 'q')");
    // Postponed for more than half a second.
    let postponed = "SELECT count(*) FROM queue_internal.events WHERE tries >= 7";
    eventually("it is postponed", SOON, || number(&mut client, postponed) == 1);
    let told = "SELECT (queue.engine_stats() #>> '{worker,notifications}')::bigint";
    let before = number(&mut client, told);
    run(&mut client, "SELECT queue.push('other', delay => '20 ms')");
    eventually("a task came due meanwhile", SOON, || number(&mut client, told) > before);
    run(&mut holder, "ROLLBACK");
    // The pauses grow, and on a slow machine there may have been more of them.
    let left = "SELECT coalesce(max(extract(milliseconds FROM due_at - clock_timestamp())), 0)::bigint
                FROM queue_internal.events";
    let left = Duration::from_millis(number(&mut client, left).max(0).unsigned_abs());
    let unblocked = "SELECT count(*) FROM queue.tasks WHERE state = 'queued' AND queue = 'q'";
    let excuses = excuses(&mut client);
    let late = eventually("the dependent is unblocked", SOON, || number(&mut client, unblocked) == 1);
    let late = excused(late, &excuses);
    assert!(late < left + Duration::from_secs(3), "{late:?}, and {left:?} were left");
}

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
    for edition in editions().iter().copied() {
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
    for edition in editions().iter().copied() {
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
fn without_worker(name: &str, predecessors: u32, number: u32) -> (Cluster, Client) {
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

const WAITING: &str = "SELECT count(*) FROM queue.tasks WHERE state = 'waiting'";
const END: &str = "SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'one', 100)";

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
