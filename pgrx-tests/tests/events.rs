//! Events are hints: losing all of them repeatedly only costs a bounded delay.
//!
//! LOST_EVENTS_SECONDS sets the duration, 5 by default.

#[path = "events/by_hand.rs"]
mod by_hand;
#[path = "events/dependents.rs"]
mod dependents;
#[path = "events/many_rows.rs"]
mod many_rows;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use queue_ext_tests::stalls::{self, Excuse};
use queue_ext_tests::{Cluster, Edition, SOON, Settings, Worker, eventually, number, run};

/// The setting "queue.sweep_interval", or the interval at which queue.maintain() runs instead.
const SWEEP: Duration = Duration::from_secs(2);

/// What this session and the background worker, where there is one, may be late by.
fn excuses(client: &mut Client) -> Vec<Excuse> {
    let query = "SELECT pid FROM pg_stat_activity WHERE pid = pg_backend_pid()
                 OR backend_type = 'queue_ext worker' AND datname = current_database()";
    client.query(query, &[]).expect("the processes").iter().map(|row| Excuse::of(row.get(0))).collect()
}

/// A time without what these processes have lost so far.
fn excused(time: Duration, excuses: &[Excuse]) -> Duration {
    time.saturating_sub(excuses.iter().map(Excuse::so_far).sum())
}

/// A server of the edition with a short sweep interval.
fn cluster(edition: Edition, name: &str) -> Cluster {
    edition.sweeping_cluster(&format!("events-{name}"), Worker::On, SWEEP)
}

#[test]
fn tasks_end_in_order_and_within_limits_while_all_events_are_lost() {
    let seconds = std::env::var("LOST_EVENTS_SECONDS").ok().and_then(|value| value.parse().ok()).unwrap_or(5);
    for edition in Edition::different().iter().copied() {
        lose_events(edition, Duration::from_secs(seconds));
    }
}

/// Pushes, claims and completes for some time while another session deletes all events, then drains.
fn lose_events(edition: Edition, time: Duration) {
    let cluster = cluster(edition, "lost");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.create('grouped'), queue.create('limited', '{\"max_running\": 3}'),
                queue.create('dependent'), queue.create('rated', '{\"group_rate_limit\": 10, \"rate_period\": \"1 second\",
                                                                  \"max_running_per_group\": 3}');
         CREATE TABLE public.ran (queue text, id bigint, group_key text, begun timestamptz, ended timestamptz)",
    );
    let over = AtomicBool::new(false);
    let connect = || cluster.config("postgres").connect(NoTls).expect("connect");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut loser = connect();
            while !over.load(Ordering::Relaxed) {
                run(&mut loser, "DELETE FROM queue_internal.events");
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        if edition == Edition::SqlOnly {
            // Instead of the worker.
            scope.spawn(|| {
                let mut keeper = connect();
                while !over.load(Ordering::Relaxed) {
                    run(&mut keeper, "CALL queue.maintain()");
                    std::thread::sleep(SWEEP / 4);
                }
            });
        }
        for number in 0..4 {
            let over = &over;
            scope.spawn(move || work(connect(), number, over));
        }
        let mut producer = connect();
        let started = Instant::now();
        let mut last = 0;
        for round in 0.. {
            if started.elapsed() >= time {
                break;
            }
            last = number(
                &mut producer,
                &format!(
                    "WITH a AS (SELECT queue.push('dependent') AS id)
                     SELECT queue.push('dependent', after => ARRAY(SELECT a.id FROM a UNION SELECT {last} WHERE {last} > 0))
                     FROM a"
                ),
            );
            run(
                &mut producer,
                "SELECT queue.push('grouped', group_key => g) FROM unnest('{a,b,c}'::text[]) AS g;
                 SELECT queue.push('limited', group_key => 'only')",
            );
            let (group, weight) = (round % 3, 1 + round % 2);
            run(
                &mut producer,
                &format!("SELECT queue.push('rated', group_key => 'r{group}', weight => {weight})"),
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        let left = "SELECT count(*) FROM queue.tasks";
        eventually("all of them end", SOON + 4 * time, || number(&mut producer, left) == 0);
        over.store(true, Ordering::Relaxed);
    });
    let tasks = number(&mut client, "SELECT count(*) FROM public.ran");
    let ended = number(&mut client, "SELECT count(*) FROM queue.history WHERE state = 'completed'");
    assert_eq!(tasks, ended, "{}: each ran once", edition.name());
    for (promise, query) in [
        (
            "in order within groups",
            "SELECT count(*) FROM (SELECT id, lag(id) OVER (PARTITION BY queue, group_key ORDER BY begun) AS earlier
                                   FROM public.ran WHERE group_key IS NOT NULL AND queue <> 'rated') AS r WHERE earlier > id",
        ),
        (
            "one of a group at a time",
            "SELECT count(*) FROM (SELECT begun, lag(ended) OVER (PARTITION BY queue, group_key ORDER BY begun) AS earlier
                                   FROM public.ran WHERE group_key IS NOT NULL AND queue <> 'rated') AS r WHERE earlier > begun",
        ),
        (
            "never over the rate of a group",
            "SELECT count(*) FROM (SELECT sum(h.weight) OVER (PARTITION BY r.group_key ORDER BY r.begun
                                          RANGE BETWEEN CURRENT ROW AND interval '999999 microseconds' FOLLOWING) AS started
                                   FROM public.ran AS r JOIN queue.history AS h USING (id)
                                   WHERE r.queue = 'rated') AS r WHERE started > 10",
        ),
        (
            "never over the limit",
            "SELECT count(*) FROM public.ran AS r WHERE r.queue = 'limited' AND 3 < (
                 SELECT count(*) FROM public.ran AS o
                 WHERE o.queue = r.queue AND o.begun <= r.begun AND o.ended > r.begun)",
        ),
    ] {
        assert_eq!(number(&mut client, query), 0, "{}: {promise}", edition.name());
    }
    println!("{}: {tasks} tasks", edition.name());
}

