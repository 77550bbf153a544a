//! The counters behind queue.stats are right without counting, whatever happens. tests/native.rs checks them after
//! random histories.

#[allow(dead_code)]
#[path = "../../src/lanes/counters.rs"]
mod counters;

use std::io::Write;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use queue_ext_tests::{Cluster, SOON, Settings, counters_agree, eventually, run};

fn cluster(name: &str) -> Cluster {
    let extra = "max_prepared_transactions = 10\nautovacuum = off\nmax_wal_size = '8GB'";
    let mut cluster = Cluster::installed(name, &Settings { preload: true, extra });
    cluster.await_worker("postgres");
    run(&mut cluster.connect(), "SELECT queue.create('second'), queue.create('grouped')");
    cluster
}

fn read(client: &mut Client) {
    client.query("SELECT * FROM queue.stats", &[]).expect("queue.stats");
}

/// Pushes, claims and ends tasks of a queue in every way, until it has to stop.
fn work(mut client: Client, seed: u64, stop: &AtomicBool, done: &AtomicU64) {
    let mut n = seed;
    while !stop.load(Ordering::Relaxed) {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let queue = ["default", "second", "grouped"][(n >> 33) as usize % 3];
        let group = if queue == "grouped" { "'g' || n % 5" } else { "NULL" };
        let one = format!("FROM queue.claim('1 hour', '{queue}', 3) AS c");
        let statement = match (n >> 40) % 10 {
            0 | 1 => {
                format!("SELECT queue.push('{queue}', group_key => {group}) FROM generate_series(1, 5) AS n")
            }
            2 => format!(
                "SELECT queue.push('{queue}', delay => n * interval '0.3 s') FROM generate_series(1, 5) AS n"
            ),
            3 => format!("SELECT queue.complete(c.id, c.token) {one}"),
            4 => format!("SELECT queue.fail(c.id, c.token, 'x', permanent => c.attempt % 2 = 0) {one}"),
            5 => format!("BEGIN; SELECT queue.complete(c.id, c.token) {one}; ROLLBACK"),
            6 => format!(
                "BEGIN; SELECT queue.push('{queue}'); SAVEPOINT s; SELECT queue.push('{queue}', delay => '1 hour'); \
                          ROLLBACK TO s; SELECT queue.complete(c.id, c.token) {one}; COMMIT"
            ),
            7 => format!(
                "SELECT queue.cancel(t.id) FROM (SELECT id FROM queue.tasks WHERE queue = '{queue}' AND state = 'queued' \
                          LIMIT 2 FOR UPDATE SKIP LOCKED) AS t"
            ),
            8 => format!("SELECT queue.redrive('{queue}', 1)"),
            _ => format!("SELECT queue.release(c.id, c.token, '0.2 s') {one}"),
        };
        match client.batch_execute(&statement) {
            Ok(()) => {}
            // Another session was faster.
            Err(error)
                if error.code().is_some_and(|code| matches!(code.code(), "QX001" | "QX002" | "QX003")) =>
            {
                run(&mut client, "ROLLBACK");
            }
            Err(error) => panic!("{statement}: {error:?}"),
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many blocks it takes to read the numbers.
fn blocks_read(client: &mut Client) -> u64 {
    let plan = client.query("EXPLAIN (ANALYZE, BUFFERS) SELECT * FROM queue.stats", &[]).expect("explain");
    let hits = plan
        .iter()
        .filter_map(|row| row.get::<_, &str>(0).split_once("shared hit=").map(|found| found.1.to_owned()));
    let counts = hits.map(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().expect("a number of blocks")
    });
    counts.max().expect("blocks")
}

#[test]
fn the_numbers_of_a_queue_without_due_tasks_do_not_depend_on_those_that_have_ended() {
    let cluster = cluster("ended");
    let mut client = cluster.connect();
    let mut old = cluster.connect();
    run(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM queue.tasks");
    run(&mut client, "SELECT queue.push('default', delay => '1 day')");
    read(&mut client);
    let before = blocks_read(&mut client);
    run(
        &mut client,
        "SELECT queue.push_many('default', array_fill('1'::jsonb, ARRAY[20000]));
         SELECT queue.complete_many(array_agg(id), array_agg(token)) FROM queue.claim('1 hour', max_tasks => 20000)",
    );
    let after = blocks_read(&mut client);
    assert!(after < before + 500, "{before} blocks before, {after} blocks afterwards");
    run(&mut old, "COMMIT");
}

/// Waits until nothing changes by itself any more: no task becomes due, and no event is left.
fn comes_to_rest(client: &mut Client) {
    eventually("nothing more happens by itself", SOON, || {
        let more = "SELECT (SELECT count(*) FROM queue.tasks
                            WHERE run_at BETWEEN now() AND now() + interval '30 minutes')
                           + (SELECT count(*) FROM queue_internal.events)";
        client.query_one(more, &[]).expect("count").get::<_, i64>(0) == 0
    });
}

/// Runs workers for as long as `meanwhile` lasts; returns how many statements they made.
fn under_load(cluster: &Cluster, meanwhile: impl FnOnce()) -> u64 {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 1..=6 {
            let client = cluster.config("postgres").connect(NoTls).expect("connect");
            let (stop, done) = (&stop, &done);
            scope.spawn(move || work(client, seed, stop, done));
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    done.into_inner()
}

#[test]
fn counters_are_right_whenever_they_start() {
    let cluster = cluster("counters-load");
    let mut client = cluster.connect();
    let mut statements = 0;
    for _ in 0..10 {
        statements += under_load(&cluster, || {
            let until = Instant::now() + Duration::from_millis(500);
            while Instant::now() < until {
                // After the end of a prepared transaction that changed tasks, everything is counted again while the
                // load continues.
                run(
                    &mut client,
                    "BEGIN; SELECT queue.push('default', delay => '1 hour'); PREPARE TRANSACTION 'other'",
                );
                run(&mut client, "COMMIT PREPARED 'other'");
                read(&mut client);
            }
        });
        comes_to_rest(&mut client);
        counters_agree(&mut client);
    }
    println!("{statements} statements");
    assert!(statements > 100, "{statements}");
}

/// A session that begins a count reads the number, takes a snapshot, and compares the number. The snapshot may be older
/// than the commit that made the counters unknown.
#[test]
fn a_count_does_not_begin_with_a_snapshot_from_before_the_counters_were_invalidated() {
    // SAFETY: numbers, arrays of numbers, and a state with the value 0, as when shared memory is created.
    let mut counters = unsafe { MaybeUninit::<counters::TaskCounters>::zeroed().assume_init() };
    let before = counters.published();
    counters.invalidate();
    assert_ne!(counters.published(), before);
}

#[test]
fn counters_are_right_after_a_crash() {
    let mut cluster = cluster("counters-crash");
    for _ in 0..5 {
        under_load(&cluster, || {
            let mut client = cluster.connect();
            read(&mut client);
            let tasks = "SELECT count(*) FROM queue.history WHERE finished_at > now() - interval '1 second'";
            eventually("work is done", SOON, || {
                client.query_one(tasks, &[]).expect("count").get::<_, i64>(0) > 50
            });
        });
        let mut unfinished = cluster.connect();
        run(
            &mut unfinished,
            "BEGIN; SELECT queue.push('default') FROM generate_series(1, 10); SELECT queue.claim('1 hour')",
        );
        cluster.kill_postmaster();
        cluster.launch();
        let mut client = cluster.connect();
        run(&mut client, "SELECT queue.push('default')");
        read(&mut client);
        run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim('1 hour')");
        comes_to_rest(&mut client);
        counters_agree(&mut client);
    }
}

#[test]
fn everything_that_writes_is_counted() {
    let cluster = cluster("counters-writes");
    let mut client = cluster.connect();
    let (ms, hour) = ("clock_timestamp()", "clock_timestamp() + interval '1 hour'");
    read(&mut client);
    let mut copy = client.copy_in("COPY queue.tasks (queue, payload) FROM STDIN").expect("COPY");
    copy.write_all("default\t{}\n".repeat(100).as_bytes()).expect("COPY");
    copy.finish().expect("COPY");
    counters_agree(&mut client);
    for (what, statements) in [
        ("INSERT", format!("INSERT INTO queue.tasks (queue, run_at) SELECT 'default', {ms} FROM generate_series(1, 100)")),
        ("for later", format!("INSERT INTO queue.tasks (queue, run_at) SELECT 'default', {hour} + n * interval '1 minute' FROM generate_series(1, 100) AS n")),
        ("more than there is room to note", format!("INSERT INTO queue.tasks (queue, run_at) SELECT 'default', {hour} + n * interval '1 minute' FROM generate_series(1, 3000) AS n")),
        ("UPDATE", format!("UPDATE queue.tasks SET run_at = {hour} WHERE id % 3 = 0")),
        ("DELETE", "DELETE FROM queue.tasks WHERE id % 5 = 0".to_owned()),
        ("savepoints", "DO $$ BEGIN FOR n IN 1 .. 1000 LOOP
                            BEGIN PERFORM queue.push('default', delay => n * interval '1 minute');
                                  IF n % 2 = 0 THEN RAISE 'no'; END IF;
                            EXCEPTION WHEN raise_exception THEN END;
                        END LOOP; END $$".to_owned()),
        ("as a replica does", "SET session_replication_role = replica; DELETE FROM queue.tasks WHERE id % 7 = 0;
                               RESET session_replication_role".to_owned()),
        ("triggers off", "ALTER TABLE queue.tasks DISABLE TRIGGER ALL; DELETE FROM queue.tasks WHERE id % 11 = 0;
                          ALTER TABLE queue.tasks ENABLE TRIGGER ALL".to_owned()),
        ("prepared", "BEGIN; SELECT queue.push('default') FROM generate_series(1, 20); PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'".to_owned()),
        ("fail for good", "SELECT queue.fail(id, token, 'x', permanent => true) FROM queue.claim('1 hour', max_tasks => 20)".to_owned()),
        ("redrive", "SELECT queue.redrive('default', 5)".to_owned()),
        ("purge", "CALL queue.purge_where('{\"queue\": \"default\", \"state\": \"failed\"}')".to_owned()),
        ("a new queue", "SELECT queue.create('other'); SELECT queue.push('other', after => ARRAY[queue.push('other')])".to_owned()),
        ("TRUNCATE", "TRUNCATE queue.tasks, queue.history, queue.dead_letters".to_owned()),
    ] {
        for statement in split(&statements) {
            client.batch_execute(statement).unwrap_or_else(|error| panic!("{what}: {error:?}"));
        }
        counters_agree(&mut client);
    }
}

/// The statements one by one, since some cannot stand in a transaction with others.
fn split(statements: &str) -> Vec<&str> {
    if statements.contains("$$") { vec![statements] } else { statements.split(';').collect() }
}

#[test]
fn tasks_that_become_due_are_counted_as_due() {
    let cluster = cluster("counters-due");
    let mut client = cluster.connect();
    run(&mut client, "INSERT INTO queue.tasks (queue, run_at)
                      SELECT 'default', clock_timestamp() + n * interval '10 ms' FROM generate_series(1, 300) AS n");
    read(&mut client);
    let numbers = "SELECT queued, scheduled, (SELECT count(*) FROM queue.tasks WHERE run_at <= now())
                   FROM queue.stats WHERE queue = 'default'";
    let due_now = "SELECT count(*) FROM queue.tasks WHERE run_at <= now()";
    let mut seen = 0;
    eventually("all are due", SOON, || {
        let row = client.query_one(numbers, &[]).expect("queue.stats");
        let [queued, scheduled, due]: [i64; 3] = std::array::from_fn(|i| row.get(i));
        assert_eq!(queued + scheduled, 300);
        // The counters read the clock after the statement began, and before the next one.
        let later: i64 = client.query_one(due_now, &[]).expect("count").get(0);
        assert!((due..=later).contains(&queued), "{queued} queued, {due} to {later} due");
        seen += i32::from(scheduled > 0 && queued > 0);
        queued == 300
    });
    assert!(seen > 0, "no reading in between");
}

#[test]
fn reading_the_counters_costs_the_same_with_a_million_tasks() {
    let cluster = cluster("counters-cost");
    let mut client = cluster.connect();
    run(&mut client, "INSERT INTO queue.tasks (queue, run_at)
                      SELECT 'default', clock_timestamp() + n * interval '0.1 second' FROM generate_series(-500000, 500000) AS n;
                      ANALYZE queue.tasks");
    let mut took = |setting: &str, times: usize| {
        run(&mut client, &format!("SET queue.fast_path = {setting}"));
        read(&mut client);
        let times = (0..times).map(|_| {
            let started = Instant::now();
            read(&mut client);
            started.elapsed()
        });
        times.min().expect("some")
    };
    let (known, counted) = (took("on", 50), took("off", 3));
    // Nor are compiled those parts of the query that are not needed.
    run(&mut client, "SET queue.fast_path = on; SET jit = on; SET jit_above_cost = 10000");
    let plan = client.query("EXPLAIN SELECT * FROM queue.stats", &[]).expect("a plan");
    assert!(plan.iter().all(|line| !line.get::<_, &str>(0).contains("JIT")), "queue.stats is compiled");
    println!("{known:?} from counters, {counted:?} by counting");
    assert!(known * 30 < counted, "{known:?} from counters, {counted:?} by counting");
}

#[test]
fn the_running_tasks_are_found_without_reading_the_others() {
    let mut cluster = cluster("counters-running");
    let mut client = cluster.connect();
    run(
        &mut client,
        "INSERT INTO queue.tasks (queue) SELECT unnest(ARRAY['default', 'second', 'grouped']) FROM generate_series(1, 3000);
         SELECT queue.claim('1 hour', worker => 'ada', max_tasks => 10);
         SELECT queue.claim('1 hour', 'second', worker => 'bob', max_tasks => 3)",
    );
    let read = |client: &mut Client, what: &str| {
        // The first read may count.
        run(client, "SELECT FROM queue.workers; BEGIN");
        let workers = "SELECT string_agg(concat_ws(' ', queue, worker, running), ', ' ORDER BY queue) FROM queue.workers";
        let query = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'queue.tasks'::regclass";
        let tasks_read =
            |client: &mut Client| client.query_one(query, &[]).expect("statistics").get::<_, i64>(0);
        let before = tasks_read(client);
        let shown: String = client.query_one(workers, &[]).expect("queue.workers").get(0);
        let tasks = tasks_read(client) - before;
        run(client, "COMMIT");
        assert!(tasks < 100, "{what}: {tasks} tasks were read");
        shown
    };
    assert_eq!(read(&mut client, "at first"), "default ada 10, second bob 3");
    run(
        &mut client,
        "SELECT queue.complete_many(array_agg(id), array_agg(token)) FROM (
             SELECT id, token FROM queue.tasks WHERE queue = 'default' AND state = 'running' LIMIT 4) AS t;
         SELECT queue.extend(id, token, '2 hours') FROM queue.tasks WHERE state = 'running';
         SELECT queue.claim('10 milliseconds', 'grouped', worker => 'eve')",
    );
    // While it ends, the lane no longer has the lease and the counter still has the task.
    eventually("the last lease expires", SOON, || {
        let running = "SELECT count(*) FROM queue.tasks WHERE state = 'running'";
        client.query_one(running, &[]).expect("count").get::<_, i64>(0) == 9
    });
    assert_eq!(read(&mut client, "after some ended"), "default ada 6, second bob 3");
    // More than a transaction keeps individually.
    run(&mut client, "DELETE FROM queue.tasks WHERE queue = 'grouped'");
    assert_eq!(read(&mut client, "after many were deleted"), "default ada 6, second bob 3");
    cluster.stop("fast");
    cluster.launch();
    let mut client = cluster.connect();
    assert_eq!(read(&mut client, "after a restart"), "default ada 6, second bob 3");
    counters_agree(&mut client);
}

#[test]
fn a_running_task_that_changes_its_queue_is_not_shown_twice() {
    let cluster = cluster("counters-moved");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.push_many('default', array_fill('1'::jsonb, ARRAY[120]));
         SELECT queue.claim('1 hour', worker => 'w', max_tasks => 120); SELECT FROM queue.stats",
    );
    let (stop, mut mover) = (AtomicBool::new(false), cluster.connect());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                run(
                    &mut mover,
                    "UPDATE queue.tasks AS t SET queue = CASE t.queue WHEN 'default' THEN 'second' ELSE 'default' END
                     FROM (SELECT id FROM queue.tasks ORDER BY random() LIMIT 10) AS m WHERE t.id = m.id",
                );
            }
        });
        for _ in 0..500 {
            let shown = client
                .query_one("SELECT sum(running)::bigint FROM queue.workers", &[])
                .expect("queue.workers");
            let shown: i64 = shown.get(0);
            // The lanes of the two queues get to know of a change one after the other. Between that, its ten tasks are in none.
            let right = (110..=120).contains(&shown);
            stop.fetch_or(!right, Ordering::Relaxed);
            assert!(right, "{shown} tasks are shown");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// No trigger publishes changes then, so the tables are counted.
#[test]
fn counters_are_not_used_while_triggers_are_disabled() {
    let cluster = cluster("counters-silent");
    let mut client = cluster.connect();
    let queued = "SELECT queued::bigint FROM queue.stats WHERE queue = 'default'";
    let completed = "SELECT completed_last_hour::bigint FROM queue.stats WHERE queue = 'default'";
    let mut number = |statements: &str, query: &str| -> i64 {
        run(&mut client, statements);
        client.query_one(query, &[]).expect("queue.stats").get(0)
    };
    assert_eq!(number("SELECT queue.push('default') FROM generate_series(1, 3)", queued), 3);
    assert_eq!(number("ALTER TABLE queue.tasks DISABLE TRIGGER USER", queued), 3);
    assert_eq!(number("DELETE FROM queue.tasks WHERE id = 1", queued), 2);
    assert_eq!(number("ALTER TABLE queue.tasks ENABLE ALWAYS TRIGGER task_changed", queued), 2);
    // One that is missing is enough.
    assert_eq!(number("INSERT INTO queue.tasks (queue) VALUES ('default')", queued), 3);
    assert_eq!(number("ALTER TABLE queue.tasks ENABLE ALWAYS TRIGGER tasks_announced", queued), 3);
    assert_eq!(number("TRUNCATE queue.tasks", queued), 0);
    assert_eq!(number("ALTER TABLE queue.tasks ENABLE TRIGGER USER", queued), 0);
    assert_eq!(number("ALTER TABLE queue.history DISABLE TRIGGER history_counted", completed), 0);
    let archived = "INSERT INTO queue.history (id, queue, state, priority, run_at, attempt, token, created_at, finished_at, payload)
                    VALUES (1, 'default', 'completed', 0, now(), 1, 1, now(), now(), '0')";
    assert_eq!(number(archived, completed), 1);
    assert_eq!(number("ALTER TABLE queue.history ENABLE ALWAYS TRIGGER history_counted", completed), 1);
    assert_eq!(number("ALTER TABLE queue.history DISABLE TRIGGER history_uncounted", completed), 1);
    assert_eq!(number("DELETE FROM queue.history", completed), 0);
}

#[test]
fn the_numbers_of_a_queue_are_shown_to_its_operators_and_to_pg_monitor() {
    let cluster = cluster("counters-rights");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.push('default') FROM generate_series(1, 3);
                      CREATE ROLE reader; GRANT pg_monitor TO reader;
                      CREATE ROLE curious; GRANT USAGE ON SCHEMA queue TO curious; GRANT SELECT ON queue.stats TO curious;
                      CREATE ROLE stranger; GRANT USAGE ON SCHEMA queue_internal TO stranger;
                      CREATE ROLE worker; SELECT queue.grant_worker('worker', 'default')");
    let first = "SELECT queued FROM queue.stats WHERE queue = 'default'";
    run(&mut client, "SET ROLE reader");
    // The first reader makes the count, without any privilege on the tables.
    for _ in 0..2 {
        assert_eq!(client.query_one(first, &[]).expect("queue.stats").get::<_, i64>(0), 3);
    }
    run(&mut client, "RESET ROLE; SET ROLE curious");
    let all = "SELECT count(*) FROM queue.stats";
    assert_eq!(
        client.query_one(all, &[]).expect("queue.stats").get::<_, i64>(0),
        0,
        "the privilege is no right"
    );
    run(&mut client, "RESET ROLE; SELECT queue.claim()");
    let direct = ["counted(ARRAY['default'])", "count_tables(ARRAY['default'])", "running_tasks()"];
    for role in ["stranger", "worker"] {
        run(&mut client, &format!("RESET ROLE; SET ROLE {role}"));
        for function in direct {
            let query = format!("SELECT count(*) FROM queue_internal.{function}");
            let shown: i64 = client.query_one(&query, &[]).expect("a count").get(0);
            assert_eq!(shown, 0, "{function} for {role}");
        }
    }
    run(&mut client, "RESET ROLE");
    counters_agree(&mut client);
}
