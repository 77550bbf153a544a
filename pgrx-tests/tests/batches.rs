//! A batch calls back exactly once, with the right counts, whatever happens meanwhile.
//!
//! BATCH_TASKS sets the size of the batch, 1,000 by default, and WORKERS the number of workers, 32 by default.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postgres::{Client, Config, NoTls};
use queue_ext_tests::{Cluster, Edition, SOON, Worker, brief, eventually, number, run, stalls, text};

/// The setting "queue.sweep_interval", or the interval at which queue.maintain() runs instead.
const SWEEP: Duration = Duration::from_secs(2);

fn from_environment(name: &str, default: i64) -> i64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// A server of the edition with a short sweep interval, and the queues "work" and "done".
fn cluster(edition: Edition, name: &str) -> Cluster {
    let cluster = edition.sweeping_cluster(&format!("batches-{name}"), Worker::On, SWEEP);
    run(
        &mut cluster.connect(),
        "SELECT queue.create('work', '{\"lease\": \"2 seconds\", \"backoff\": {\"base\": \"0\"}}'), queue.create('done');
         CREATE TABLE public.grown (id bigint PRIMARY KEY)",
    );
    cluster
}

/// What a worker does with a task of the batch, by the last digit of its payload.
fn handle(client: &mut Client, batch: i64) -> Result<bool, postgres::Error> {
    let claim = "SELECT id, token, payload #>> '{}', attempt FROM queue.claim(queue => 'work')";
    let Some(task) = client.query_opt(claim, &[])? else { return Ok(false) };
    let (id, token, attempt): (i64, i64, i32) = (task.get(0), task.get(1), task.get(3));
    let payload: String = task.get(2);
    match payload.chars().last() {
        // Fails for good.
        Some('0') => {
            client.batch_execute(&format!("SELECT queue.fail({id}, {token}, 'no', permanent => true)"))?
        }
        // Fails once.
        Some('1') if attempt == 1 => {
            client.batch_execute(&format!("SELECT queue.fail({id}, {token}, 'once')"))?
        }
        // Its only attempt ends with the lease.
        Some('2') => (),
        // Adds a task to its own batch.
        Some('3') => client.batch_execute(&format!(
            "BEGIN; SELECT queue.push('work', '5', batch => {batch}); INSERT INTO public.grown VALUES ({id});
             SELECT queue.complete({id}, {token}); COMMIT"
        ))?,
        Some('4') => client.batch_execute(&format!(
            "SELECT queue.cancel({id}); SELECT queue.confirm_cancel({id}, {token})"
        ))?,
        _ => client.batch_execute(&format!("SELECT queue.complete({id}, {token})"))?,
    }
    Ok(true)
}

/// Handles tasks, over a new connection after each error, until it is told to stop.
fn work(config: &Config, batch: i64, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let Ok(mut client) = config.connect(NoTls) else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        while !over.load(Ordering::Relaxed) && !client.is_closed() {
            match handle(&mut client, batch) {
                Ok(true) => (),
                Ok(false) => std::thread::sleep(Duration::from_millis(10)),
                Err(_) => drop(client.batch_execute("ROLLBACK")),
            }
        }
    }
}

