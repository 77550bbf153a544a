//! The data that every page shows: queried once for all browsers, and kept for the curves.
//!
//! Each part is queried repeatedly, but the server works for at most a twentieth of the time: if the server has to count
//! its tasks, the numbers become older and the server not slower. While no page is open, the parts are queried rarely.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use crate::database::Database;
use crate::problem::Problem;

/// The curves: ten minutes, in steps of five seconds.
const STEP: u64 = 5;
const STEPS: usize = 120;
/// How many queues have curves of their own.
const CURVES: usize = 200;

/// How long the first request may wait for data.
const FIRST: Duration = Duration::from_millis(700);
const UNWATCHED: Duration = Duration::from_secs(10);
const WATCHED_FOR: Duration = Duration::from_secs(60);
const SHARE: u32 = 20;
const FAILED: Duration = Duration::from_secs(1);

const QUEUES: &str = "
    SELECT jsonb_build_object(
        'now', extract(epoch FROM clock_timestamp())::float8, 'role', current_user, 'database', current_database(),
        'version', current_setting('server_version'), 'standby', pg_is_in_recovery(), 'queues', coalesce((
            SELECT jsonb_agg(to_jsonb(s) - 'oldest_due_age'
                             || jsonb_build_object('oldest_due', extract(epoch FROM s.oldest_due_age)::float8,
                                                   'counted_at', extract(epoch FROM s.counted_at)::float8)
                             ORDER BY s.queue)
            FROM (SELECT * FROM queue.stats AS s ORDER BY s.queue LIMIT 2000) AS s), '[]'))";
const WORKERS: &str = "
    SELECT coalesce(jsonb_agg(jsonb_build_object(
        'worker', w.worker, 'queue', w.queue, 'running', w.running, 'overdue', w.overdue, 'waiting', w.waiting,
        'since', extract(epoch FROM w.working_since)::float8, 'counted_at', extract(epoch FROM w.counted_at)::float8,
        'lease', extract(epoch FROM w.next_lease_until)::float8) ORDER BY w.worker, w.queue), '[]')
    FROM (SELECT * FROM queue.workers AS w ORDER BY w.worker, w.queue LIMIT 1000) AS w";
const HEALTH: &str = "SELECT coalesce(jsonb_agg(to_jsonb(h)), '[]') FROM queue.health() AS h";
const SCHEDULES: &str = "
    SELECT coalesce(jsonb_agg(jsonb_build_object(
        'name', s.name, 'cron', s.cron, 'timezone', s.timezone, 'queue', s.queue, 'missed_runs', s.missed_runs,
        'next', extract(epoch FROM s.next_run_at)::float8, 'last', extract(epoch FROM s.last_run_at)::float8,
        'paused', extract(epoch FROM s.paused_at)::float8, 'error', left(s.last_error, 2000),
        'error_at', extract(epoch FROM s.last_error_at)::float8,
        'runs', CASE WHEN s.last_error IS NULL THEN
            (SELECT jsonb_agg(extract(epoch FROM p.run)::float8)
             FROM queue.schedule_preview(s.cron, s.timezone, 4) AS p (run)) END) ORDER BY s.name), '[]')
    FROM (SELECT * FROM queue.schedules AS s ORDER BY s.name LIMIT 500) AS s";

struct Part {
    name: &'static str,
    query: &'static str,
    every: Duration,
    state: RefCell<State>,
    asked: Notify,
}

impl Part {
    fn untried(&self) -> bool {
        let state = self.state.borrow();
        state.value.is_none() && state.trouble.is_none()
    }
}

#[derive(Default)]
struct State {
    /// The last data, and its time in seconds since 1970.
    value: Option<(Value, f64)>,
    /// The current error, and since when.
    trouble: Option<(Problem, f64)>,
}

pub struct Watch {
    database: Rc<Database>,
    parts: [Part; 4],
    /// When this process started to serve: another process has another key.
    started: f64,
    looked: Cell<Option<Instant>>,
    answered: Notify,
    curves: RefCell<VecDeque<Sample>>,
}

/// The due tasks of each queue, and the completions per second.
struct Sample {
    step: u64,
    queues: Map<String, Value>,
}

