//! queue.wait and queue.wait_result: woken soon, exactly one for each task, and at no cost to anybody else.
//!
//! What is measured is printed; what is asserted leaves room for a busy machine.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use postgres::Client;
use queue_ext_tests::{Cluster, Settings, eventually};

/// These tests measure, and start many sessions: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

const SOON: Duration = Duration::from_secs(10);
/// Long before anybody would look by himself, which without being woken is every ten seconds.
const WOKEN: Duration = Duration::from_secs(2);

/// A session that waits in a thread of its own: whether there was something, and when it was told.
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
}

fn number(client: &mut Client, query: &str) -> i64 {
    client.query_one(query, &[]).expect(query).get(0)
}

fn run(client: &mut Client, query: &str) {
    client.batch_execute(query).expect(query);
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

#[test]
fn a_push_wakes_an_idle_worker_within_milliseconds() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-push");
    let mut client = cluster.connect();
    let push = client.prepare("SELECT queue.push('default')").expect("prepare");
    let (told, news) = std::sync::mpsc::channel();
    let mut worker = cluster.connect();
    const ROUNDS: usize = 300;
    let thread = thread::spawn(move || {
        let claim = worker.prepare("SELECT id, token FROM queue.claim()").expect("prepare");
        for _ in 0..ROUNDS {
            let ready: bool = worker.query_one("CALL queue.wait()", &[]).expect("wait").get(0);
            assert!(ready, "woken for nothing");
            let task = worker.query(&claim, &[]).expect("claim");
            told.send((task.len(), Instant::now())).expect("tell");
            for task in task {
                worker
                    .query("SELECT queue.complete($1, $2)", &[&task.get::<_, i64>(0), &task.get::<_, i32>(1)])
                    .expect("complete");
            }
        }
    });
    let (mut committed, mut sent) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        await_waiters(&mut client, "default", 1);
        let before = Instant::now();
        client.query(&push, &[]).expect("push");
        let after = Instant::now();
        let (count, claimed) = news.recv_timeout(SOON).expect("it is woken");
        assert_eq!(count, 1);
        committed.push(claimed.saturating_duration_since(after));
        sent.push(claimed.duration_since(before));
    }
    thread.join().expect("the worker");
    report("from sending a push to its claim's return", &mut sent);
    let [p50, ..] = report("from a push's commit to its claim's return", &mut committed);
    assert!(p50 < 5.0, "{p50} ms");
}

/// How late `wait` returns after the time that `query` says, by the server's clock.
fn lateness(client: &mut Client, query: &str) -> Duration {
    let time: String = client.query_one(query, &[]).expect(query).get(0);
    let ready: bool = client.query_one("CALL queue.wait()", &[]).expect("wait").get(0);
    let query = "SELECT extract(epoch FROM clock_timestamp() - $1::text::timestamptz)::float8";
    let late: f64 = client.query_one(query, &[&time]).expect("look").get(0);
    assert!(ready && late >= 0.0, "{ready} after {late} seconds");
    Duration::from_secs_f64(late)
}

/// Pushes a task for later; returns when.
const LATER: &str = "WITH pushed AS (SELECT clock_timestamp() + '300 ms' AS run_at)
                     SELECT run_at::text, queue.push('default', run_at => run_at) FROM pushed";
/// Leases it; returns until when.
const LEASED: &str = "SELECT lease_until::text FROM queue.claim('300 ms')";

#[test]
fn a_waiter_returns_when_a_task_comes_due_and_when_a_lease_runs_out() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-due");
    let mut client = cluster.connect();
    let (mut due, mut leases) = (Vec::new(), Vec::new());
    run(&mut client, "SELECT queue.configure('default', '{\"max_attempts\": 1000}')");
    for round in 0..20 {
        let shorter = |query: &str| query.replace("300 ms", &format!("{} ms", 50 + 7 * round));
        due.push(lateness(&mut client, &shorter(LATER)));
        leases.push(lateness(&mut client, &shorter(LEASED)));
        run(&mut client, "DELETE FROM queue.tasks");
    }
    // Announced while somebody waits already.
    for _ in 0..10 {
        let waiter = wait(&cluster, "CALL queue.wait()");
        await_waiters(&mut client, "default", 1);
        let pushed = Instant::now();
        run(&mut client, "SELECT queue.push('default', delay => '100 ms')");
        let (ready, told) = waiter.done();
        assert!(ready);
        let waited = told.duration_since(pushed);
        due.push(waited.checked_sub(Duration::from_millis(100)).expect("not before it is due"));
        run(&mut client, "DELETE FROM queue.tasks");
    }
    let [_, _, late] = report("from run_at to the return of queue.wait", &mut due);
    assert!(late < 50.0, "{late} ms");
    let [_, _, late] = report("from the end of a lease to the return of queue.wait", &mut leases);
    assert!(late < 50.0, "{late} ms");
}

