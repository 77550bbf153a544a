//! After the faults: prepared transactions are ended, and all remaining tasks are finished within a time limit.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use postgres::Client;

use super::client::Target;
use super::journal::{Effect, Journal, Outcome, Verb};
use super::load::{LONGEST_LEASE, QUEUES};
use super::random::Random;
use super::waiting;
use crate::stalls;

const DRAINERS: usize = 3;
/// The longest time without progress before the drain fails.
const IDLE: Duration = Duration::from_millis(500);
/// A lease that no drainer outlives.
const LEASE: i64 = 60_000_000;
/// While tasks are left, no longer than this may pass without a claimed task, nor as many claims from each queue. On a busy
/// machine those take longer.
const PATIENCE: Duration = Duration::from_millis(LONGEST_LEASE + 5000);
const VAIN: u64 = 100;

/// Ends the transactions that are prepared, one way or the other, until the clients have finished.
pub fn end_prepared(target: &Arc<Target>, journals: &Path, random: &mut Random) {
    let mut journal = Journal::create(journals, "resolver");
    let mut last = false;
    while !last {
        // Once more after the last client, and then with an answer.
        last = target.finished();
        std::thread::sleep(Duration::from_millis(if last { 0 } else { random.roll(300) }));
        let rows = target.connect().and_then(|mut client| {
            let rows = client.query("SELECT gid FROM pg_prepared_xacts", &[]).ok()?;
            Some((client, rows))
        });
        let Some((mut client, rows)) = rows else {
            last = false;
            continue;
        };
        for row in &rows {
            let name: String = row.get(0);
            let commits = random.chance(60);
            let statement = if commits { "COMMIT" } else { "ROLLBACK" };
            // Its own client may have been faster.
            if client.batch_execute(&format!("{statement} PREPARED '{name}'")).is_ok() {
                journal.resolve(&name, commits);
            }
        }
    }
}

/// How a drain went.
pub struct Drained {
    pub took: Duration,
    /// How many tasks only the sweep could find.
    pub left_to_the_sweep: u64,
}

/// Works until no task is left. Reports what is left if that takes too long.
pub fn drain(target: &Arc<Target>, journals: &Path, name: &str, strict: bool) -> Result<Drained, String> {
    let mut client = target.connect().expect("a connection to the healed server");
    let mut count = |query| client.query_one(query, &[]).expect("count").get::<_, i64>(0);
    let left = count("SELECT count(*) FROM queue.tasks");
    let started = Instant::now();
    // The drain begins when no lease is left. A claim that reaches an expired lease falls back to SQL, and would find
    // a task in the table that a lane has lost. Without leases, only tasks that the lanes know are found.
    while count("SELECT count(*) FROM queue.tasks WHERE state = 'running'") > 0
        && stalls::since(started) < PATIENCE
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    let progress = Arc::new(Progress::of(left));
    let drainers: Vec<_> = (0..DRAINERS)
        .map(|number| {
            let client = target.connect().expect("a connection to the healed server");
            let journal = Journal::create(journals, &format!("{name}drain{number}"));
            let progress = progress.clone();
            std::thread::spawn(move || work(client, journal, number, &progress))
        })
        .collect();
    let left_to_the_sweep = watch(&mut client, strict, &drainers).map_err(|error| format!("{error:?}"))?;
    let done = drainers.into_iter().map(|drainer| drainer.join().expect("a drainer"));
    let done = done.collect::<Result<Vec<bool>, _>>().map_err(|error| format!("a drainer met {error:?}"))?;
    if done.into_iter().all(|done| done) {
        return Ok(Drained { took: started.elapsed(), left_to_the_sweep });
    }
    let reasons = waiting::reasons(&mut client).join("\n");
    let query =
        "SELECT format('%s: %s %s, attempt %s, due %s, lease %s, admission %s', id, queue, state, attempt, run_at,
                        lease_until, admission) FROM queue.tasks ORDER BY id LIMIT 20";
    let rows = client.query(query, &[]).expect("what is left");
    let tasks: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let stats: serde_json::Value =
        client.query_one("SELECT queue.engine_stats()", &[]).expect("stats").get(0);
    let took = started.elapsed();
    Err(format!("of {left} tasks some are left after {took:?}:\n{reasons}\n{}\n{stats}", tasks.join("\n")))
}