impl Watch {
    /// Starts the queries, for as long as the process runs.
    pub fn start(database: Rc<Database>) -> Rc<Self> {
        let part = |name, query, seconds| Part {
            name,
            query,
            every: Duration::from_secs(seconds),
            state: RefCell::default(),
            asked: Notify::new(),
        };
        let parts = [
            part("queues", QUEUES, 2),
            part("workers", WORKERS, 4),
            part("schedules", SCHEDULES, 5),
            part("health", HEALTH, 5),
        ];
        let (looked, answered, curves) = (Cell::new(None), Notify::new(), RefCell::default());
        let watch = Rc::new(Self { database, parts, started: epoch(), looked, answered, curves });
        for index in 0..watch.parts.len() {
            let watch = Rc::clone(&watch);
            tokio::task::spawn_local(async move { watch.follow(&watch.parts[index]).await });
        }
        watch
    }

    pub fn started(&self) -> f64 {
        self.started
    }

    /// The last data of all parts.
    pub async fn look(&self) -> Value {
        let unwatched = self.looked.replace(Some(Instant::now())).is_none_or(|at| at.elapsed() > WATCHED_FOR);
        if unwatched {
            self.parts.iter().for_each(|part| part.asked.notify_one());
        }
        let first = async {
            while self.parts.iter().any(Part::untried) {
                self.answered.notified().await
            }
        };
        let _ = tokio::time::timeout(FIRST, first).await;
        let mut all = Map::new();
        for part in &self.parts {
            let state = part.state.borrow();
            let (value, at) =
                state.value.as_ref().map_or((&Value::Null, None), |(value, at)| (value, Some(at)));
            let trouble = state
                .trouble
                .as_ref()
                .map(|(problem, since)| json!({"problem": problem.json(), "since": since}));
            all.insert(part.name.to_owned(), json!({"value": value, "at": at, "trouble": trouble}));
        }
        all.insert("curves".to_owned(), self.curves());
        all.insert("clock".to_owned(), json!(epoch()));
        all.insert("process".to_owned(), json!(self.started));
        Value::Object(all)
    }

    /// Queries the parts again that an action may have changed.
    pub async fn look_again(&self) {
        for part in &self.parts {
            match part.name {
                "queues" | "schedules" => drop(self.ask(part).await),
                _ => part.asked.notify_one(),
            }
        }
    }

    async fn follow(&self, part: &Part) {
        loop {
            let cost = self.ask(part).await;
            let watched = self.looked.get().is_some_and(|at| at.elapsed() < WATCHED_FOR);
            let pause = if watched { part.every } else { UNWATCHED }.max(cost * SHARE);
            let _ = tokio::time::timeout(pause, part.asked.notified()).await;
        }
    }

    /// Returns how long the server worked. A failed try counts little, so that the end of an outage is noticed soon.
    async fn ask(&self, part: &Part) -> Duration {
        let (took, answer) = self.database.timed(part.query, &[]).await;
        let cost = if answer.is_ok() { took } else { took.min(FAILED) };
        if part.name == "queues"
            && let Ok(value) = &answer
        {
            self.remember(value);
        }
        let mut state = part.state.borrow_mut();
        match answer {
            Ok(value) => *state = State { value: Some((value, epoch())), trouble: None },
            Err(problem) => {
                let since = state.trouble.as_ref().map_or_else(epoch, |(_, since)| *since);
                state.trouble = Some((problem, since));
            }
        }
        self.answered.notify_waiters();
        cost
    }

    fn remember(&self, seen: &Value) {
        let step = epoch() as u64 / STEP;
        let queues = seen["queues"].as_array().into_iter().flatten();
        let queues = queues
            .take(CURVES)
            .filter_map(|queue| {
                Some((
                    queue["queue"].as_str()?.to_owned(),
                    json!([queue["queued"], queue["completed_per_second"]]),
                ))
            })
            .collect();
        let mut curves = self.curves.borrow_mut();
        if curves.back().is_some_and(|last| last.step == step) {
            curves.pop_back();
        }
        curves.push_back(Sample { step, queues });
        while curves.front().is_some_and(|first| first.step + (STEPS as u64) <= step) {
            curves.pop_front();
        }
    }

    /// For each queue the points of its two curves; null if there was no data.
    fn curves(&self) -> Value {
        let curves = self.curves.borrow();
        let Some(last) = curves.back() else { return json!({"step": STEP, "queues": {}}) };
        let mut queues = Map::new();
        for name in last.queues.keys() {
            let mut points = vec![Value::Null; STEPS];
            for sample in curves.iter() {
                let ago = (last.step - sample.step) as usize;
                points[STEPS - 1 - ago] = sample.queues.get(name).cloned().unwrap_or_default();
            }
            queues.insert(name.clone(), Value::Array(points));
        }
        json!({"step": STEP, "end": last.step * STEP, "queues": queues})
    }
}

fn epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
