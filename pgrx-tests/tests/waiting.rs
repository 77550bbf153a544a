//! queue.wait and queue.wait_result: woken soon, one session for each task, and at no cost to others.
//!
//! Measurements are printed. What takes milliseconds is compared with what a lock of PostgreSQL's own takes in the same
//! run, so that a busy machine does not matter.

#[path = "waiting/ends.rs"]
mod ends;
#[path = "waiting/idle.rs"]
mod idle;
#[path = "waiting/latency.rs"]
mod latency;
#[path = "waiting/pgbouncer.rs"]
mod pgbouncer;
#[path = "waiting/steps.rs"]
mod steps;
#[path = "waiting/vain.rs"]
mod vain;
#[path = "waiting/workers.rs"]
mod workers;

use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use postgres::Client;
use queue_ext_tests::{
    Cluster, Edition, SOON, Settings, WOKEN, Worker, at_best, eventually, number, run, stalls,
};

/// These tests measure, and start many sessions: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A session that waits in its own thread: its result, and when it returned.
struct Waiter {
    pid: i32,
    thread: JoinHandle<Result<(bool, Instant), postgres::Error>>,
}

fn wait_with(mut client: Client, call: &'static str) -> Waiter {
    let pid = client.query_one("SELECT pg_backend_pid()", &[]).expect("pid").get(0);
    let thread = thread::spawn(move || {
        let row = client.query_one(call, &[])?;
        Ok((row.get(0), Instant::now()))
    });
    Waiter { pid, thread }
}

fn wait(cluster: &Cluster, call: &'static str) -> Waiter {
    wait_with(cluster.connect(), call)
}

impl Waiter {
    fn done(self) -> (bool, Instant) {
        self.thread.join().expect("join").expect("an answer")
    }

    /// It was told that there is a task, and soon after that moment.
    fn is_woken(self, since: Instant) {
        let (ready, told) = self.done();
        assert!(ready);
        is_soon(since, told);
    }
}

/// A server on which no session checks by itself.
fn without_sweeps(name: &str) -> Cluster {
    let settings = Settings { preload: true, extra: "queue.sweep_interval = '1h'" };
    let mut cluster = Cluster::installed(name, &settings);
    cluster.await_worker("postgres");
    cluster
}

/// Sooner than a session checks by itself.
fn is_soon(since: Instant, told: Instant) {
    let late = stalls::took(since, told);
    println!("told after {late:?}");
    assert!(late < WOKEN, "{late:?}");
}

/// How many stand in the list of a queue.
fn waiters(client: &mut Client, queue: &str) -> i64 {
    let query = "SELECT coalesce((queue.engine_stats() #>> ARRAY['lanes', $1, 'waiters'])::bigint, 0)";
    client.query_one(query, &[&queue]).expect("stats").get(0)
}

fn await_waiters(client: &mut Client, queue: &str, count: i64) {
    eventually("so many wait", SOON, || waiters(client, queue) == count && asleep(client) >= count);
}

/// How many sessions sleep in a CALL that waits.
fn asleep(client: &mut Client) -> i64 {
    number(
        client,
        "SELECT count(*) FROM pg_stat_activity
         WHERE query LIKE 'CALL queue.wait%' AND state = 'active' AND wait_event IN ('Extension', 'QueueExtWait')",
    )
}

/// The middle, the 99th of a hundred, and the greatest, in milliseconds.
fn report(what: &str, times: &mut [Duration]) -> [f64; 3] {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    let [p50, p99, max] = [at(0.5), at(0.99), at(1.0)];
    println!("{what}: p50 {p50:.2} ms, p99 {p99:.2} ms, max {max:.2} ms, of {}", times.len());
    [p50, p99, max]
}