#[test]
fn one_push_wakes_one_of_fifty() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-fifty");
    let mut client = cluster.connect();
    let mut sleepers: Vec<Waiter> =
        (0..50).map(|_| wait(&cluster, "CALL queue.wait(timeout => '1 minute')")).collect();
    await_waiters(&mut client, "default", 50);
    for round in 1..=5 {
        run(&mut client, "SELECT queue.push('default')");
        let woken =
            |sleepers: &[Waiter]| sleepers.iter().filter(|waiter| waiter.thread.is_finished()).count();
        eventually("one is woken", WOKEN, || woken(&sleepers) > 0);
        run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim()");
        // Longer than waking took, several times.
        let watched = Instant::now();
        while watched.elapsed() < Duration::from_millis(300) {
            assert_eq!(woken(&sleepers), 1, "in round {round}");
            thread::sleep(Duration::from_millis(10));
        }
        sleepers.retain(|waiter| !waiter.thread.is_finished());
        await_waiters(&mut client, "default", sleepers.len() as i64);
    }
    // Several tasks of one transaction wake as many.
    run(&mut client, "SELECT queue.push_many('default', array_fill('{}'::jsonb, ARRAY[10]))");
    eventually("ten are woken", WOKEN, || {
        sleepers.iter().filter(|waiter| waiter.thread.is_finished()).count() >= 10
    });
    await_waiters(&mut client, "default", 35);
    // A waiter that was woken and found nothing, because somebody else was quicker, is woken again.
    run(&mut client, "DELETE FROM queue.tasks");
    for _ in 0..20 {
        run(&mut client, "SELECT queue.push('default')");
        run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim()");
    }
    let left =
        |sleepers: &[Waiter]| sleepers.iter().filter(|waiter| !waiter.thread.is_finished()).count() as i64;
    eventually("those who found nothing wait again", WOKEN, || {
        let count = left(&sleepers);
        waiters(&mut client, "default") == count && asleep(&mut client) == count
    });
    println!("{} of 35 are left after 20 tasks that others were quicker to get", left(&sleepers));
    while left(&sleepers) > 0 {
        let before = left(&sleepers);
        run(&mut client, "SELECT queue.push('default')");
        eventually("the next is woken", WOKEN, || left(&sleepers) < before);
        run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim()");
    }
    assert!(sleepers.into_iter().all(|waiter| waiter.done().0), "each was told that there is something");
}

/// The processor time that the processes took so far.
fn processor_time(pids: &[i32]) -> Duration {
    let time = |pid: &i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("schedstat");
        text.split(' ').next().and_then(|first| first.parse::<u64>().ok()).expect("nanoseconds")
    };
    Duration::from_nanos(pids.iter().map(time).sum())
}

#[test]
fn two_hundred_idle_waiters_hold_nothing_and_cost_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let settings = Settings { preload: true, extra: "max_connections = 230" };
    let mut cluster = Cluster::start_with("waiting-idle", &settings);
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext");
    cluster.await_worker("postgres");
    let sleepers: Vec<Waiter> =
        (0..200).map(|_| wait(&cluster, "CALL queue.wait(timeout => '10 minutes')")).collect();
    await_waiters(&mut client, "default", 200);
    let pids: Vec<i32> = sleepers.iter().map(|waiter| waiter.pid).collect();
    let row = client
        .query_one(
            "SELECT count(backend_xmin), count(backend_xid), count(xact_start), count(*),
                    (SELECT count(*) FROM pg_locks AS l WHERE l.pid = ANY ($1))
             FROM pg_stat_activity WHERE pid = ANY ($1)",
            &[&pids],
        )
        .expect("look");
    let held: [i64; 5] = std::array::from_fn(|column| row.get(column));
    assert_eq!(held, [0, 0, 0, 200, 0], "xmin, xid, transaction, sessions, locks");
    // So vacuum cleans up behind them.
    run(&mut client, "CREATE TABLE rubbish AS SELECT generate_series(1, 1000) AS n; DELETE FROM rubbish");
    eventually("vacuum is not held back", SOON, || {
        run(&mut client, "VACUUM rubbish");
        number(&mut client, "SELECT pg_relation_size('rubbish')") == 0
    });
    // What they take while the time goes by, over a sweep or two.
    let (started, before) = (Instant::now(), processor_time(&pids));
    while started.elapsed() < Duration::from_secs(12) {
        thread::sleep(Duration::from_secs(1));
    }
    let share = (processor_time(&pids) - before).as_secs_f64() / started.elapsed().as_secs_f64();
    println!("200 idle waiters take {:.3} % of a processor", share * 100.0);
    assert!(share < 0.05, "{share}");
    // And the last of them is as quick as ever.
    run(&mut client, "SELECT queue.push_many('default', array_fill('{}'::jsonb, ARRAY[200]))");
    let pushed = Instant::now();
    for waiter in sleepers {
        assert!(waiter.done().0);
    }
    println!("200 waiters were woken by 200 tasks in {:?}", pushed.elapsed());
    assert_eq!(waiters(&mut client, "default"), 0);
}

