//! All floods at once from the queues of one role, while the workers of another role's queue b continue.
//!
//! `NEIGHBOURS_SECONDS=3600` makes the floods last an hour, and requires that b is on time. It is compared with two
//! parts of a twentieth of that time: a quiet one before, and one after with as many sessions that work in their own
//! tables. `NEIGHBOURS_TASKS=400000` creates so many hostile tasks at the start, as if the floods had lasted for
//! longer. The time during which the machine itself stood still is not counted.

use super::floods::{Floods, beside_work_of_their_own};
use super::*;
use postgres::NoTls;
use queue_ext_tests::stalls::Stalls;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The requested duration. The brief form only checks for lost and stuck tasks, on a machine that may do other work
/// as well.
fn asked_for() -> Option<Duration> {
    let seconds = std::env::var("NEIGHBOURS_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("a number of seconds")))
}

fn length() -> Duration {
    asked_for().unwrap_or(Duration::from_secs(20))
}

/// For each task, from when on it could be claimed, and what its worker does with it.
#[derive(Clone, Copy)]
struct Due {
    at: Instant,
    /// The first attempt ends with its lease.
    dies: bool,
}

/// From when a task could be claimed until it was.
type Wait = (Instant, Instant);

/// The tasks of queue b in one part of the run.
#[derive(Default)]
struct Part {
    pickups: Vec<Wait>,
    /// The tasks whose lease expired, from its end.
    returns: Vec<Wait>,
    done: HashMap<i64, u32>,
    /// What was refused to a worker, since it had claimed the task.
    refused: Vec<(Wait, String)>,
}

fn late(wait: &Wait, stalls: &Stalls) -> Duration {
    wait.1.saturating_duration_since(wait.0).saturating_sub(stalls.between(wait.0, wait.1))
}

impl Part {
    fn percentile(&self, part: f64, stalls: &Stalls) -> Duration {
        let mut pickups: Vec<Duration> = self.pickups.iter().map(|wait| late(wait, stalls)).collect();
        pickups.sort_unstable();
        pickups.get((pickups.len() as f64 * part) as usize).or(pickups.last()).copied().unwrap_or_default()
    }

    fn latest(&self, stalls: &Stalls) -> Duration {
        self.pickups.iter().chain(&self.returns).map(|wait| late(wait, stalls)).max().unwrap_or_default()
    }
}

const LEASE: Duration = Duration::from_millis(700);
const WORKERS: usize = 3;

/// Pushes to queue b and works there for so long; every task has to be done at the end.
fn work(cluster: &Cluster, time: Duration) -> Part {
    let due: Arc<Mutex<HashMap<i64, Due>>> = Arc::default();
    let part: Arc<Mutex<Part>> = Arc::default();
    let pushing = Arc::new(AtomicBool::new(true));
    let pushed = Arc::new(AtomicUsize::new(0));
    let connect = || cluster.config("postgres").user("tenant").connect(NoTls).expect("connect");
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let mut client = connect();
            let (due, part, pushing, pushed) = (due.clone(), part.clone(), pushing.clone(), pushed.clone());
            std::thread::spawn(move || loop {
                let task = client
                    .query_opt("SELECT id, token, (payload ->> 'n')::bigint, attempt FROM queue.claim('1 minute', 'b')", &[])
                    .expect("claim");
                let claimed = Instant::now();
                let Some(task) = task else {
                    let done = part.lock().expect("no panic").done.len();
                    if !pushing.load(Ordering::SeqCst) && done == pushed.load(Ordering::SeqCst) {
                        break;
                    }
                    run(&mut client, "CALL queue.wait('b', '1 second', NULL)");
                    continue;
                };
                let (id, token, n, attempt): (i64, i64, Option<i64>, i32) =
                    (task.get(0), task.get(1), task.get(2), task.get(3));
                // The runs of the schedule have no number.
                let n = n.unwrap_or(-id);
                let known = due.lock().expect("no panic").get(&n).copied();
                if let Some(known) = known {
                    let mut part = part.lock().expect("no panic");
                    if attempt == 1 {
                        part.pickups.push((known.at, claimed));
                        if known.dies {
                            drop(part);
                            // Not before the lease has been given can it end.
                            let mut due = due.lock().expect("no panic");
                            client.execute("SELECT queue.extend($1, $2, '700 ms')", &[&id, &token]).expect("extend");
                            due.insert(n, Due { at: Instant::now() + LEASE, dies: true });
                            continue;
                        }
                    } else {
                        part.returns.push((known.at, claimed));
                    }
                }
                let result = client.execute("SELECT queue.complete($1, $2)", &[&id, &token]);
                let mut part = part.lock().expect("no panic");
                match result {
                    Ok(_) if n > 0 => *part.done.entry(n).or_insert(0) += 1,
                    Ok(_) => {}
                    Err(error) => part.refused.push(((claimed, Instant::now()), error.to_string())),
                }
            })
        })
        .collect();
    let mut client = connect();
    let started = Instant::now();
    let mut number = 0_i64;
    while started.elapsed() < time {
        number += 1;
        let delay = if number % 10 == 0 { 300 } else { 0 };
        // Known before it can be claimed; the time is that of its commit.
        let dies = number % 50 == 1;
        let mut due_now = due.lock().expect("no panic");
        let statement = format!("SELECT queue.push('b', '{{\"n\": {number}}}', delay => '{delay} ms')");
        run(&mut client, &statement);
        due_now.insert(number, Due { at: Instant::now() + Duration::from_millis(delay), dies });
        drop(due_now);
        pushed.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
    }
    pushing.store(false, Ordering::SeqCst);
    workers.into_iter().for_each(|worker| worker.join().expect("a worker"));
    let part = std::mem::take(&mut *part.lock().expect("no panic"));
    assert_eq!(part.done.len() as i64, number, "nothing is lost");
    assert!(part.done.values().all(|times| *times == 1), "nothing is done twice");
    part
}