/// How long PostgreSQL itself takes to wake a session that waits: from the return of pg_advisory_unlock in one to that
/// of pg_advisory_lock in another.
fn handovers(cluster: &Cluster, rounds: usize) -> Vec<Duration> {
    let (mut holder, mut waiter, mut watcher) = (cluster.connect(), cluster.connect(), cluster.connect());
    let (ask, asked) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        for () in asked {
            run(&mut waiter, "SELECT pg_advisory_lock(1)");
            tell.send(Instant::now()).expect("tell");
            run(&mut waiter, "SELECT pg_advisory_unlock(1)");
        }
    });
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    let handover = |_| {
        run(&mut holder, "SELECT pg_advisory_lock(1)");
        ask.send(()).expect("ask");
        eventually("it waits for the lock", SOON, || number(&mut watcher, waits) == 1);
        run(&mut holder, "SELECT pg_advisory_unlock(1)");
        let released = Instant::now();
        told.recv_timeout(SOON).expect("it has the lock").saturating_duration_since(released)
    };
    let times = (0..rounds).map(handover).collect();
    drop(ask);
    thread.join().expect("join");
    times
}

/// The median is within so many milliseconds, or on a busy machine a few times what a lock takes.
fn is_within(milliseconds: f64, p50: f64, locks: &mut [Duration]) {
    let [lock, ..] = report("to compare with: from an unlock to the lock in another session", locks);
    assert!(p50 < milliseconds.max(4.0 * lock), "{p50} ms, and {lock} ms for a lock");
}

/// How much later than the time in `query` `wait` returns, by the server's clock.
fn lateness(client: &mut Client, query: &str) -> Duration {
    let time: String = client.query_one(query, &[]).expect(query).get(0);
    let ready: bool = client.query_one("CALL queue.wait()", &[]).expect("wait").get(0);
    let query = "SELECT extract(epoch FROM clock_timestamp() - $1::text::timestamptz)::float8";
    let late: f64 = client.query_one(query, &[&time]).expect("look").get(0);
    assert!(ready && late >= 0.0, "{ready} after {late} seconds");
    Duration::from_secs_f64(late)
}

/// Pushes a delayed task; returns its run_at.
const LATER: &str = "WITH pushed AS (SELECT clock_timestamp() + '300 ms' AS run_at)
                     SELECT run_at::text, queue.push('default', run_at => run_at) FROM pushed";
/// Leases it; returns until when.
const LEASED: &str = "SELECT lease_until::text FROM queue.claim('300 ms')";

#[test]
fn in_a_transaction_wait_returns_at_once() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-transaction");
    let (notices, said) = std::sync::mpsc::channel();
    let mut config = cluster.config("postgres");
    config.notice_callback(move |notice| drop(notices.send(notice.message().to_owned())));
    let mut client = config.connect(postgres::NoTls).expect("connect");
    let started = Instant::now();
    let mut transaction = client.transaction().expect("BEGIN");
    assert!(!transaction.query_one("CALL queue.wait()", &[]).expect("wait").get::<_, bool>(0));
    let notice = said.recv_timeout(SOON).expect("a notice");
    assert!(notice.contains("not waited"), "{notice}");
    transaction.batch_execute("SELECT queue.push('default')").expect("push");
    assert!(transaction.query_one("CALL queue.wait()", &[]).expect("wait").get::<_, bool>(0), "its own task");
    transaction.commit().expect("COMMIT");
    is_soon(started, Instant::now());
    // A procedure that may commit waits, too.
    run(&mut client, "DELETE FROM queue.tasks");
    run(
        &mut client,
        "CREATE TABLE told (ready boolean);
         CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
         DECLARE ready boolean;
         BEGIN
             CALL queue.wait('default', '10 seconds', ready);
             INSERT INTO told VALUES (ready);
         END $$",
    );
    for call in ["CALL work()", "DO 'BEGIN CALL work(); END'"] {
        let mut other = cluster.connect();
        let thread = thread::spawn(move || other.batch_execute(call).expect(call));
        eventually("it waits", SOON, || waiters(&mut client, "default") == 1);
        run(&mut client, "SELECT queue.push('default')");
        thread.join().expect("join");
        assert_eq!(number(&mut client, "SELECT count(*) FROM told WHERE ready"), 1, "{call}");
        run(&mut client, "DELETE FROM told; DELETE FROM queue.tasks");
    }
    let started = Instant::now();
    run(&mut client, "BEGIN; CALL work(); COMMIT");
    // In a transaction block not.
    is_soon(started, Instant::now());
}

