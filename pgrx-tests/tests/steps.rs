//! Steps, events and sleeping: flows of several steps go on where they stopped, whatever is killed, and each effect happens
//! once.
//!
//! FLOWS sets their number, 300 by default.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postgres::{Client, Config, Error, NoTls};
use queue_ext_tests::cluster::signal;
use queue_ext_tests::{Cluster, Edition, SOON, Worker, eventually, number, run};

fn flows() -> i64 {
    std::env::var("FLOWS").ok().and_then(|value| value.parse().ok()).unwrap_or(300)
}

fn cluster(edition: Edition, name: &str, worker: Worker) -> Cluster {
    edition.sweeping_cluster(&format!("steps-{name}"), worker, Duration::from_secs(1))
}

/// Connects as soon as that is possible; none if it is over.
fn connect(config: &Config, over: &AtomicBool) -> Option<Client> {
    while !over.load(Ordering::Relaxed) {
        if let Ok(client) = config.connect(NoTls) {
            return Some(client);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

/// What a session that may be killed has to expect: its end, a lease that expired meanwhile, and a deadlock.
fn expected(client: &Client, error: &Error) -> bool {
    client.is_closed()
        || error.code().is_some_and(|code| {
            ["57", "08", "40", "QX001"].iter().any(|start| code.code().starts_with(start))
        })
}

/// Ends all threads once one of them ends, also by a panic.
struct Guard<'a>(&'a AtomicBool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls `work` with a connection until it is over, each time with a new one after an error.
fn persist(config: &Config, over: &AtomicBool, mut work: impl FnMut(&mut Client) -> Result<(), Error>) {
    let _guard = Guard(over);
    while let Some(mut client) = connect(config, over) {
        while !over.load(Ordering::Relaxed) {
            if let Err(error) = work(&mut client) {
                assert!(expected(&client, &error), "{error:?}");
                break;
            }
        }
    }
}

/// Does the next task as far as it goes.
fn work(client: &mut Client) -> Result<(), Error> {
    let claim =
        "SELECT id, token, queue, payload::text FROM queue.claim('2 seconds', ARRAY['children', 'flows'])";
    let Some(task) = client.query_opt(claim, &[])? else {
        std::thread::sleep(Duration::from_millis(10));
        return Ok(());
    };
    let (id, token): (i64, i64) = (task.get(0), task.get(1));
    let (queue, payload): (String, String) = (task.get(2), task.get(3));
    if queue == "children" {
        client.execute("SELECT queue.complete($1, $2, to_jsonb($1::bigint))", &[&id, &token])?;
        return Ok(());
    }
    step(client, id, token, "reserve", "to_jsonb(17)")?;
    let slept: bool = client.query_one("SELECT queue.sleep($1, $2, 'nap', '50 ms')", &[&id, &token])?.get(0);
    if !slept {
        return Ok(());
    }
    // Two statements of one function cannot see each other: the push is a part of the value that is stored.
    step(client, id, token, "charge", "to_jsonb(queue.push('children'))")?;
    let child: i64 = client
        .query_one(
            "SELECT value::bigint FROM queue.steps($1) WHERE kind = 'step' AND name = 'charge'",
            &[&id],
        )?
        .get(0);
    let ended = "SELECT state, result::text FROM queue.await_task($1, $2, $3, '1 hour')";
    let Some(ended) = client.query_opt(ended, &[&id, &token, &child])? else { return Ok(()) };
    assert_eq!(ended.get::<_, String>(0), "completed");
    assert_eq!(ended.get::<_, Option<String>>(1), Some(child.to_string()));
    let event = "SELECT arrived, payload::text FROM queue.await_event($1, $2, 'paid ' || $3, '1 hour')";
    let Some(event) = client.query_opt(event, &[&id, &token, &payload])? else { return Ok(()) };
    assert!(event.get::<_, bool>(0), "it is not late");
    assert_eq!(event.get::<_, String>(1), payload);
    let mut transaction = client.transaction()?;
    transaction.execute("INSERT INTO public.effects VALUES ($1, 'ship')", &[&id])?;
    transaction.execute("SELECT queue.complete($1, $2)", &[&id, &token])?;
    transaction.commit()
}

/// One effect and its step, unless the step has been done.
fn step(client: &mut Client, id: i64, token: i64, name: &str, value: &str) -> Result<(), Error> {
    let done = "SELECT FROM queue.steps($1) WHERE kind = 'step' AND name = $2";
    let mut transaction = client.transaction()?;
    // First the lease, so that no other worker stores the step between the two statements.
    transaction.execute("SELECT queue.assert_lease($1, $2)", &[&id, &token])?;
    if transaction.query_opt(done, &[&id, &name])?.is_none() {
        transaction.execute("INSERT INTO public.effects VALUES ($1, $2)", &[&id, &name])?;
        transaction.execute(&format!("SELECT queue.step($1, $2, $3, {value})"), &[&id, &token, &name])?;
    }
    transaction.commit()
}

#[test]
fn flows_end_and_each_effect_happens_once_while_workers_and_the_server_are_killed() {
    for edition in Edition::different().iter().copied() {
        kill_all_the_time(edition, flows());
    }
}

fn kill_all_the_time(edition: Edition, flows: i64) {
    let mut cluster = cluster(edition, "killed", Worker::On);
    run(
        &mut cluster.connect(),
        &format!(
            "CREATE TABLE public.effects (task bigint, name text);
             SELECT queue.create('flows', '{{\"max_attempts\": 10000}}'), queue.create('children', '{{\"max_attempts\": 10000}}');
             SELECT count(queue.push('flows', to_jsonb(n))) FROM generate_series(1, {flows}) AS n"
        ),
    );
    let config = cluster.config("postgres");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (config, over) = (&config, &over);
        let guard = Guard(over);
        for number in 0..4 {
            scope.spawn(move || {
                let mut config = config.clone();
                config.application_name(&format!("worker {number}"));
                persist(&config, over, work);
            });
        }
        scope.spawn(move || {
            // Some of the events before the flows wait for them, some after.
            let mut next = 0;
            persist(config, over, |client| {
                if next < flows {
                    let n = next * 7919 % flows + 1;
                    client.execute(
                        "SELECT queue.emit('flows', 'paid ' || $1::bigint, to_jsonb($1::bigint))",
                        &[&n],
                    )?;
                    next += 1;
                }
                std::thread::sleep(Duration::from_millis(5));
                Ok(())
            });
        });
        scope.spawn(move || {
            // Kills only after something was done: on a slow machine, workers would never get to the end of a step.
            let mut seen = 0;
            persist(config, over, |client| {
                client.batch_execute("DELETE FROM queue_internal.events")?;
                let effects: i64 = client.query_one("SELECT count(*) FROM public.effects", &[])?.get(0);
                if effects > seen {
                    seen = effects;
                    client.batch_execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                         WHERE application_name LIKE 'worker %' ORDER BY random() LIMIT 1",
                    )?;
                }
                std::thread::sleep(Duration::from_millis(100));
                Ok(())
            });
        });
        if edition == Edition::SqlOnly {
            scope.spawn(move || {
                persist(config, over, |client| {
                    client.batch_execute("CALL queue.maintain()")?;
                    std::thread::sleep(Duration::from_millis(300));
                    Ok(())
                });
            });
        }
        let completed = "SELECT count(*) FROM queue.history WHERE queue = 'flows' AND state = 'completed'";
        let limit = SOON + Duration::from_millis(500) * u32::try_from(flows).expect("a small number");
        for part in 1..=3 {
            let mut client = cluster.connect();
            eventually("flows end", limit, || {
                assert!(!over.load(Ordering::Relaxed), "no client has failed");
                number(&mut client, completed) >= flows * part / 3
            });
            if part < 3 {
                drop(client);
                cluster.kill_all();
                cluster.launch();
            }
        }
        drop(guard);
    });
    let mut client = cluster.connect();
    let name = edition.name();
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue.tasks WHERE queue = 'flows'"), 0, "{name}");
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue.dead_letters"), 0, "{name}");
    let effects =
        "SELECT count(*) FROM (SELECT task, name FROM public.effects GROUP BY 1, 2 HAVING count(*) = 1) AS e";
    assert_eq!(number(&mut client, effects), 3 * flows, "{name}: each effect once");
    assert_eq!(
        number(&mut client, "SELECT count(*) FROM public.effects"),
        3 * flows,
        "{name}: and none twice"
    );
    let pushed = "SELECT count(*) FROM queue.all_tasks WHERE queue = 'children'";
    assert_eq!(number(&mut client, pushed), flows, "{name}: each child once");
    let steps = "SELECT count(*) FROM queue.history AS h, LATERAL queue.steps(h.id) WHERE h.queue = 'flows'";
    assert_eq!(number(&mut client, steps), 5 * flows, "{name}: two steps, the nap, the child and the event");
    run(&mut client, "CALL queue.maintain()");
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue_internal.awaits"), 0, "{name}");
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue_internal.dependencies"), 0, "{name}");
}

