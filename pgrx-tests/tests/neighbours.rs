//! One queue must not delay another: held locks, rows that cannot be processed, and floods. In each test queue a
//! causes the trouble, and queue b must not notice.
//!
//! `NEIGHBOURS=60` makes each flood last for so many seconds.

#[path = "neighbours/bounds.rs"]
mod bounds;
#[path = "neighbours/bystander.rs"]
mod bystander;
#[path = "neighbours/commands.rs"]
mod commands;
#[path = "neighbours/extension.rs"]
mod extension;
#[path = "neighbours/floods.rs"]
mod floods;
#[path = "neighbours/hour.rs"]
mod hour;
#[path = "neighbours/large.rs"]
mod large;
#[path = "neighbours/locks.rs"]
mod locks;
#[path = "neighbours/logs.rs"]
mod logs;
#[path = "neighbours/maintain.rs"]
mod maintain;
#[path = "neighbours/prepared.rs"]
mod prepared;
#[path = "neighbours/shares.rs"]
mod shares;

use std::time::{Duration, Instant};

use postgres::Client;
use queue_ext_tests::{
    Cluster, Edition, SOON, Settings, WOKEN, Worker, at_best, eventually, number, run,
    stalls::{self, Excuse},
    text,
};

/// How long a flood lasts.
fn while_it_lasts() -> Duration {
    let seconds = std::env::var("NEIGHBOURS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(4))
}

fn start(name: &str) -> (Cluster, Client, i32) {
    let mut cluster = Cluster::start_with(&format!("neighbours-{name}"), &Settings::default());
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext; SELECT queue.create('a'), queue.create('b')");
    let worker = cluster.await_worker("postgres");
    (cluster, client, worker)
}

/// From here on only the test changes anything.
fn without_worker(client: &mut Client) {
    run(client, "ALTER SYSTEM SET queue.worker_enabled = off");
    run(client, "SELECT pg_reload_conf()");
    eventually("the worker leaves", SOON, || {
        number(client, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue_ext worker'") == 0
    });
}

/// The schedule of queue b that runs every second.
const TICK: &str = "SELECT queue.schedule('tick', '* * * * * *', 'b')";

/// For so long, leases of queue b end and its schedule runs, both in time.
fn b_is_in_time(client: &mut Client, time: Duration) {
    run(client, "DELETE FROM queue.tasks WHERE queue = 'b'");
    let ticks = "SELECT count(*) FROM queue.tasks WHERE queue = 'b' AND headers ? 'schedule'";
    let (started, excuse) = (Instant::now(), excuse_of_worker(client));
    let mut ends = 0;
    while stalls::since(started) < time {
        run(client, "SELECT queue.push('b', priority => -1); SELECT queue.claim('50 ms', 'b')");
        let excuse = excuse_of_worker(client);
        let late = eventually("the lease of b ends", SOON, || {
            number(client, "SELECT count(*) FROM queue.tasks WHERE queue = 'b' AND state = 'running'") == 0
        });
        let late = late.saturating_sub(excuse.so_far());
        assert!(late < Duration::from_millis(1500), "the lease ended {late:?} after it began");
        run(client, "DELETE FROM queue.tasks WHERE queue = 'b' AND priority = -1");
        ends += 1;
    }
    assert!(ends > 2, "{ends} leases");
    let late = "SELECT coalesce(max(extract(epoch FROM created_at - (headers ->> 'scheduled_for')::timestamptz)) * 1000, 0)::bigint
                FROM queue.tasks WHERE queue = 'b'";
    let late = number(client, late);
    let excused = excuse.so_far();
    assert!(late < 1000 + excused.as_millis() as i64, "a run of b was {late} ms late");
    let ticks = number(client, ticks);
    let time = started.elapsed().saturating_sub(excused);
    assert!(ticks + 1 >= time.as_secs() as i64, "{ticks} runs in {time:?}");
}

/// What the worker of this database may be late by.
fn excuse_of_worker(client: &mut Client) -> Excuse {
    let worker = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue_ext worker' AND datname = current_database()";
    Excuse::of(client.query_one(worker, &[]).expect("the worker").get(0))
}

#[test]
fn an_open_transaction_with_the_key_of_a_schedule_delays_only_that_schedule() {
    let (mut cluster, mut client, worker) = start("key");
    let mut holder = cluster.connect();
    run(&mut holder, "BEGIN; SELECT queue.push('a', key => 'nightly')");
    for number in 0..5 {
        let schedule = format!(
            "SELECT queue.schedule('nightly {number}', '* * * * * *', 'a', options => '{{\"key\": \"nightly\"}}')"
        );
        run(&mut client, &schedule);
    }
    run(&mut client, TICK);
    b_is_in_time(&mut client, while_it_lasts());
    let named = "SELECT status || detail FROM queue.health() WHERE name = 'schedules'";
    eventually("each was tried", SOON, || {
        text(&mut client, named)
            .starts_with("warningqueue \"a\": schedules that could not push their last task: 5,")
    });
    assert!(text(&mut client, "SELECT min(last_error) FROM queue.schedules").contains("lock timeout"));
    run(&mut holder, "ROLLBACK");
    eventually("the schedule of a runs", SOON, || {
        number(&mut client, "SELECT count(*) FROM queue.tasks WHERE queue = 'a'") > 0
    });
    assert_eq!(cluster.await_worker("postgres"), worker);
}

#[test]
fn a_locked_table_delays_only_steps_that_need_it() {
    for table in ["queue.history", "queue.dead_letters", "queue_internal.keys"] {
        let (mut cluster, mut client, worker) = start(&format!("table-{}", table.replace('.', "-")));
        run(&mut client, TICK);
        // Attempts that can only end in the dead letters, with keys, each of which will cause a wait.
        run(
            &mut client,
            "SELECT queue.push('a', key => n::text, max_attempts => 1) FROM generate_series(1, 500) AS n;
             SELECT count(*) FROM queue.claim('500 ms', 'a', 500)",
        );
        let mut holder = cluster.connect();
        run(&mut holder, &format!("BEGIN; LOCK TABLE {table}"));
        b_is_in_time(&mut client, while_it_lasts());
        run(&mut holder, "ROLLBACK");
        eventually("the leases of a end", SOON, || {
            number(&mut client, "SELECT count(*) FROM queue.tasks WHERE queue = 'a'") == 0
        });
        assert_eq!(cluster.await_worker("postgres"), worker, "{table}");
    }
}

#[test]
fn the_worker_continues_after_the_table_of_tasks_was_locked() {
    let (mut cluster, mut client, worker) = start("tasks");
    run(&mut client, TICK);
    run(&mut client, "SELECT queue.push('b'); SELECT queue.claim('100 ms', 'b')");
    let mut holder = cluster.connect();
    run(&mut holder, "BEGIN; LOCK TABLE queue.tasks; SELECT pg_sleep(4); ROLLBACK");
    eventually("the lease ended, and the schedule ran", SOON, || {
        number(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'running'") == 0
            && number(&mut client, "SELECT count(*) FROM queue.tasks WHERE headers ? 'schedule'") > 0
    });
    b_is_in_time(&mut client, Duration::from_secs(3));
    assert_eq!(cluster.await_worker("postgres"), worker);
    let said = cluster.log().matches("lock timeout").count();
    assert!((1..60).contains(&said), "{said} lines");
}

#[test]
fn maintain_skips_what_is_locked_and_does_the_rest() {
    for edition in [Edition::NoPreload, Edition::SqlOnly] {
        let cluster = edition.cluster("neighbours-maintain", Worker::On);
        edition.install(&cluster, "postgres");
        let mut client = cluster.connect();
        run(
            &mut client,
            "SELECT queue.create('a'), queue.create('b');
             SELECT queue.create('c' || n) FROM generate_series(1, 10) AS n;
             SELECT queue.schedule('nightly', '* * * * * *', 'a', options => '{\"key\": \"nightly\"}');
             SELECT queue.schedule('nightly' || n, '* * * * * *', 'c' || n, options => '{\"key\": \"nightly\"}')
             FROM generate_series(1, 10) AS n;
             SELECT queue.schedule('tick', '* * * * * *', 'b');
             SELECT queue.push('a', max_attempts => 1), queue.push('b');
             SELECT queue.claim('1 ms', 'a'), queue.claim('1 ms', 'b');
             UPDATE queue.schedules SET next_run_at = date_trunc('second', now()) - interval '1 second'",
        );
        let mut holder = cluster.connect();
        run(
            &mut holder,
            "BEGIN; SELECT queue.push('a', key => 'nightly');
             SELECT queue.push('c' || n, key => 'nightly') FROM generate_series(1, 10) AS n;
             LOCK TABLE queue.dead_letters",
        );
        let started = Instant::now();
        run(&mut client, "CALL queue.maintain()");
        let took = stalls::since(started);
        assert!(took < Duration::from_secs(15), "{took:?}");
        assert!(
            number(&mut client, "SELECT count(*) FROM queue.tasks WHERE queue = 'b' AND state = 'queued'")
                > 1
        );
        assert_eq!(
            number(&mut client, "SELECT count(*) FROM queue.schedules WHERE last_error IS NOT NULL"),
            11,
            "each had its turn in one call, though they waited for longer than one transaction takes"
        );
        run(&mut holder, "ROLLBACK");
        // A schedule that failed is left alone for as long as it was overdue, 30 s at most.
        eventually("the rest is done by later calls", 2 * SOON, || {
            run(&mut client, "CALL queue.maintain()");
            number(&mut client, "SELECT count(*) FROM queue.dead_letters") == 1
                && number(&mut client, "SELECT count(*) FROM queue.tasks WHERE key = 'nightly'") == 11
        });
    }
}

#[test]
fn a_schedule_years_behind_delays_no_other_schedule() {
    let (mut cluster, mut client, worker) = start("behind");
    run(&mut client, TICK);
    run(
        &mut client,
        "SELECT queue.schedule('behind ' || n, '* * * * * *', 'a', options => '{\"missed_runs\": \"all\"}')
         FROM generate_series(1, 5) AS n;
         UPDATE queue.schedules SET next_run_at = '2020-01-01' WHERE queue = 'a'",
    );
    let run_so_far = "SELECT count(*) FROM queue.tasks WHERE queue = 'a'";
    // At the latest by the next sweep.
    eventually("the worker has noticed", SOON, || number(&mut client, run_so_far) > 5);
    b_is_in_time(&mut client, while_it_lasts());
    assert!(number(&mut client, run_so_far) > 500);
    assert!(
        number(&mut client, "SELECT count(DISTINCT next_run_at) FROM queue.schedules WHERE queue = 'a'") <= 2,
        "they take turns"
    );
    assert_eq!(cluster.await_worker("postgres"), worker);
}

#[test]
fn six_hundred_thousand_tasks_of_another_queue_delay_no_schedule() {
    let (mut cluster, mut client, worker) = start("many");
    // Leases that are not in a lane: for the next minutes, each scan finds a batch of them.
    run(
        &mut client,
        "SET session_replication_role = replica;
         INSERT INTO queue.tasks (queue, state, attempt, token, lease_until, claimed_at)
         SELECT 'a', 'running', 1, 1, now() + n * interval '1 ms', now() FROM generate_series(1, 20000) AS n;
         INSERT INTO queue.tasks (queue, run_at) SELECT 'a', now() + interval '1 day' FROM generate_series(1, 580000);
         SET session_replication_role = origin; ANALYZE queue.tasks",
    );
    run(&mut client, TICK);
    let started = Instant::now();
    run(&mut client, "BEGIN; SELECT queue_internal.reap(1000); ROLLBACK");
    let all_at_once = started.elapsed().as_millis() as i64;
    let time = while_it_lasts() * 3;
    let longest = "SELECT coalesce(extract(epoch FROM clock_timestamp() - max(xact_start)) * 1000, 0)::bigint
                   FROM pg_stat_activity WHERE backend_type = 'queue_ext worker'";
    let (started, excuse, mut most) = (Instant::now(), excuse_of_worker(&mut client), 0);
    while stalls::since(started) < time {
        // Each short lease causes a check.
        run(
            &mut client,
            "BEGIN; SELECT set_config('queue.fast_path', 'off', true), queue.push('b', priority => -1), queue.claim('1 ms', 'b'); COMMIT",
        );
        most = most.max(number(&mut client, longest));
        std::thread::sleep(Duration::from_millis(20));
    }
    let runs = "SELECT count(*) FROM queue.all_tasks WHERE queue = 'b' AND headers ? 'schedule'";
    let late = "SELECT max(extract(epoch FROM created_at - (headers ->> 'scheduled_for')::timestamptz) * 1000)::bigint
                FROM queue.all_tasks WHERE queue = 'b' AND headers ? 'schedule'";
    let (runs, late) = (number(&mut client, runs), number(&mut client, late));
    println!(
        "{runs} runs in {time:?}, {late} ms late at most; the longest transaction of the worker took {most} ms, all at once {all_at_once} ms"
    );
    assert!(runs + 1 >= time.saturating_sub(excuse.so_far()).as_secs() as i64, "{runs} runs in {time:?}");
    let excused = excuse.so_far().as_millis() as i64;
    assert!(late < 1000 + excused, "a run of b was {late} ms late");
    // A piece small enough that other sessions do not wait for it.
    assert!(
        most < all_at_once,
        "a transaction of the worker took {most} ms, reading it all {all_at_once} ms"
    );
    assert_eq!(cluster.await_worker("postgres"), worker);
}

#[test]
fn a_failed_notification_stops_nothing_else() {
    let (mut cluster, mut client, worker) = start("notify");
    run(&mut client, TICK);
    // As where the server's queue of notifications is full.
    run(&mut client, "ALTER FUNCTION queue.channel RENAME TO gone; SELECT queue.push('a')");
    eventually("it is said", SOON, || cluster.log().contains("notifying listeners failed"));
    b_is_in_time(&mut client, while_it_lasts());
    run(&mut client, "ALTER FUNCTION queue.gone RENAME TO channel");
    assert_eq!(cluster.await_worker("postgres"), worker);
    let said = cluster.log().matches("notifying listeners failed").count();
    assert!(said < 10, "{said} lines");
}

#[test]
fn twenty_thousand_priorities_cost_a_sweep_no_more_than_a_hundred() {
    let (_cluster, mut client, _worker) = start("priorities");
    run(&mut client, TICK);
    run(
        &mut client,
        "INSERT INTO queue.tasks (queue, priority, run_at)
         SELECT 'a', n, now() + CASE WHEN n = 20000 THEN interval '-1 second' ELSE '1 day' END
         FROM generate_series(1, 20000) AS n; ANALYZE queue.tasks",
    );
    const LIMIT: Duration = Duration::from_millis(150);
    let best = at_best(LIMIT, || {
        let started = Instant::now();
        let ready = text(
            &mut client,
            "SELECT array_to_string(ready, ',') FROM queue_internal.due_queues('-infinity', clock_timestamp())",
        );
        assert!(ready.contains('a'), "{ready}");
        started.elapsed()
    });
    println!("20,000 priorities: {best:?}");
    assert!(best < LIMIT, "{best:?}");
    b_is_in_time(&mut client, while_it_lasts());
}

#[test]
fn no_stored_row_breaks_functions_that_read_all_rows() {
    let (_cluster, mut client, _worker) = start("rows");
    for (statement, code) in [
        ("INSERT INTO queue.tasks (queue, state, lease_until) VALUES ('a', 'running', '-infinity')", "22023"),
        ("INSERT INTO queue.tasks (queue, created_at) VALUES ('a', 'infinity')", "22023"),
        ("INSERT INTO queue.bindings (topic_pattern, queue, topic_regex) VALUES ('a.b', 'a', '(')", "23514"),
        ("INSERT INTO queue.bindings (topic_pattern, queue, topic_regex) VALUES ('a.(', 'a', '^\\.a\\.($')", "22023"),
        ("INSERT INTO queue.schedules (name, cron, queue) VALUES ('s', '', 'a')", "23514"),
        ("INSERT INTO queue.schedules (name, cron, queue) VALUES ('s', 'x', 'a')", "23514"),
        ("INSERT INTO queue.schedules (name, cron, queue) VALUES ('s', repeat('*', 10000000), 'a')", "23514"),
        (
            "INSERT INTO queue.schedules (name, cron, queue, next_run_at) VALUES ('s', '@daily', 'a', '-infinity')",
            "23514",
        ),
        (
            "INSERT INTO queue.dead_letters (id, queue, priority, run_at, attempt, token, created_at, failed_at, payload)
             VALUES (1, 'a', 0, now(), 1, 1, now(), '-infinity', '1')",
            "23514",
        ),
    ] {
        let error = client.batch_execute(statement).expect_err(statement);
        assert_eq!(error.code().map(|code| code.code()), Some(code), "{statement}: {error:?}");
    }
    // Past all checks, as a superuser can.
    run(
        &mut client,
        "SELECT queue.bind('news.#', 'a'), queue.bind('news.#', 'b'); DELETE FROM queue.queues WHERE name = 'a'",
    );
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue.publish('news.today')"), 1);
    run(
        &mut client,
        "UPDATE queue.tasks SET run_at = '-infinity' WHERE queue = 'b'; SELECT * FROM queue.health()",
    );
    run(&mut client, "SELECT * FROM queue.stats");
    run(
        &mut client,
        "UPDATE queue.tasks SET state = 'running', lease_until = '-infinity'; SELECT * FROM queue.health();
         SELECT queue_internal.reap(NULL)",
    );
}

#[test]
fn roles_without_rights_cannot_block_partitions_and_one_day_blocks_no_other() {
    let (cluster, mut client, _worker) = start("partitions");
    without_worker(&mut client);
    run(&mut client, "CREATE ROLE nobody LOGIN");
    let mut nobody = cluster.config("postgres").user("nobody").connect(postgres::NoTls).expect("connect");
    run(&mut nobody, "SELECT pg_advisory_lock(hashtext('queue_ext history'), 0)");
    run(
        &mut client,
        "INSERT INTO queue.history (id, queue, state, priority, run_at, attempt, token, created_at, finished_at, payload)
         SELECT n, 'a', 'completed', 0, now(), 1, 1, now(), date_trunc('day', now(), 'UTC') + interval '36 hours', '1'
         FROM generate_series(1, 10001) AS n",
    );
    run(&mut client, "CALL queue.maintain()");
    let days = "SELECT count(*) FROM queue_internal.history_partitions() AS p WHERE p.attached";
    assert_eq!(number(&mut client, days), 3, "today and three days but tomorrow");
}

#[test]
fn a_partition_created_by_hand_blocks_no_other_day_and_health_reports_it() {
    let (_cluster, mut client, _worker) = start("by-hand");
    without_worker(&mut client);
    let attach = |client: &mut Client, name: &str, from: &str, to: &str| {
        let bound = |offset: &str| format!("date_trunc('day', now(), 'UTC') + interval '{offset}'");
        let statement = format!(
            "DO $$ BEGIN EXECUTE format(
                 'CREATE TABLE {name} PARTITION OF queue.history FOR VALUES FROM (%L) TO (%L)', {}, {}); END $$",
            bound(from),
            bound(to)
        );
        run(client, &statement);
    };
    attach(&mut client, "half", "36 hours", "48 hours");
    attach(&mut client, "later", "72 hours", "1000 hours");
    run(&mut client, "SELECT queue.push('a')");
    run(&mut client, "CALL queue.maintain()");
    let days = "SELECT count(*) FROM queue_internal.history_partitions() AS p WHERE p.attached";
    assert_eq!(number(&mut client, days), 2, "today and the day after tomorrow");
    let rest = "SELECT queue_internal.extend_history()::integer::bigint";
    assert_eq!(number(&mut client, rest), 1, "nothing is left to do");
    let said = "SELECT status || ': ' || detail FROM queue.health() WHERE name = 'partitions'";
    let part = "warning: the partition public.half holds only a part of tomorrow, so no other is created for that day";
    assert_eq!(text(&mut client, said), part);
    run(&mut client, "DROP TABLE half");
    attach(&mut client, "whole", "24 hours", "48 hours");
    assert_eq!(text(&mut client, said), "ok: the partition public.whole holds tomorrow");
}

#[test]
fn a_task_that_cannot_be_ended_is_logged_once_and_then_rarely() {
    let (cluster, mut client, _worker) = start("stuck");
    without_worker(&mut client);
    run(
        &mut client,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
         SELECT count(queue.push('a')) FROM generate_series(1, 50); SELECT queue.claim('1 hour', 'a', 50);
         CREATE TRIGGER refuse BEFORE UPDATE ON queue.tasks FOR EACH ROW
         WHEN (NEW.state = 'queued') EXECUTE FUNCTION refuse()",
    );
    let said = || cluster.log().matches("cannot be ended").count();
    for (overdue, lines) in [("10 seconds", 5), ("10 minutes", 5), ("60 minutes 20 seconds", 10)] {
        // Another session, because each counts its own lines.
        let mut client = cluster.connect();
        run(&mut client, &format!("UPDATE queue.tasks SET lease_until = now() - interval '{overdue}'"));
        run(&mut client, "SELECT queue.reap(); SELECT queue.reap()");
        assert_eq!(said(), lines, "{overdue}");
    }
    // A minute later it may log again. What somebody else has written there counts as nothing.
    let mut may_log = |kept: &str| {
        run(&mut client, &format!("SELECT set_config('queue_log.lease_' || md5('a'), {kept}, false)"));
        number(&mut client, "SELECT queue_internal.may_log('lease', 'a')::integer::bigint")
    };
    let ago = |seconds: i32| format!("floor(extract(epoch FROM now()) - {seconds}) || ' 5'");
    assert_eq!([may_log(&ago(10)), may_log(&ago(70)), may_log(&ago(-100)), may_log("'x'")], [0, 1, 1, 1]);
}
