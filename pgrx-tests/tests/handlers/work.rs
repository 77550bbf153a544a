//! What a handler is given, what becomes of its result, and how it waits.

use std::time::Instant;

use postgres::NoTls;

use super::{NOTE, attach, await_idle, await_state, create, one, processes, push, run, start};
use queue_ext_tests::{SOON, WOKEN, eventually, stalls};

#[test]
fn a_handler_runs_as_its_role_and_its_result_is_that_of_the_task() {
    let (_cluster, mut client) = start("handlers-result");
    attach(&mut client, NOTE, 1);
    let id = push(&mut client, "");
    await_state(&mut client, id, "completed");
    let result: serde_json::Value =
        one(&mut client, &format!("SELECT result FROM queue.history WHERE id = {id}"));
    assert_eq!(result, serde_json::json!({ "n": 1 }));
    assert_eq!(one::<String>(&mut client, "SELECT note FROM public.done"), "app");
    let process: String = one(
        &mut client,
        "SELECT usename || ': ' || application_name FROM pg_stat_activity WHERE backend_type = 'queue_ext handler'",
    );
    assert_eq!(process, "app: queue_ext handler of work");
}

#[test]
fn an_idle_process_is_woken_by_a_commit_and_holds_nothing() {
    let (_cluster, mut client) = start("handlers-idle");
    attach(&mut client, NOTE, 1);
    await_idle(&mut client);
    for _ in 0..5 {
        let pushed = Instant::now();
        let id = push(&mut client, "");
        await_state(&mut client, id, "completed");
        assert!(stalls::since(pushed) < WOKEN, "it was woken, and did not check by itself");
    }
}

#[test]
fn a_scheduled_task_is_handled_when_it_becomes_due() {
    let (_cluster, mut client) = start("handlers-scheduled");
    attach(&mut client, NOTE, 1);
    let pushed = Instant::now();
    let id = push(&mut client, ", delay => '300 ms'");
    await_state(&mut client, id, "completed");
    assert!(stalls::since(pushed) < WOKEN, "the worker wakes the process");
}

#[test]
fn a_steady_stream_costs_one_transaction_for_each_task() {
    let (_cluster, mut client) = start("handlers-commits");
    create(&mut client, NOTE);
    run(&mut client, "SELECT count(queue.push('work')) FROM generate_series(1, 500)");
    let before: i64 = one(&mut client, "SELECT txid_current()");
    attach(&mut client, NOTE, 1);
    eventually("all are done", SOON, || one::<i64>(&mut client, "SELECT count(*) FROM public.done") == 500);
    let used = one::<i64>(&mut client, "SELECT txid_current()") - before;
    assert!(used < 550, "{used} transactions for 500 tasks");
}

#[test]
fn a_paused_queue_is_not_handled_until_it_is_resumed() {
    let (_cluster, mut client) = start("handlers-pause");
    attach(&mut client, NOTE, 1);
    // A claim that began before the pause may still find a task.
    await_idle(&mut client);
    run(&mut client, "SELECT queue.pause('work')");
    let id = push(&mut client, "");
    let other = one::<i64>(&mut client, "SELECT queue.push('default')");
    run(
        &mut client,
        "SELECT queue.grant_worker('app'); SELECT queue.attach('default', 'public.handle(queue.claimed_task)', 'app')",
    );
    await_state(&mut client, other, "completed");
    await_state(&mut client, id, "queued");
    run(&mut client, "SELECT queue.resume('work')");
    await_state(&mut client, id, "completed");
}

#[test]
fn groups_and_limits_hold_with_four_processes() {
    let (_cluster, mut client) = start("handlers-limits");
    run(&mut client, "SELECT queue.configure('work', '{\"max_running\": 3}')");
    attach(
        &mut client,
        "PERFORM pg_sleep(0.005); INSERT INTO public.done VALUES (task.id, task.attempt, NULL); RETURN NULL;",
        4,
    );
    run(
        &mut client,
        "SELECT count(queue.push('work', group_key => (n % 8)::text)) FROM generate_series(1, 200) AS n",
    );
    eventually("all are done", SOON, || one::<i64>(&mut client, "SELECT count(*) FROM public.done") == 200);
    // At the start of each task: the tasks that ran, and those of its group.
    let most: String = one(
        &mut client,
        "SELECT max(total) || ' ' || max(same) FROM (
             SELECT count(*) AS total, count(*) FILTER (WHERE o.group_key = h.group_key) AS same
             FROM queue.history AS h JOIN queue.history AS o ON o.claimed_at <= h.claimed_at AND o.finished_at > h.claimed_at
             GROUP BY h.id) AS c",
    );
    assert_eq!(most, "3 1", "how many ran at a time: all, and of one group");
    let disorder: i64 = one(
        &mut client,
        "SELECT count(*) FROM (SELECT h.id < lag(h.id) OVER (PARTITION BY h.group_key ORDER BY h.finished_at) AS wrong
                               FROM queue.history AS h) AS o WHERE wrong",
    );
    assert_eq!(disorder, 0, "each group in its order");
}