/// A worker that waits for a task of the queue gets one soon after `act`.
fn told_after(cluster: &Cluster, client: &mut Client, queue: &'static str, act: &str) {
    let mut worker = cluster.connect();
    let thread = thread::spawn(move || {
        // It may be woken for a task that cannot be claimed, until an event was processed.
        let (wait, claim) =
            (format!("CALL queue.wait('{queue}')"), format!("SELECT queue.claim(queue => '{queue}')"));
        while worker.query(&claim, &[]).expect("claim").is_empty() {
            assert!(worker.query_one(&wait, &[]).expect("wait").get::<_, bool>(0), "in time");
        }
        Instant::now()
    });
    await_waiters(client, queue, 1);
    let acted = Instant::now();
    run(client, act);
    let claimed = thread.join().expect("a task");
    println!("{act}: the next task is claimed");
    is_soon(acted, claimed);
}

/// Claims a task of the queue and keeps its token in the table `held`.
fn hold(client: &mut Client, queue: &str) {
    run(client, "DELETE FROM held");
    let claim = format!("INSERT INTO held SELECT * FROM queue.claim(queue => '{queue}')");
    // The worker may just be at it, to give the task its turn.
    eventually("there is something to claim", SOON, || client.execute(&claim, &[]).expect("claim") == 1);
}

#[test]
fn sessions_are_woken_when_a_limit_or_group_allows_the_next_task() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-policies");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.create('limited', '{\"max_running\": 1}'), queue.create('groups'), queue.create('after')",
    );
    run(&mut client, "CREATE TABLE held AS SELECT * FROM queue.claim()");
    run(&mut client, "SELECT queue.push('limited'), queue.push('limited'), queue.push('limited')");
    hold(&mut client, "limited");
    let complete = "SELECT queue.complete(id, token) FROM held";
    told_after(&cluster, &mut client, "limited", complete);
    run(&mut client, "SELECT queue.configure('limited', '{\"max_running\": 2}')");
    run(&mut client, "SELECT queue.claim(queue => 'limited')");
    run(&mut client, "SELECT queue.push('limited')");
    told_after(&cluster, &mut client, "limited", "SELECT queue.configure('limited', '{\"max_running\": 3}')");

    run(&mut client, "SELECT queue.push('groups', group_key => 'g'), queue.push('groups', group_key => 'g')");
    hold(&mut client, "groups");
    told_after(&cluster, &mut client, "groups", complete);

    run(&mut client, "SELECT queue.push('default')");
    hold(&mut client, "default");
    run(&mut client, "SELECT queue.push('after', after => ARRAY[id]) FROM held");
    told_after(&cluster, &mut client, "after", complete);
}

#[test]
fn sessions_are_woken_when_a_task_is_delayed_that_had_the_last_slot() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-delayed");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.create('limited', '{\"max_running\": 1}')");
    run(&mut client, "CREATE TABLE held AS SELECT * FROM queue.claim()");
    let delays = [
        "SELECT queue.fail(id, token, 'later', '1 hour') FROM held",
        "SELECT queue.release(id, token, '1 hour') FROM held",
        "SELECT queue.fail_many(array_agg(id), array_agg(token), ARRAY['later'], '1 hour') FROM held",
        "SELECT queue.release_many(array_agg(id), array_agg(token), '1 hour') FROM held",
        "SELECT queue.sleep(id, token, 'nap', interval '1 hour') FROM held",
        "SELECT queue.await_event(id, token, 'paid', '1 hour') FROM held",
        "SELECT queue.await_event(id, token, 'paid') FROM held",
    ];
    for delay in delays {
        run(&mut client, "SELECT queue.push('limited'), queue.push('limited')");
        hold(&mut client, "limited");
        told_after(&cluster, &mut client, "limited", delay);
        run(&mut client, "SELECT queue.complete(id, token) FROM queue.tasks WHERE state = 'running'");
    }
}