#[test]
fn what_is_rolled_back_wakes_nobody() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-rollback");
    let mut client = cluster.connect();
    let waiter = wait(&cluster, "CALL queue.wait()");
    await_waiters(&mut client, "default", 1);
    run(&mut client, "BEGIN; SELECT queue.push('default'); ROLLBACK");
    run(&mut client, "BEGIN; SAVEPOINT s; SELECT queue.push('default'); ROLLBACK TO s; COMMIT");
    run(&mut client, "BEGIN; SELECT queue.push('default')");
    thread::sleep(Duration::from_millis(200));
    assert!(!waiter.thread.is_finished(), "nothing was committed");
    await_waiters(&mut client, "default", 1);
    run(&mut client, "COMMIT");
    assert!(waiter.done().0);
    // A claim that is rolled back gives back what others wait for.
    run(&mut client, "BEGIN; SELECT queue.claim()");
    let waiter = wait(&cluster, "CALL queue.wait()");
    await_waiters(&mut client, "default", 1);
    let back = Instant::now();
    run(&mut client, "ROLLBACK");
    let (ready, told) = waiter.done();
    assert!(ready);
    println!("a task that was given back by a rollback is told after {:?}", told.duration_since(back));
    assert!(told.duration_since(back) < WOKEN);
}

#[test]
fn waiting_for_queues_that_come_and_go() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-queues");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.create('a'), queue.create('b')");
    // Several.
    for queue in ["a", "b"] {
        let waiter = wait(&cluster, "CALL queue.wait(ARRAY['a', 'b'])");
        await_waiters(&mut client, "b", 1);
        let pushed = Instant::now();
        run(&mut client, &format!("SELECT queue.push('{queue}')"));
        let (ready, told) = waiter.done();
        assert!(ready && told.duration_since(pushed) < WOKEN);
        assert_eq!((waiters(&mut client, "a"), waiters(&mut client, "b")), (0, 0), "it has left both lists");
        run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim('30 seconds', ARRAY['a', 'b'])");
    }
    // One who waits for both and was woken for one does not keep the other's task from the next.
    let both = wait(&cluster, "CALL queue.wait(ARRAY['a', 'b'])");
    await_waiters(&mut client, "b", 1);
    let other = wait(&cluster, "CALL queue.wait('b')");
    await_waiters(&mut client, "b", 2);
    let pushed = Instant::now();
    run(&mut client, "BEGIN; SELECT queue.push('b'); SELECT queue.push('a'); COMMIT");
    assert!(both.done().0 && other.done().0 && pushed.elapsed() < WOKEN, "{:?}", pushed.elapsed());
    run(&mut client, "SELECT queue.purge('a'), queue.purge('b')");
    // Paused, and resumed.
    run(&mut client, "SELECT queue.pause('a')");
    run(&mut client, "SELECT queue.push('a'), queue.push('a')");
    let sleepers = [wait(&cluster, "CALL queue.wait('a')"), wait(&cluster, "CALL queue.wait('a')")];
    await_waiters(&mut client, "a", 2);
    let resumed = Instant::now();
    run(&mut client, "SELECT queue.resume('a')");
    for waiter in sleepers {
        let (ready, told) = waiter.done();
        assert!(ready && told.duration_since(resumed) < WOKEN, "{:?}", told.duration_since(resumed));
    }
    run(&mut client, "SELECT queue.purge('a')");
    // Dropped.
    let sleepers = [wait(&cluster, "CALL queue.wait('a')"), wait(&cluster, "CALL queue.wait('a')")];
    await_waiters(&mut client, "a", 2);
    let dropped = Instant::now();
    run(&mut client, "SELECT queue.drop('a')");
    for waiter in sleepers {
        let error = waiter.thread.join().expect("join").expect_err("there is no such queue");
        assert_eq!(error.code().map(|code| code.code()), Some("QX002"), "{error}");
    }
    assert!(dropped.elapsed() < WOKEN, "{:?}", dropped.elapsed());
    // In time, with nothing to tell.
    for timeout in [0, 1, 100, 350] {
        let started = Instant::now();
        let ready: bool =
            client.query_one(&format!("CALL queue.wait('b', '{timeout} ms')"), &[]).expect("wait").get(0);
        let late = started.elapsed().checked_sub(Duration::from_millis(timeout)).expect("not too early");
        println!("a timeout of {timeout} ms takes {:.2} ms more", late.as_secs_f64() * 1e3);
        assert!(!ready && late < Duration::from_millis(100), "{late:?}");
    }
}