/// Claims a task, as soon as no other session is processing the event about it.
fn await_claim(client: &mut Client, queue: &str) -> (i64, i64) {
    let mut claimed = None;
    eventually("a task can be claimed", SOON, || {
        let claim = "SELECT id, token FROM queue.claim('10 minutes', $1)";
        claimed = client.query_opt(claim, &[&queue]).expect("claim").map(|row| (row.get(0), row.get(1)));
        claimed.is_some()
    });
    claimed.expect("a task")
}

#[test]
fn a_worker_is_woken_when_an_event_is_emitted_and_when_a_sleep_ends() {
    let cluster = cluster(Edition::FastPath, "woken", Worker::On);
    let mut client = cluster.connect();
    run(&mut client, "ALTER SYSTEM SET queue.sweep_interval = '1h'");
    run(&mut client, "SELECT pg_reload_conf(); SELECT queue.create('q'), queue.push('q')");
    for (wait, end) in [
        ("SELECT count(*) FROM queue.await_event($1, $2, 'go')", "SELECT queue.emit('q', 'go')"),
        ("SELECT count(*) FROM queue.await_event($1, $2, 'went', '1 day')", "SELECT queue.emit('q', 'went')"),
        ("SELECT queue.sleep($1, $2, 'nap', '1 second')::int::bigint", "SELECT"),
        ("SELECT count(*) FROM queue.await_event($1, $2, 'late', '1 second')", "SELECT"),
    ] {
        let (id, token) = await_claim(&mut client, "q");
        let answers: i64 = client.query_one(wait, &[&id, &token]).expect(wait).get(0);
        assert_eq!(answers, 0, "suspended: {wait}");
        std::thread::scope(|scope| {
            let woken = scope.spawn(|| {
                let mut waiter = cluster.connect();
                let ready: bool =
                    waiter.query_one("CALL queue.wait('q', '5 minutes')", &[]).expect("wait").get(0);
                ready
            });
            run(&mut client, end);
            assert!(woken.join().expect("the waiter"), "{wait}");
        });
        // Ends the attempt, so that the next one is another.
        let (id, token) = await_claim(&mut client, "q");
        let answers: i64 = client.query_one(wait, &[&id, &token]).expect(wait).get(0);
        assert_eq!(answers, 1, "{wait}");
        client.execute("SELECT queue.release($1, $2)", &[&id, &token]).expect("release");
    }
}

