//! Waits that end otherwise than by a task: rolled back, dropped, interrupted, dead.

use super::*;

#[test]
fn a_rolled_back_push_wakes_no_session() {
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
    // A claim that rolls back returns tasks for which others wait.
    run(&mut client, "BEGIN; SELECT queue.claim()");
    let waiter = wait(&cluster, "CALL queue.wait()");
    await_waiters(&mut client, "default", 1);
    let back = Instant::now();
    run(&mut client, "ROLLBACK");
    waiter.is_woken(back);
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
        waiter.is_woken(pushed);
        assert_eq!((waiters(&mut client, "a"), waiters(&mut client, "b")), (0, 0), "it has left both lists");
        run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim('30 seconds', ARRAY['a', 'b'])");
    }
    // A session that waits for two queues and was woken for one does not keep the other queue's task from the next
    // session.
    for (queue, call) in [("a", "CALL queue.wait('a')"), ("b", "CALL queue.wait('b')")] {
        let both = wait(&cluster, "CALL queue.wait(ARRAY['a', 'b'])");
        await_waiters(&mut client, queue, 1);
        let other = wait(&cluster, call);
        await_waiters(&mut client, queue, 2);
        let pushed = Instant::now();
        run(&mut client, "BEGIN; SELECT queue.push('b'); SELECT queue.push('a'); COMMIT");
        both.is_woken(pushed);
        other.is_woken(pushed);
        run(&mut client, "SELECT queue.purge('a'), queue.purge('b')");
    }
    // Paused, and resumed.
    run(&mut client, "SELECT queue.pause('a')");
    run(&mut client, "SELECT queue.push('a'), queue.push('a')");
    let sleepers = [wait(&cluster, "CALL queue.wait('a')"), wait(&cluster, "CALL queue.wait('a')")];
    await_waiters(&mut client, "a", 2);
    let resumed = Instant::now();
    run(&mut client, "SELECT queue.resume('a')");
    for waiter in sleepers {
        waiter.is_woken(resumed);
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
    is_soon(dropped, Instant::now());
    // At the timeout, without a result.
    const LIMIT: Duration = Duration::from_millis(100);
    for timeout in [0, 1, 100, 350] {
        let late = at_best(LIMIT, || {
            let started = Instant::now();
            let call = format!("CALL queue.wait('b', '{timeout} ms')");
            assert!(!client.query_one(&call, &[]).expect("wait").get::<_, bool>(0));
            started.elapsed().checked_sub(Duration::from_millis(timeout)).expect("not too early")
        });
        println!("a timeout of {timeout} ms takes {:.2} ms more", late.as_secs_f64() * 1e3);
        assert!(late < LIMIT, "{late:?}");
    }
}

#[test]
fn an_interrupted_session_leaves_the_lists() {
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
            let error = waiter.thread.join().expect("join").expect_err("interrupted");
            // No backtrace, although the server has RUST_BACKTRACE.
            assert_eq!(error.as_db_error().and_then(|error| error.detail()), None);
        }
        is_soon(sent, Instant::now());
        eventually("nobody stands in the list", SOON, || waiters(&mut client, "default") == 0);
    }
    let mut other = cluster.connect();
    run(&mut other, "SET statement_timeout = '200 ms'");
    let started = Instant::now();
    let waiter = wait_with(other, "CALL queue.wait()");
    let error = waiter.thread.join().expect("join").expect_err("timed out");
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error}");
    is_soon(started, Instant::now());
    assert_eq!(waiters(&mut client, "default"), 0);
    // A wake-up for a session that is gone goes to the next.
    let gone = wait(&cluster, "CALL queue.wait()");
    await_waiters(&mut client, "default", 1);
    let next = wait(&cluster, "CALL queue.wait()");
    await_waiters(&mut client, "default", 2);
    let pushed = Instant::now();
    client.execute("SELECT pg_terminate_backend($1), queue.push('default')", &[&gone.pid]).expect("both");
    next.is_woken(pushed);
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
    next.is_woken(pushed);
    eventually("its session is gone", SOON, || asleep(&mut client) == 0);
    assert_eq!(waiters(&mut client, "default"), 0);
}

/// The functions that a waiting CALL uses no longer exist then.
#[test]
fn a_session_that_waits_while_the_extension_is_dropped_gets_an_error() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let extra = "queue.sweep_interval = '1s'";
    let cluster = Cluster::start_with("waiting-dropped", &Settings { preload: true, extra });
    let mut client = cluster.connect();
    for begin in ["SELECT", "ALTER SYSTEM SET queue.fast_path = off"] {
        run(&mut client, begin);
        run(&mut client, "SELECT pg_reload_conf()");
        run(&mut client, "CREATE EXTENSION queue_ext");
        let id = number(&mut client, "SELECT queue.push('default', delay => '1 hour')");
        assert_eq!(id, 1);
        let waiters = ["CALL queue.wait()", "CALL queue.wait(ARRAY['default'])", "CALL queue.wait_result(1)"]
            .map(|call| wait(&cluster, call));
        let resting = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND pid IN ({}, {}, {})",
            waiters[0].pid, waiters[1].pid, waiters[2].pid
        );
        eventually("all of them wait", SOON, || number(&mut client, &resting) == 3);
        run(&mut client, "DROP EXTENSION queue_ext");
        for waiter in waiters {
            let error = waiter.thread.join().expect("join").expect_err("there is nothing to wait for");
            assert_eq!(error.code().map(|code| code.code()), Some("42704"), "{error:?}");
        }
    }
    // Dropped and created again in one transaction, it is another queue.
    run(&mut client, "CREATE EXTENSION queue_ext");
    let waiter = wait(&cluster, "CALL queue.wait()");
    let resting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND pid = {}",
        waiter.pid
    );
    eventually("it waits", SOON, || number(&mut client, &resting) == 1);
    run(&mut client, "BEGIN; DROP EXTENSION queue_ext; CREATE EXTENSION queue_ext; COMMIT");
    let error = waiter.thread.join().expect("join").expect_err("the queue that it waited for is gone");
    assert_eq!(error.code().map(|code| code.code()), Some("42704"), "{error:?}");
}

#[test]
fn all_sessions_that_wait_get_an_error_once_the_extension_is_dropped() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let extra = "queue.sweep_interval = '5s'";
    let mut cluster = Cluster::start_with("waiting-all-dropped", &Settings { preload: true, extra });
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext");
    cluster.await_worker("postgres");
    let sleepers: Vec<Waiter> =
        (0..30).map(|_| wait(&cluster, "CALL queue.wait(timeout => '10 minutes')")).collect();
    await_waiters(&mut client, "default", 30);
    run(&mut client, "DROP EXTENSION queue_ext");
    let dropped = Instant::now();
    for waiter in sleepers {
        let error = waiter.thread.join().expect("join").expect_err("there is no extension");
        assert_eq!(error.code().map(|code| code.code()), Some("42704"), "{error}");
    }
    // The session that checks for all passes the error on, and not each after an interval of its own.
    let ended = dropped.elapsed();
    println!("thirty sessions ended within {ended:?}");
    assert!(ended < Duration::from_secs(14), "{ended:?}");
}