#[test]
fn a_free_rate_bucket_is_used_at_once() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-token");
    let mut client = cluster.connect();
    for (name, group) in [("rate_limit", "NULL"), ("group_rate_limit", "'g'")] {
        let options =
            format!("{{\"{name}\": 1, \"rate_period\": \"2 seconds\", \"max_running_per_group\": 9}}");
        run(&mut client, &format!("SELECT queue.create('rate', '{options}')"));
        run(
            &mut client,
            &format!("SELECT queue.push('rate', group_key => {group}) FROM generate_series(1, 4)"),
        );
        each_start_is_awaited(&mut client);
        run(&mut client, "SELECT queue.drop('rate', true)");
    }
}

/// Claims four tasks of which one may start in two seconds.
fn each_start_is_awaited(client: &mut Client) {
    let late = "SELECT extract(epoch FROM clock_timestamp() - claimed_at)::float8 - 2
                FROM queue.tasks WHERE state = 'running' ORDER BY claimed_at DESC LIMIT 1";
    run(client, "SELECT queue.claim(queue => 'rate')");
    for _ in 0..3 {
        let ready: bool = client.query_one("CALL queue.wait('rate')", &[]).expect("wait").get(0);
        let late: f64 = client.query_one(late, &[]).expect("late").get(0);
        println!("woken {:.0} ms after the token came back", late * 1000.0);
        // Otherwise it would check by itself after eight seconds more.
        assert!(ready && (0.0..1.0).contains(&late), "{ready} after {late} s");
        assert_eq!(client.query("SELECT queue.claim(queue => 'rate')", &[]).expect("claim").len(), 1);
    }
}

#[test]
fn without_preload_wait_polls() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::installed("waiting-polling", &Settings { preload: false, extra: "" });
    let mut client = cluster.connect();
    for push in ["SELECT queue.push('default')", "SELECT queue.push('default', delay => '300 ms')"] {
        let waiter = wait(&cluster, "CALL queue.wait()");
        eventually("it sleeps", SOON, || asleep(&mut client) == 1);
        let pushed = Instant::now();
        run(&mut client, push);
        println!("{push}, without preload");
        waiter.is_woken(pushed);
        run(&mut client, "DELETE FROM queue.tasks");
    }
}

#[test]
fn a_role_with_the_right_for_one_queue_is_woken_like_a_superuser() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-role");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.create('mail'); CREATE ROLE mailer LOGIN;
         SELECT queue.grant_worker('mailer', 'mail')",
    );
    let mailer = cluster.config("postgres").user("mailer").connect(postgres::NoTls).expect("connect");
    let waiter = wait_with(mailer, "CALL queue.wait('mail', '1 minute', NULL)");
    await_waiters(&mut client, "mail", 1);
    run(&mut client, "SELECT queue.push('mail')");
    assert!(waiter.done().0);
    assert_eq!(number(&mut client, "SELECT (queue.engine_stats() #>> '{lanes, mail, wakes}')::bigint"), 1);
}

#[test]
fn without_a_background_worker_pushes_wake_sessions() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let settings = Settings { preload: true, extra: "queue.worker_enabled = off" };
    let cluster = Cluster::installed("waiting-alone", &settings);
    let mut client = cluster.connect();
    let waiter = wait(&cluster, "CALL queue.wait()");
    await_waiters(&mut client, "default", 1);
    let pushed = Instant::now();
    run(&mut client, "SELECT queue.push('default')");
    waiter.is_woken(pushed);
    // There is no background worker, so the session uses its own timer.
    const LIMIT: Duration = Duration::from_millis(50);
    for (prepare, wait) in [("SELECT", LATER), ("SELECT queue.push('default')", LEASED)] {
        let late = at_best(LIMIT, || {
            run(&mut client, "DELETE FROM queue.tasks");
            run(&mut client, prepare);
            lateness(&mut client, wait)
        });
        println!("late without a worker: {late:?}");
        assert!(late < LIMIT, "{late:?}");
    }
}