#[test]
fn many_tasks_that_wait_for_one_event_all_go_on() {
    for edition in Edition::different().iter().copied() {
        let cluster = cluster(edition, "many", Worker::On);
        let mut client = cluster.connect();
        run(
            &mut client,
            "SELECT queue.create('q'); SELECT count(queue.push('q')) FROM generate_series(1, 12000);
             SELECT count(*) FROM queue.claim('1 hour', 'q', 12000) AS c, LATERAL queue.await_event(c.id, c.token, 'go')",
        );
        assert_eq!(number(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'waiting'"), 12000);
        run(&mut client, "SELECT queue.emit('q', 'go')");
        eventually("all go on", 3 * SOON, || {
            if edition == Edition::SqlOnly {
                run(&mut client, "CALL queue.maintain()");
            }
            number(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'waiting'") == 0
        });
    }
}

#[test]
fn plain_tasks_read_and_write_no_steps() {
    let cluster = cluster(Edition::FastPath, "plain", Worker::Off);
    let mut client = cluster.connect();
    // In one transaction, whose statistics are exact.
    let touched: i64 = {
        let mut transaction = client.transaction().expect("begin");
        transaction
            .batch_execute(
                "SELECT queue.push('default'), queue.push('default'); SET LOCAL queue.fast_path = off;
                 SELECT queue.complete(id, token) FROM queue.claim('1 minute');
                 SELECT queue.fail(id, token, 'no', permanent => true) FROM queue.claim('1 minute')",
            )
            .expect("work");
        transaction
            .query_one(
                "SELECT coalesce(sum(seq_scan + coalesce(idx_scan, 0) + n_tup_ins), 0)::bigint FROM pg_stat_xact_all_tables
                 WHERE schemaname = 'queue_internal' AND relname IN ('steps', 'awaits', 'emitted')",
                &[],
            )
            .expect("statistics")
            .get(0)
    };
    assert_eq!(touched, 0);
}

#[test]
fn flows_go_on_after_the_processes_of_the_server_were_killed_one_by_one() {
    let mut cluster = cluster(Edition::FastPath, "background", Worker::On);
    run(
        &mut cluster.connect(),
        "SELECT queue.push('default');
         SELECT count(*) FROM queue.claim() AS c, LATERAL queue.await_event(c.id, c.token, 'go')",
    );
    signal(cluster.await_worker("postgres"), libc::SIGKILL);
    eventually("the server notices", SOON, || cluster.log().contains("was terminated by signal 9"));
    eventually("the server is back", SOON, || cluster.try_connect("postgres").is_some());
    cluster.await_worker("postgres");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.emit('default', 'go', '5')");
    let (id, token) = await_claim(&mut client, "default");
    let got = format!("SELECT count(*) FROM queue.await_event({id}, {token}, 'go') WHERE arrived");
    assert_eq!(number(&mut client, &got), 1);
}