#[test]
fn whoever_is_interrupted_leaves_the_lists() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-interrupt");
    let mut client = cluster.connect();
    for signal in ["pg_cancel_backend", "pg_terminate_backend"] {
        let sleepers =
            [wait(&cluster, "CALL queue.wait()"), wait(&cluster, "CALL queue.wait(ARRAY['default'])")];
        await_waiters(&mut client, "default", 2);
        let sent = Instant::now();
        for waiter in sleepers {
            client.execute(&format!("SELECT {signal}($1)"), &[&waiter.pid]).expect("signal");
            waiter.thread.join().expect("join").expect_err("interrupted");
        }
        assert!(sent.elapsed() < WOKEN, "{signal}: {:?}", sent.elapsed());
        eventually("nobody stands in the list", WOKEN, || waiters(&mut client, "default") == 0);
    }
    let mut other = cluster.connect();
    run(&mut other, "SET statement_timeout = '200 ms'");
    let started = Instant::now();
    let waiter = wait_with(other, "CALL queue.wait()");
    let error = waiter.thread.join().expect("join").expect_err("timed out");
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error}");
    assert!(started.elapsed() < WOKEN, "{:?}", started.elapsed());
    assert_eq!(waiters(&mut client, "default"), 0);
    // A wake-up that went to one who is gone goes to the next.
    let gone = wait(&cluster, "CALL queue.wait()");
    await_waiters(&mut client, "default", 1);
    let next = wait(&cluster, "CALL queue.wait()");
    await_waiters(&mut client, "default", 2);
    let pushed = Instant::now();
    client.execute("SELECT pg_terminate_backend($1), queue.push('default')", &[&gone.pid]).expect("both");
    let (ready, told) = next.done();
    assert!(ready && told.duration_since(pushed) < WOKEN, "{:?}", told.duration_since(pushed));
    drop(gone.thread.join());
}

#[test]
fn a_task_that_woke_a_dead_client_wakes_the_next() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-dead");
    let mut client = cluster.connect();
    let folder = cluster.folder().to_str().expect("a plain path");
    let call = "CALL queue.wait(timeout => '1 hour')";
    let arguments = ["-X", "-h", folder, "-U", "postgres", "-c", call, "postgres"];
    let mut dead = cluster.start_program(&queue_ext_tests::cluster::bindir().join("psql"), &arguments);
    await_waiters(&mut client, "default", 1);
    let next = wait(&cluster, "CALL queue.wait()");
    await_waiters(&mut client, "default", 2);
    dead.kill().expect("kill -9");
    dead.wait().expect("it is gone");
    let pushed = Instant::now();
    run(&mut client, "SELECT queue.push('default')");
    let (ready, told) = next.done();
    assert!(ready && told.duration_since(pushed) < WOKEN, "{:?}", told.duration_since(pushed));
    eventually("its session is gone", SOON, || asleep(&mut client) == 0);
    assert_eq!(waiters(&mut client, "default"), 0);
}

#[test]
fn in_a_transaction_it_looks_and_does_not_wait() {
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
    assert!(started.elapsed() < WOKEN, "{:?}", started.elapsed());
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
    assert!(started.elapsed() < WOKEN, "in a transaction block not: {:?}", started.elapsed());
}