#[test]
fn a_rate_limit_holds_and_is_used() {
    let (_cluster, mut client) = start("handlers-rate");
    run(&mut client, "SELECT queue.configure('work', '{\"rate_limit\": 5, \"rate_period\": \"1 second\"}')");
    attach(&mut client, NOTE, 2);
    let started = Instant::now();
    run(&mut client, "SELECT count(queue.push('work')) FROM generate_series(1, 15)");
    eventually("all are done", SOON, || one::<i64>(&mut client, "SELECT count(*) FROM public.done") == 15);
    let most: i64 = one(
        &mut client,
        "SELECT max(n) FROM (SELECT count(*) OVER (ORDER BY claimed_at RANGE BETWEEN CURRENT ROW AND '0.99 s' FOLLOWING) AS n
                             FROM queue.history) AS o",
    );
    assert!(most <= 5, "{most} started within a second");
    assert!(stalls::since(started) < 2 * WOKEN, "they started as soon as the limit let them");
}

/// The same work by one process of each kind. Prints how their times compare.
#[test]
fn a_handler_is_faster_than_a_worker_outside_the_database() {
    const TASKS: i64 = 2000;
    let (cluster, mut client) = start("handlers-throughput");
    let fill = format!("SELECT count(queue.push('work', '{{\"n\": 1}}')) FROM generate_series(1, {TASKS})");
    let (mut inside, mut outside) = (f64::MAX, f64::MAX);
    // The best of three, because the machine may be busy.
    for _ in 0..3 {
        run(&mut client, "TRUNCATE public.done");
        create(&mut client, NOTE);
        run(&mut client, &format!("SELECT queue.pause('work'); {fill}"));
        attach(&mut client, NOTE, 1);
        let started = Instant::now();
        run(&mut client, "SELECT queue.resume('work')");
        eventually("all are done", SOON, || {
            one::<i64>(&mut client, "SELECT count(*) FROM public.done") == TASKS
        });
        inside = inside.min(stalls::since(started).as_secs_f64());
        run(&mut client, "SELECT queue.detach('work')");
        eventually("the process exits", SOON, || processes(&mut client).is_empty());

        run(&mut client, &fill);
        let mut worker = cluster.config("postgres").user("app").connect(NoTls).expect("connect");
        let insert = worker.prepare("INSERT INTO public.done VALUES ($1, 1, 'outside')").expect("prepare");
        let claim = worker.prepare("SELECT id, token FROM queue.claim(queue => 'work')").expect("prepare");
        let next = worker
            .prepare("SELECT id, token FROM queue.complete_and_claim($1, $2, '{\"n\": 1}', queue => 'work')")
            .expect("prepare");
        let started = Instant::now();
        let mut task = worker.query_opt(&claim, &[]).expect("claim");
        while let Some(row) = task {
            let (id, token): (i64, i64) = (row.get(0), row.get(1));
            let mut transaction = worker.transaction().expect("begin");
            transaction.execute(&insert, &[&id]).expect("insert");
            task = transaction.query_opt(&next, &[&id, &token]).expect("complete and claim");
            transaction.commit().expect("commit");
        }
        outside = outside.min(stalls::since(started).as_secs_f64());
    }
    let rate = |seconds: f64| TASKS as f64 / seconds;
    println!(
        "a handler: {:.0} tasks/s; a worker outside: {:.0} tasks/s; ratio {:.2}",
        rate(inside),
        rate(outside),
        outside / inside
    );
    assert!(inside < 1.2 * outside, "a handler took {inside:.2} s, a worker outside {outside:.2} s");
}