/// Runs a statement again and again, over a new connection after each error.
fn repeat(config: &Config, statement: &str, pause: Duration, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        if let Ok(mut client) = config.connect(NoTls) {
            while client.batch_execute(statement).is_ok() && !over.load(Ordering::Relaxed) {
                std::thread::sleep(pause);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_growing_batch_calls_back_once_with_right_counts_despite_failures_a_crash_and_lost_events() {
    for edition in Edition::different().iter().copied() {
        grow(edition);
    }
}

fn grow(edition: Edition) {
    let tasks = from_environment("BATCH_TASKS", 1000);
    let workers = from_environment("WORKERS", 32);
    let mut cluster = cluster(edition, "grow");
    let config = cluster.config("postgres");
    let mut client = cluster.connect();
    let batch = number(&mut client, "SELECT queue.create_batch('done', '\"callback\"')");
    let push = |client: &mut Client, from: i64, to: i64| {
        run(
            client,
            &format!(
                "SELECT count(*)
                 FROM (SELECT array_agg(to_jsonb(n)) AS payloads, CASE WHEN n % 10 = 2 THEN 1 ELSE 20 END AS max_attempts
                       FROM generate_series({from}, {to}) AS n GROUP BY 2) AS p,
                      LATERAL queue.push_many('work', p.payloads, batch => {batch}, max_attempts => p.max_attempts)"
            ),
        );
    };
    push(&mut client, 1, tasks / 2);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Ends the threads even if an assertion fails.
        let _stop = Stop(&over);
        for _ in 0..workers {
            scope.spawn(|| work(&config, batch, &over));
        }
        let lose = "DELETE FROM queue_internal.events";
        scope.spawn(|| repeat(&config, lose, Duration::from_millis(100), &over));
        if edition == Edition::SqlOnly {
            scope.spawn(|| repeat(&config, "CALL queue.maintain()", SWEEP / 4, &over));
        }
        let limit = SOON + Duration::from_millis(tasks.unsigned_abs() * 20);
        eventually("some tasks have ended", limit, || {
            number(&mut client, "SELECT count(*) FROM queue.history") > 0
        });
        cluster.kill_postmaster();
        cluster.launch();
        let mut client = None;
        eventually("the server is back", SOON, || {
            client = cluster.try_connect("postgres");
            client.is_some()
        });
        let mut client = client.expect("connect");
        for from in (tasks / 2 + 1..=tasks).step_by(100) {
            push(&mut client, from, tasks.min(from + 99));
        }
        let grown = tasks / 10 + i64::from(tasks % 10 >= 3);
        eventually("the batch has grown", limit, || {
            number(&mut client, "SELECT count(*) FROM public.grown") == grown
        });
        assert_eq!(
            number(&mut client, "SELECT count(*) FROM queue.claim(queue => 'done')"),
            0,
            "not before it is sealed"
        );
        run(&mut client, &format!("SELECT queue.seal_batch({batch})"));
        eventually("all tasks end", limit, || {
            number(&mut client, "SELECT count(*) FROM queue.tasks WHERE queue = 'work'") == 0
        });
        let mut headers = None;
        eventually("the callback is claimed", SOON, || {
            let claimed = client.query_opt(
                "SELECT headers::text, queue.complete(id, token)::text FROM queue.claim('1 hour', 'done')",
                &[],
            );
            headers = claimed.expect("claim").map(|row| row.get::<_, String>(0));
            headers.is_some()
        });
        let counts = text(
            &mut client,
            "SELECT jsonb_build_object('batch', jsonb_build_object(
                 'completed', (SELECT count(*) FROM queue.history WHERE queue = 'work' AND state = 'completed'),
                 'failed', (SELECT count(*) FROM queue.dead_letters WHERE queue = 'work'),
                 'cancelled', (SELECT count(*) FROM queue.history WHERE queue = 'work' AND state = 'cancelled')))::text",
        );
        assert_eq!(headers.as_deref(), Some(&*counts), "{}", edition.name());
        let all = "SELECT (SELECT count(*) FROM queue.history WHERE queue = 'work')
                          + (SELECT count(*) FROM queue.dead_letters WHERE queue = 'work')";
        assert_eq!(number(&mut client, all), tasks + grown, "{}", edition.name());
        println!("{}: {counts}", edition.name());
        // Nothing is left that could call back again.
        let left = "SELECT (SELECT count(*) FROM queue_internal.batches) + (SELECT count(*) FROM queue_internal.dependencies)";
        assert_eq!(number(&mut client, left), 0, "{}", edition.name());
        assert_eq!(number(&mut client, "SELECT count(*) FROM queue.all_tasks WHERE queue = 'done'"), 1);
        over.store(true, Ordering::Relaxed);
    });
}

/// Tells threads to stop.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_batch_whose_events_are_all_lost_calls_back_within_a_sweep_interval() {
    for edition in Edition::different().iter().copied() {
        let cluster = cluster(edition, "lost");
        let mut client = cluster.connect();
        // In one transaction each, so that no session processes the events.
        run(
            &mut client,
            "DO $$
             DECLARE
                 batch bigint := queue.create_batch('done', '\"of a task\"');
             BEGIN
                 PERFORM queue.push('work', batch => batch);
                 PERFORM queue.seal_batch(batch);
                 batch := queue.create_batch('done', '\"empty\"');
                 PERFORM queue.seal_batch(batch);
                 DELETE FROM queue_internal.events;
             END $$;
             BEGIN;
             SELECT queue.complete(id, token) FROM queue.claim(queue => 'work');
             DELETE FROM queue_internal.events;
             COMMIT",
        );
        let started = Instant::now();
        let mut done = 0;
        while done < 2 {
            assert!(
                stalls::since(started) < 3 * (SWEEP + Duration::from_secs(1)),
                "{}: {done} so far",
                edition.name()
            );
            if edition == Edition::SqlOnly {
                run(&mut client, "CALL queue.maintain()");
            }
            done += number(
                &mut client,
                "SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', 'done', 9)",
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_session_that_waits_for_the_callback_wakes_when_the_last_of_many_concurrent_ends_commits() {
    let cluster = cluster(Edition::FastPath, "wakes");
    run(&mut cluster.connect(), "ALTER SYSTEM SET queue.sweep_interval = '1h'");
    run(&mut cluster.connect(), "SELECT pg_reload_conf()");
    for _ in 0..if brief() { 2 } else { 10 } {
        let mut client = cluster.connect();
        let batch = number(&mut client, "SELECT queue.create_batch('done')");
        run(
            &mut client,
            &format!("SELECT queue.push_many('work', array_fill('1'::jsonb, ARRAY[8]), batch => {batch})"),
        );
        run(&mut client, &format!("SELECT queue.seal_batch({batch})"));
        let mut enders: Vec<Client> = (0..8).map(|_| cluster.connect()).collect();
        for ender in &mut enders {
            run(ender, "BEGIN; SELECT queue.complete(id, token) FROM queue.claim(queue => 'work')");
        }
        // Longer than the pause after which an event of a batch is due, and while all ends are uncommitted.
        std::thread::sleep(Duration::from_millis(250));
        let waits = cluster.connect();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || {
                let mut waits = waits;
                let row = waits.query_one("CALL queue.wait('done', '1 minute')", &[]).expect("wait");
                row.get::<_, bool>(0)
            });
            for ender in &mut enders {
                run(ender, "COMMIT");
            }
            assert!(waiter.join().expect("the waiter"), "it wakes");
        });
        // The worker may just be processing the event.
        eventually("the callback is claimed", SOON, || {
            number(&mut client, "SELECT count(queue.complete(id, token)) FROM queue.claim(queue => 'done')")
                == 1
        });
    }
}