#[test]
fn take_claims_a_task_that_is_pushed_while_it_waits() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-take");
    let (mut client, mut other) = (cluster.connect(), cluster.connect());
    let taker = thread::spawn(move || {
        let row =
            other.query_one("CALL queue.take('default', '1 hour', '30 seconds', 'w')", &[]).expect("take");
        (row.get::<_, Option<i64>>("id"), Instant::now())
    });
    let sleeping =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL queue.take%' AND state = 'active'
                    AND backend_xmin IS NULL AND wait_event IN ('Extension', 'QueueExtWait')";
    eventually("it sleeps and holds no snapshot", SOON, || {
        waiters(&mut client, "default") == 1 && number(&mut client, sleeping) == 1
    });
    let pushed = Instant::now();
    let id = number(&mut client, "SELECT queue.push('default')");
    let (taken, told) = taker.join().expect("join");
    assert_eq!(taken, Some(id));
    assert!(told.duration_since(pushed) < WOKEN, "{:?}", told.duration_since(pushed));
    // After the timeout it returns nulls.
    let row = client.query_one("CALL queue.take(timeout => '50 ms')", &[]).expect("take");
    assert_eq!(row.get::<_, Option<i64>>("id"), None);
    // The longest timeout.
    number(&mut client, "SELECT queue.push('default', delay => '200 ms')");
    let row = client.query_one("CALL queue.take(timeout => '100 years')", &[]).expect("take");
    assert!(row.get::<_, Option<i64>>("id").is_some());
}

#[test]
fn take_waits_for_its_whole_timeout_however_often_others_are_quicker() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for edition in [Edition::FastPath, Edition::SqlOnly] {
        let cluster = edition.cluster(&format!("waiting-quicker-{}", edition.name()), Worker::On);
        edition.install(&cluster, "postgres");
        let mut client = cluster.connect();
        run(&mut client, "SELECT queue.create('q', '{\"max_running\": 100}')");
        let until = Instant::now() + Duration::from_secs(6);
        let (cluster, taken, early) = (&cluster, &AtomicU32::new(0), &AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(move || {
                    let mut client = cluster.connect();
                    let take = "CALL queue.take('q', timeout => '2 s')";
                    while Instant::now() < until {
                        let begun = Instant::now();
                        let row = client.query_one(take, &[]).expect("take");
                        let (id, token): (Option<i64>, Option<i64>) = (row.get(0), row.get(1));
                        if id.is_some() {
                            taken.fetch_add(1, Ordering::Relaxed);
                            client
                                .execute("SELECT queue.complete($1, $2)", &[&id, &token])
                                .expect("complete");
                        } else if begun.elapsed() < Duration::from_millis(1900) {
                            early.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let mut groups = (0..).map(|number| format!("group {}", number % 4));
            while Instant::now() < until {
                let group = groups.next();
                client.execute("SELECT queue.push('q', group_key => $1)", &[&group]).expect("push");
                // The rate at which tasks come, so that sessions wait for them.
                thread::sleep(Duration::from_millis(5));
            }
        });
        println!("{}: {taken:?} taken", edition.name());
        assert!(taken.load(Ordering::Relaxed) > 50);
        assert_eq!(early.load(Ordering::Relaxed), 0, "{}: null before the timeout", edition.name());
    }
}

#[test]
fn take_in_a_transaction_block_gives_up_when_it_finds_a_locked_task() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-take-in-block");
    let (mut client, mut other) = (cluster.connect(), cluster.connect());
    client.batch_execute("SELECT queue.create('narrow', '{\"max_running\": 2}')").expect("create");
    number(&mut client, "SELECT queue.push('narrow')");
    other.batch_execute("BEGIN; SELECT queue.claim(queue => 'narrow')").expect("claim");
    client.batch_execute("SET statement_timeout = '10s'; BEGIN").expect("begin");
    let row = client.query_one("CALL queue.take('narrow', timeout => '1 minute')", &[]).expect("take");
    assert_eq!(row.get::<_, Option<i64>>("id"), None);
}