/// Claims and completes one task at a time from all queues.
fn work(mut client: Client, worker: usize, over: &AtomicBool) {
    let claim = "SELECT id, token, queue, group_key FROM queue.claim('1 minute', ARRAY['grouped', 'limited', 'dependent', 'rated'], 1, $1)";
    while !over.load(Ordering::Relaxed) {
        let Some(task) = client.query_opt(claim, &[&format!("w{worker}")]).expect("claim") else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let (id, token): (i64, i64) = (task.get(0), task.get(1));
        let (queue, group): (String, Option<String>) = (task.get(2), task.get(3));
        let insert = "WITH done AS MATERIALIZED (
                          INSERT INTO public.ran SELECT $1, t.id, $2, t.claimed_at, clock_timestamp() FROM queue.tasks AS t
                          WHERE t.id = $3)
                      SELECT queue.complete($3, $4)";
        client.execute(insert, &[&queue, &group, &id, &token]).expect("complete");
    }
}

#[test]
fn one_lost_event_costs_a_sweep_interval_at_most() {
    for edition in Edition::different().iter().copied() {
        let cluster = cluster(edition, "late");
        let mut client = cluster.connect();
        run(
            &mut client,
            "SELECT queue.create('q'), queue.create('rated', '{\"group_rate_limit\": 1, \"rate_period\": \"1 second\",
                                                              \"max_running_per_group\": 2}')",
        );
        // In one transaction, so that no session processes the event.
        run(
            &mut client,
            "DO $$
             DECLARE
                 first bigint := queue.push('q');
             BEGIN
                 PERFORM queue.push('q', '\"dependent\"', after => ARRAY[first]);
                 PERFORM queue.push('q', '1', group_key => 'g');
                 PERFORM queue.push('q', '2', group_key => 'g');
                 PERFORM queue.push('rated', '1', group_key => 'g'), queue.push('rated', '2', group_key => 'g');
                 DELETE FROM queue_internal.events;
             END $$",
        );
        let started = Instant::now();
        let mut done = 0;
        while done < 6 {
            assert!(
                stalls::since(started) < 3 * (SWEEP + Duration::from_secs(1)),
                "{}: {done} so far",
                edition.name()
            );
            if edition == Edition::SqlOnly {
                run(&mut client, "CALL queue.maintain()");
            }
            run(&mut client, "BEGIN");
            done += number(
                &mut client,
                "SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', ARRAY['q', 'rated'], 9)",
            );
            run(&mut client, "DELETE FROM queue_internal.events; COMMIT");
            std::thread::sleep(Duration::from_millis(20));
        }
        println!("{}: {:?}", edition.name(), started.elapsed());
    }
}