/// How late the runs of b's schedule were, at most, and how many of them there were since.
fn ticks(client: &mut Client, stalls: &Stalls) -> (Duration, u64) {
    let query = "SELECT extract(epoch FROM (headers ->> 'scheduled_for')::timestamptz)::float8, extract(epoch FROM created_at)::float8
                 FROM queue.all_tasks WHERE queue = 'b' AND headers ? 'schedule'";
    let runs = client.query(query, &[]).expect("ticks");
    let waits = runs.iter().map(|run| (stalls.moment(run.get(0)), stalls.moment(run.get(1))));
    (waits.map(|wait| late(&wait, stalls)).max().unwrap_or_default(), runs.len() as u64)
}

#[test]
fn all_floods_at_once_delay_no_other_queue() {
    let (mut cluster, mut client, worker) = start("hour");
    let (stalls, began) = (stalls::watch(), Instant::now());
    super::floods::prepare(&mut client);
    run(&mut client, TICK);
    if let Ok(tasks) = std::env::var("NEIGHBOURS_TASKS") {
        run(
            &mut client,
            &format!(
                "SET session_replication_role = replica;
                 INSERT INTO queue.tasks (queue, priority, run_at)
                 SELECT 'a', n, now() + interval '1 day' FROM generate_series(1, {tasks}) AS n;
                 SET session_replication_role = origin; ANALYZE queue.tasks"
            ),
        );
    }
    let load = || std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before: {}", load().trim());
    let quiet = work(&cluster, length() / 20);
    let floods = Floods::begin(&cluster);
    let among = work(&cluster, length());
    println!("load among the floods: {}", load().trim());
    let (statements, refused) =
        (floods.statements.load(Ordering::Relaxed), floods.refused.load(Ordering::Relaxed));
    let rows = number(&mut client, "SELECT count(*) FROM queue.tasks");
    let efforts = floods.end();
    let stood_still = stalls.between(began, Instant::now());
    let (late, ticks) = ticks(&mut client, stalls);
    let shared = beside_work_of_their_own(&cluster, &efforts, || work(&cluster, length() / 20));
    println!(
        "{:?}; {} hostile statements, {refused} of them refused, {rows} tasks at the end; {} tasks of b, {} of them after a lease that \
         ran out; {ticks} runs of b's schedule, {late:?} late at most; the machine stood still for {stood_still:?}",
        length(),
        statements,
        among.pickups.len(),
        among.returns.len(),
    );
    for (name, part) in [("quiet", &quiet), ("beside other work", &shared), ("among the floods", &among)] {
        let (p50, p99) = (part.percentile(0.5, stalls), part.percentile(0.99, stalls));
        println!(
            "{name}: {} tasks, p50 {p50:?}, p99 {p99:?}, latest {:?}",
            part.pickups.len(),
            part.latest(stalls)
        );
    }
    // A lease that ran out while nothing ran is refused rightly.
    let refused: Vec<_> =
        among.refused.iter().filter(|(wait, _)| stalls.between(wait.0, wait.1).is_zero()).collect();
    assert!(refused.is_empty(), "{refused:?}");
    if asked_for().is_some() {
        assert!(among.latest(stalls) < Duration::from_secs(1), "{:?} late", among.latest(stalls));
        assert!(late < Duration::from_secs(1), "a run of b was {late:?} late");
        assert!(ticks + 2 >= (length() - stood_still.min(length())).as_secs(), "{ticks} runs");
        let (alone, shared, among) =
            (quiet.percentile(0.99, stalls), shared.percentile(0.99, stalls), among.percentile(0.99, stalls));
        // The cost of any second session beside it.
        let most = (2 * alone.max(shared)).max(Duration::from_millis(20));
        assert!(
            among <= most,
            "p99 {alone:?} alone, {shared:?} beside other work, {among:?} among the floods"
        );
    } else {
        assert!(among.latest(stalls) < Duration::from_secs(5), "{:?} late", among.latest(stalls));
        assert!(ticks > 3, "{ticks} runs");
    }
    assert_eq!(cluster.await_worker("postgres"), worker);
}
