//! Runs jobs with River's own client: work JOBS CONCURRENCY
//!
//! It fetches 2 ms after the last fetch instead of 100, so that it reaches its highest rate. What it prints is described in ../handled.py.

use std::env;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use riverqueue::sqlx::PgPool;
use riverqueue::{BoxError, Client, Job, JobArgs, QueueConfig, WorkContext, WorkOutcome, Workers};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Notify;

/// A job has a number where pickups are timed, and a filling otherwise.
#[derive(Clone, Deserialize, JobArgs, Serialize)]
#[river(kind = "bench")]
struct Bench {
    n: Option<usize>,
    pad: Option<String>,
}

/// The number of each job that was handed to its handler, and when.
type Handled = Mutex<Vec<(Option<usize>, f64)>>;

/// The monotonic clock, which is the same in every process.
fn now() -> f64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<usize> = env::args().skip(1).map(|argument| argument.parse()).collect::<Result<_, _>>()?;
    let [jobs, concurrency] = arguments[..] else { return Err("usage: work JOBS CONCURRENCY".into()) };
    let handled = Arc::new(Handled::default());
    let finished = Arc::new(Notify::new());

    let mut workers = Workers::new();
    let (times, all) = (handled.clone(), finished.clone());
    workers.add_fn(move |_: WorkContext, job: Job<Bench>| {
        let mut times = times.lock().expect("no handler panics");
        times.push((job.args.n, now()));
        if times.len() == jobs {
            println!("handled");
            all.notify_one();
        }
        async { Ok::<_, BoxError>(WorkOutcome::Complete) }
    })?;
    let fetches = QueueConfig::new(concurrency)
        .with_fetch_cooldown(Duration::from_millis(2))
        .with_fetch_poll_interval(Duration::from_millis(20));
    let client = Client::builder(PgPool::connect(&env::var("DATABASE_URL")?).await?)
        .workers(workers)
        .queue("default", fetches)
        .build()?;
    let mut running = client.start()?;
    finished.notified().await;
    running.stop().await?;

    let times = handled.lock().expect("no handler panics");
    let first = times[0].1;
    let found = if env::var_os("BENCH_PICKUP").is_some() { json!({"first": first, "at": *times}) } else { json!({"first": first}) };
    println!("{found}");
    Ok(())
}