#[test]
fn a_shorter_sweep_interval_applies_to_the_wait_that_has_begun() {
    let settings = Settings { preload: true, extra: "queue.sweep_interval = 1h" };
    let mut cluster = Cluster::start_with("events-shorter", &settings);
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext");
    cluster.await_worker("postgres");
    let lose = "DO $$
         DECLARE
             first bigint := queue.push('default');
         BEGIN
             PERFORM queue.push('default', after => ARRAY[first]);
             PERFORM queue.complete(id, token) FROM queue.claim('1 minute', 'default') WHERE id = first;
             DELETE FROM queue_internal.events;
         END $$";
    let left = "SELECT count(*) FROM queue.tasks WHERE state = 'waiting'";
    // The first turns end what came before, and then the wait of an hour begins.
    eventually("no turn comes", SOON, || {
        run(&mut client, lose);
        std::thread::sleep(Duration::from_secs(1));
        number(&mut client, left) > 0
    });
    run(&mut client, "ALTER SYSTEM SET queue.sweep_interval = '1s'");
    run(&mut client, "SELECT pg_reload_conf()");
    eventually("the sweep finds it", SOON, || number(&mut client, left) == 0);
}

/// As one that was postponed before the clock was set back.
#[test]
fn an_event_that_is_due_in_an_hour_is_processed_by_the_sweep() {
    for edition in Edition::different().iter().copied() {
        let cluster = cluster(edition, "ahead");
        let mut client = cluster.connect();
        run(&mut client, "SELECT queue.create('q')");
        run(
            &mut client,
            "DO $$
             DECLARE
                 first bigint := queue.push('q');
             BEGIN
                 PERFORM queue.push('q', group_key => 'g');
                 PERFORM queue.push('q', after => ARRAY[first]);
                 PERFORM queue.complete(id, token) FROM queue.claim('1 minute', 'q') WHERE id = first;
                 UPDATE queue_internal.events SET due_at = clock_timestamp() + interval '1 hour', tries = 1;
             END $$",
        );
        let mut done = 0;
        eventually("both tasks are claimed", 3 * (SWEEP + Duration::from_secs(1)), || {
            if edition == Edition::SqlOnly {
                run(&mut client, "CALL queue.maintain()");
            }
            done += number(&mut client, "SELECT count(*) FROM queue.claim('1 minute', 'q', 9)");
            done >= 2
        });
    }
}

#[test]
fn the_worker_remembers_when_a_postponed_event_is_due_while_it_processes_others() {
    let settings = Settings { preload: true, extra: "queue.sweep_interval = '1h'" };
    let mut cluster = Cluster::start_with("events-remembered", &settings);
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext; SELECT queue.create('q'), queue.create('other')");
    cluster.await_worker("postgres");
    run(&mut client, "SELECT queue.push('q')");
    let dependent =
        number(&mut client, "SELECT queue.push('q', after => ARRAY[(SELECT max(id) FROM queue.tasks)])");
    let mut holder = cluster.connect();
    run(&mut holder, &format!("BEGIN; SELECT FROM queue.tasks WHERE id = {dependent} FOR UPDATE"));
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim(queue => 'q')");
    // Postponed for more than half a second.
    let postponed = "SELECT count(*) FROM queue_internal.events WHERE tries >= 7";
    eventually("it is postponed", SOON, || number(&mut client, postponed) == 1);
    let told = "SELECT (queue.engine_stats() #>> '{worker,notifications}')::bigint";
    let before = number(&mut client, told);
    run(&mut client, "SELECT queue.push('other', delay => '20 ms')");
    eventually("a task came due meanwhile", SOON, || number(&mut client, told) > before);
    run(&mut holder, "ROLLBACK");
    // The pauses grow, and on a slow machine there may have been more of them.
    let left = "SELECT coalesce(max(extract(milliseconds FROM due_at - clock_timestamp())), 0)::bigint
                FROM queue_internal.events";
    let left = Duration::from_millis(number(&mut client, left).max(0).unsigned_abs());
    let unblocked = "SELECT count(*) FROM queue.tasks WHERE state = 'queued' AND queue = 'q'";
    let excuses = excuses(&mut client);
    let late = eventually("the dependent is unblocked", SOON, || number(&mut client, unblocked) == 1);
    let late = excused(late, &excuses);
    assert!(late < left + Duration::from_secs(3), "{late:?}, and {left:?} were left");
}