/// A worker that waits for a task of the queue gets one soon after `act`.
fn told_after(cluster: &Cluster, client: &mut Client, queue: &'static str, act: &str) {
    let mut worker = cluster.connect();
    let thread = thread::spawn(move || {
        // It may be told of something that only looks like a task, until somebody has settled what that was.
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
    let time = thread.join().expect("a task").saturating_duration_since(acted);
    println!("{act}: the next task is claimed after {time:?}");
    assert!(time < WOKEN, "{time:?}");
}

/// Claims a task of the queue and keeps its token in the table `held`.
fn hold(client: &mut Client, queue: &str) {
    run(client, "DELETE FROM held");
    let claim = format!("INSERT INTO held SELECT * FROM queue.claim(queue => '{queue}')");
    // The worker may just be at it, to give the task its turn.
    eventually("there is something to claim", WOKEN, || client.execute(&claim, &[]).expect("claim") == 1);
}

#[test]
fn policies_wake_when_the_next_task_may_run() {
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
fn without_preload_it_looks_again_by_itself() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start_with("waiting-polling", &Settings { preload: false, extra: "" });
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext");
    for push in ["SELECT queue.push('default')", "SELECT queue.push('default', delay => '300 ms')"] {
        let waiter = wait(&cluster, "CALL queue.wait()");
        eventually("it sleeps", SOON, || asleep(&mut client) == 1);
        let pushed = Instant::now();
        run(&mut client, push);
        let (ready, told) = waiter.done();
        let time = told.duration_since(pushed);
        println!("{push}: told after {time:?}, without preload");
        assert!(ready && time < WOKEN, "{ready} after {time:?}");
        run(&mut client, "DELETE FROM queue.tasks");
    }
}

#[test]
fn without_a_worker_it_is_woken_all_the_same() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let settings = Settings { preload: true, extra: "queue.worker_enabled = off" };
    let cluster = Cluster::start_with("waiting-alone", &settings);
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext");
    let waiter = wait(&cluster, "CALL queue.wait()");
    await_waiters(&mut client, "default", 1);
    let pushed = Instant::now();
    run(&mut client, "SELECT queue.push('default')");
    let (ready, told) = waiter.done();
    assert!(ready && told.duration_since(pushed) < WOKEN, "{:?}", told.duration_since(pushed));
    run(&mut client, "DELETE FROM queue.tasks");
    // Nobody keeps time for it, so it does itself.
    let mut late = [lateness(&mut client, LATER), lateness(&mut client, LEASED)];
    let [.., late] = report("late without a worker", &mut late);
    assert!(late < 50.0, "{late} ms");
}

#[test]
fn a_result_is_told_within_milliseconds() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-result");
    let mut client = cluster.connect();
    let mut waiter = cluster.connect();
    let pid: i32 = waiter.query_one("SELECT pg_backend_pid()", &[]).expect("pid").get(0);
    let (ask, asked) = std::sync::mpsc::channel::<i64>();
    let (told, news) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        while let Ok(id) = asked.recv() {
            let row = waiter.query_one("CALL queue.wait_result($1, '1 minute')", &[&id]).expect("wait");
            told.send((row.get::<_, String>(0), Instant::now())).expect("tell");
        }
    });
    let mut times = Vec::new();
    for _ in 0..100 {
        let id = number(&mut client, "SELECT queue.push('default')");
        let task = client.query_one("SELECT id, token FROM queue.claim()", &[]).expect("claim");
        ask.send(id).expect("ask");
        eventually("it sleeps, and holds nothing", SOON, || {
            let query = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event IN ('Extension', 'QueueExtWait')
                         AND state = 'active' AND xact_start IS NULL AND backend_xmin IS NULL";
            client.query_one(query, &[&pid]).expect("look").get::<_, i64>(0) == 1
        });
        let (id, token): (i64, i32) = (task.get(0), task.get(1));
        client.query("SELECT queue.complete($1, $2)", &[&id, &token]).expect("complete");
        let completed = Instant::now();
        let (state, told) = news.recv_timeout(SOON).expect("it is told");
        assert_eq!(state, "completed");
        times.push(told.saturating_duration_since(completed));
    }
    drop(ask);
    thread.join().expect("join");
    let [p50, ..] = report("from a completion's commit to the return of queue.wait_result", &mut times);
    assert!(p50 < 5.0, "{p50} ms");
}

