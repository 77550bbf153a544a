//! How soon waiting sessions are woken.

use super::*;

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
                    .query("SELECT queue.complete($1, $2)", &[&task.get::<_, i64>(0), &task.get::<_, i64>(1)])
                    .expect("complete");
            }
        }
    });
    let (mut committed, mut sent, mut locks) = (Vec::new(), Vec::new(), handovers(&cluster, 50));
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
    locks.extend(handovers(&cluster, 50));
    is_within(5.0, p50, &mut locks);
}

#[test]
fn a_waiter_returns_when_a_task_becomes_due_and_when_a_lease_expires() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-due");
    let mut client = cluster.connect();
    let (mut due, mut leases, mut locks) = (Vec::new(), Vec::new(), handovers(&cluster, 50));
    run(&mut client, "SELECT queue.configure('default', '{\"max_attempts\": 1000}')");
    for round in 0..20 {
        let shorter = |query: &str| query.replace("300 ms", &format!("{} ms", 50 + 7 * round));
        due.push(lateness(&mut client, &shorter(LATER)));
        leases.push(lateness(&mut client, &shorter(LEASED)));
        run(&mut client, "DELETE FROM queue.tasks");
    }
    // Announced while a session already waits.
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
    locks.extend(handovers(&cluster, 50));
    for (what, times) in [("run_at", &mut due), ("the end of a lease", &mut leases)] {
        let [p50, ..] = report(&format!("from {what} to the return of queue.wait"), times);
        is_within(20.0, p50, &mut locks);
        // At some of them the worker may be making partitions, or the machine at something else.
        let late = times[times.len() * 4 / 5];
        assert!(late < Duration::from_millis(250), "{what}: one of five {late:?} late or more");
    }
}

#[test]
fn wait_result_returns_within_milliseconds() {
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
    let (mut times, mut locks) = (Vec::new(), handovers(&cluster, 50));
    for _ in 0..100 {
        let id = number(&mut client, "SELECT queue.push('default')");
        let task = client.query_one("SELECT id, token FROM queue.claim()", &[]).expect("claim");
        ask.send(id).expect("ask");
        eventually("it sleeps, and holds nothing", SOON, || {
            let query = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event IN ('Extension', 'QueueExtWait')
                         AND state = 'active' AND xact_start IS NULL AND backend_xmin IS NULL";
            client.query_one(query, &[&pid]).expect("look").get::<_, i64>(0) == 1
        });
        let (id, token): (i64, i64) = (task.get(0), task.get(1));
        client.query("SELECT queue.complete($1, $2)", &[&id, &token]).expect("complete");
        let completed = Instant::now();
        let (state, told) = news.recv_timeout(SOON).expect("it is told");
        assert_eq!(state, "completed");
        times.push(told.saturating_duration_since(completed));
    }
    drop(ask);
    thread.join().expect("join");
    let [p50, ..] = report("from a completion's commit to the return of queue.wait_result", &mut times);
    locks.extend(handovers(&cluster, 50));
    is_within(5.0, p50, &mut locks);
}