/// Checks for progress. When only tasks are left whose predecessors' ends were left to the sweep, the sweep runs
/// often; before that it is so rare that it finds nothing by chance.
fn watch<T>(client: &mut Client, strict: bool, drainers: &[JoinHandle<T>]) -> Result<u64, postgres::Error> {
    let (mut last, mut since, mut found) = (0, Instant::now(), 0);
    while drainers.iter().any(|drainer| !drainer.is_finished()) {
        std::thread::sleep(IDLE / 10);
        let left: i64 = client.query_one("SELECT count(*) FROM queue.tasks", &[])?.get(0);
        if left != last {
            (last, since) = (left, Instant::now());
        } else if left > 0 && found == 0 && since.elapsed() > IDLE {
            found = waiting::left_to_the_sweep(client, strict)?.unwrap_or(0);
            if found > 0 {
                waiting::sweep(client, true);
            }
        }
    }
    Ok(found)
}

/// When the last task was claimed, how many claims found nothing since, and how many more tasks may be claimed.
struct Progress(Mutex<(Instant, u64, i64)>);

impl Progress {
    /// A task whose completion was accepted does not come again.
    fn of(tasks: i64) -> Self {
        Self(Mutex::new((Instant::now(), 0, 2 * tasks + 100)))
    }

    fn claimed(&self, tasks: usize) {
        let mut progress = self.0.lock().expect("no drainer panics with the lock");
        *progress = match tasks {
            0 => (progress.0, progress.1 + 1, progress.2),
            _ => (Instant::now(), 0, progress.2 - tasks as i64),
        };
    }

    fn has_ended(&self) -> bool {
        let (last, vain, more) = *self.0.lock().expect("no drainer panics with the lock");
        vain > VAIN * QUEUES.len() as u64 && stalls::since(last) > PATIENCE || more < 0
    }
}

/// Claims from one queue after the other; true if nothing is left in the end.
fn work(
    mut client: Client,
    mut journal: Journal,
    number: usize,
    progress: &Progress,
) -> Result<bool, postgres::Error> {
    let claim = client.prepare(
        "SELECT id, token, queue, payload->>'value', group_key, \
         (extract(epoch FROM lease_until) * 1000000)::bigint FROM queue.claim('1 minute', $1, 50)",
    )?;
    let complete = client.prepare("SELECT queue.complete_many($1, $2)")?;
    let left = client.prepare("SELECT EXISTS (SELECT FROM queue.tasks)")?;
    let mut turn = number;
    while !progress.has_ended() {
        let queue = QUEUES[turn % QUEUES.len()];
        journal.begin();
        let rows = client.query(&claim, &[&queue])?;
        let (mut ids, mut tokens) = (Vec::<i64>::new(), Vec::<i64>::new());
        for row in &rows {
            ids.push(row.get(0));
            tokens.push(row.get(1));
            journal.effect(Effect::claimed(row, LEASE));
        }
        journal.end(Outcome::Ok);
        progress.claimed(rows.len());
        if rows.is_empty() {
            if !client.query_one(&left, &[])?.get::<_, bool>(0) {
                return Ok(true);
            }
            turn += 1;
            std::thread::sleep(Duration::from_millis(2));
            continue;
        }
        journal.begin();
        let effect =
            |n: usize, accepted| Effect::End { verb: Verb::Complete, id: ids[n], token: tokens[n], accepted };
        for place in 0..ids.len() {
            journal.effect(effect(place, false));
        }
        for row in client.query(&complete, &[&ids, &tokens])? {
            let place = ids.iter().position(|id| *id == row.get::<_, i64>(0)).expect("asked for");
            journal.settle(place, effect(place, true));
        }
        journal.end(Outcome::Ok);
    }
    Ok(false)
}