/// PgBouncer in transaction mode, with one server connection for each of so many clients.
struct Bouncer {
    process: std::process::Child,
    config: postgres::Config,
}

impl Bouncer {
    fn start(cluster: &Cluster, pool: usize) -> Self {
        let folder = cluster.folder().display();
        let ini = cluster.folder().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={folder}\n[pgbouncer]\nlisten_addr =\nlisten_port = 6432\nunix_socket_dir = {folder}\n\
             auth_type = any\npool_mode = transaction\ndefault_pool_size = {pool}\nmax_client_conn = 300\n\
             logfile = {folder}/pgbouncer.log\npidfile = {folder}/pgbouncer.pid\nignore_startup_parameters = extra_float_digits\n"
        );
        // A database of that kind names its user.
        std::fs::write(&ini, text.replace("* = host", "postgres = user=postgres host"))
            .expect("write the settings");
        let process = cluster.start_program(&pgbouncer(), &["-q", ini.to_str().expect("a plain path")]);
        let mut config = cluster.config("postgres");
        config.port(6432);
        let mut bouncer = Self { process, config };
        eventually("PgBouncer takes connections", SOON, || bouncer.try_connect().is_some());
        bouncer
    }

    fn try_connect(&mut self) -> Option<Client> {
        self.config.connect(postgres::NoTls).ok()
    }

    fn connect(&mut self) -> Client {
        self.try_connect().expect("connect to PgBouncer")
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Where PgBouncer is: beside the server, as Debian's packages have it.
fn pgbouncer() -> std::path::PathBuf {
    queue_ext_tests::cluster::home().join("debian/usr/sbin/pgbouncer")
}

#[test]
fn through_pgbouncer_in_transaction_mode_a_waiter_keeps_its_connection_and_no_more() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-bouncer");
    let mut direct = cluster.connect();
    let mut bouncer = Bouncer::start(&cluster, 4);
    let mut times = Vec::new();
    let mut other = bouncer.connect();
    for _ in 0..20 {
        // The simple protocol: a statement with a name would be in one connection only.
        let mut client = bouncer.connect();
        let thread = thread::spawn(move || {
            let said = client.simple_query("CALL queue.wait()").expect("wait");
            let told = Instant::now();
            let claimed =
                client.simple_query("SELECT queue.complete(id, token) FROM queue.claim()").expect("work");
            (said, claimed.len(), told)
        });
        await_waiters(&mut direct, "default", 1);
        let held = number(
            &mut direct,
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL queue.wait%' AND state = 'active'
             AND (backend_xmin IS NOT NULL OR xact_start IS NOT NULL)",
        );
        assert_eq!(held, 0);
        // Meanwhile others work through the same pool, and one of them pushes.
        other.simple_query("SELECT queue.push('default')").expect("push");
        let pushed = Instant::now();
        let (said, claimed, told) = thread.join().expect("join");
        let ready = said.iter().any(|message| match message {
            postgres::SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
            _ => false,
        });
        assert!(ready && claimed > 1, "{said:?}, {claimed}");
        times.push(told.saturating_duration_since(pushed));
    }
    let [p50, ..] = report("from a push's return to that of queue.wait, through PgBouncer", &mut times);
    assert!(p50 < 10.0, "{p50} ms");
    assert_eq!(number(&mut direct, "SELECT count(*) FROM queue.history"), 20);

    // As many as there are server connections can wait; then the pool is full until one returns.
    let sleepers: Vec<_> = (0..4)
        .map(|_| {
            let mut client = bouncer.connect();
            thread::spawn(move || client.simple_query("CALL queue.wait()").map(drop))
        })
        .collect();
    await_waiters(&mut direct, "default", 4);
    let blocked = thread::spawn(move || other.simple_query("SELECT 1").map(drop));
    thread::sleep(Duration::from_millis(200));
    assert!(!blocked.is_finished(), "no server connection is free");
    run(&mut direct, "SELECT queue.push('default')");
    blocked.join().expect("join").expect("one is free again");
    run(&mut direct, "SELECT queue.push_many('default', array_fill('{}'::jsonb, ARRAY[3]))");
    sleepers.into_iter().for_each(|thread| thread.join().expect("join").expect("told"));
    assert_eq!(waiters(&mut direct, "default"), 0);
}
