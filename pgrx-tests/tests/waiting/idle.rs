//! Idle waiting sessions cost nothing, and one task wakes one of them.

use super::*;

#[test]
fn one_push_wakes_one_of_fifty() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = without_sweeps("waiting-fifty");
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
    // A session that was woken and found nothing, because another one was faster, is woken again.
    run(&mut client, "DELETE FROM queue.tasks");
    for _ in 0..20 {
        run(&mut client, "SELECT queue.push('default')");
        run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim()");
    }
    let left =
        |sleepers: &[Waiter]| sleepers.iter().filter(|waiter| !waiter.thread.is_finished()).count() as i64;
    eventually("those who found nothing wait again", SOON, || {
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

#[test]
fn two_pushes_in_one_transaction_wake_two_of_twelve() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = without_sweeps("waiting-two");
    let mut client = cluster.connect();
    // The lane was refilled when no session waited for the tasks found.
    run(&mut client, "SELECT queue.push('default')");
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim()");
    let sleepers: Vec<Waiter> =
        (0..12).map(|_| wait(&cluster, "CALL queue.wait(timeout => '1 minute')")).collect();
    await_waiters(&mut client, "default", 12);
    run(&mut client, "BEGIN; SELECT queue.push('default'); SELECT queue.push('default'); COMMIT");
    let woken = || sleepers.iter().filter(|waiter| waiter.thread.is_finished()).count();
    eventually("two are woken", WOKEN, || woken() >= 2);
    // Longer than waking took, several times.
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_millis(300) {
        assert_eq!(woken(), 2);
        thread::sleep(Duration::from_millis(10));
    }
    run(&mut client, "SELECT queue.push_many('default', array_fill('{}'::jsonb, ARRAY[10]))");
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
    // Their processor time during a sweep or two.
    let (started, before) = (Instant::now(), processor_time(&pids));
    while started.elapsed() < Duration::from_secs(12) {
        thread::sleep(Duration::from_secs(1));
    }
    let share = (processor_time(&pids) - before).as_secs_f64() / started.elapsed().as_secs_f64();
    println!("200 idle waiters take {:.3} % of a processor", share * 100.0);
    assert!(share < 0.05, "{share}");
    // The last one is still woken quickly.
    run(&mut client, "SELECT queue.push_many('default', array_fill('{}'::jsonb, ARRAY[200]))");
    let pushed = Instant::now();
    for waiter in sleepers {
        assert!(waiter.done().0);
    }
    println!("200 waiters were woken by 200 tasks in {:?}", pushed.elapsed());
    assert_eq!(waiters(&mut client, "default"), 0);
}

#[test]
fn one_of_many_idle_waiters_checks_for_all() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let extra = "max_connections = 230\nqueue.sweep_interval = '1s'";
    let mut cluster = Cluster::start_with("waiting-check", &Settings { preload: true, extra });
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext; SELECT queue.create('alone')");
    cluster.await_worker("postgres");
    let alone = wait(&cluster, "CALL queue.wait('alone', '10 minutes')");
    let many: Vec<Waiter> =
        (0..100).map(|_| wait(&cluster, "CALL queue.wait(timeout => '10 minutes')")).collect();
    await_waiters(&mut client, "alone", 1);
    await_waiters(&mut client, "default", 100);
    let pids: Vec<i32> = many.iter().map(|waiter| waiter.pid).collect();
    let before = [processor_time(&[alone.pid]), processor_time(&pids)];
    // Ten checks of the first.
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(100));
    }
    let [one, all] = [processor_time(&[alone.pid]) - before[0], processor_time(&pids) - before[1]];
    let ratio = all.as_secs_f64() / one.as_secs_f64();
    println!("a waiter alone takes {one:?}, a hundred for one queue {all:?}: {ratio:.1} times as much");
    assert!(ratio < 40.0, "{ratio}");
    run(
        &mut client,
        "SELECT queue.push('alone'), queue.push_many('default', array_fill('{}'::jsonb, ARRAY[100]))",
    );
    assert!(many.into_iter().chain([alone]).all(|waiter| waiter.done().0));
}

#[test]
fn a_waiter_that_finds_tasks_by_itself_wakes_the_others() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let extra = "queue.sweep_interval = '5s'\nqueue.worker_enabled = off";
    let cluster = Cluster::start_with("waiting-unannounced", &Settings { preload: true, extra });
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext");
    let mut sleepers: Vec<_> = (1..=10)
        .map(|count| {
            let mut session = cluster.connect();
            let pid: i32 = session.query_one("SELECT pg_backend_pid()", &[]).expect("pid").get(0);
            let call = "CALL queue.wait(timeout => '10 minutes')";
            let thread = thread::spawn(move || session.simple_query(call).is_ok());
            await_waiters(&mut client, "default", count);
            (pid, thread)
        })
        .collect();
    let others = sleepers.split_off(2);
    // These are woken first, and cannot do anything.
    sleepers.iter().for_each(|(pid, _)| queue_ext_tests::cluster::signal(*pid, libc::SIGSTOP));
    (0..2).for_each(|_| run(&mut client, "SELECT queue.push('default')"));
    let pushed = Instant::now();
    assert!(others.into_iter().all(|(_, thread)| thread.join().expect("join")));
    let found = pushed.elapsed();
    println!("eight sessions found two tasks for which two stopped ones had been woken within {found:?}");
    // At one check for all, and not at one for each.
    assert!(found < Duration::from_secs(16), "{found:?}");
    sleepers.iter().for_each(|(pid, _)| queue_ext_tests::cluster::signal(*pid, libc::SIGCONT));
    assert!(sleepers.into_iter().all(|(_, thread)| thread.join().expect("join")));
}
