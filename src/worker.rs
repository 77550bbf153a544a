//! The background worker: one process for each database that has the extension.
//!
//! It requeues tasks whose lease has expired, ends tasks that were not started in time, runs schedules, notifies listeners,
//! creates and drops the partitions of the history, and starts the processes that run handlers. Correctness does not
//! depend on it: claims end expired leases themselves, and `CALL queue.maintain()` does the other steps, except for
//! handlers, which only run while it does.
//!
//! Each round reads what sessions announced in shared memory, runs the steps that are due in short transactions, and
//! sleeps until the next step is due. A sweep finds changes that no session announced. A step processes one batch, or
//! reads one piece of a table, and waits for locks only briefly, so that no step delays the others for long. Due
//! schedules run before every other step. If a step fails, the worker logs a WARNING and repeats the step after a pause
//! that grows.

mod core;
mod deadlines;
mod events;
mod handlers;
mod history;
mod installed;
mod lanes;
mod leases;
mod listeners;
mod owner;
mod pause;
mod schedules;

use crate::clock::now;
use crate::extension::{self, Installed};
use crate::guard;
use crate::process;
use crate::settings;
use crate::shared::{self, AT_ONCE, Database, NEVER, QueueBits, Shared};
use pgrx::prelude::*;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use core::{first_ready, is_leased};
use deadlines::Deadlines;
use handlers::Processes;
use installed::Step;
use leases::LeaseScan;
pub use owner::as_owner;
use pause::Pause;
use schedules::Schedules;

/// The largest number of tasks that one transaction of the worker changes.
const BATCH: i32 = 1000;
/// How often to scan for expired leases that no session announced.
const LEASE_SCAN_EVERY: i64 = 60_000_000;
/// How often to create partitions and to apply retention.
const HISTORY_EVERY: i64 = 60_000_000;

/// The worker's main function; the argument is the database's OID.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn worker_main(argument: pg_sys::Datum) {
    let oid = pg_sys::Oid::from(argument.value() as u32);
    process::start(oid);
    let Some(shared) = shared::get() else { return };
    let Some(database) = shared.database(oid) else { return };
    if !database.worker.try_enter() {
        // The worker of an earlier launcher is still running.
        return;
    }
    // SAFETY: the function only touches atomics in shared memory, which outlives the process.
    unsafe { pg_sys::before_shmem_exit(Some(leave), argument) };
    core::prepare_session();
    guard::always();
    Worker::new(shared, database).run();
}

/// An exit callback, which also runs after an ERROR.
#[pg_guard]
unsafe extern "C-unwind" fn leave(_code: i32, argument: pg_sys::Datum) {
    let oid = pg_sys::Oid::from(argument.value() as u32);
    if let Some(database) = shared::get().and_then(|shared| shared.database(oid)) {
        database.worker.leave();
    }
    // The processes of handlers exit with their worker, and the next worker starts its own.
    shared::get().into_iter().for_each(|shared| shared.handlers.wake(oid));
}

fn microseconds(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(NEVER)
}

struct Worker {
    shared: &'static Shared,
    database: &'static Database,
    /// The launcher that started this worker. The worker exits after its launcher, because the next launcher starts its
    /// own workers.
    launcher_pid: i32,
    /// When the next lane needs maintenance.
    next_lane: i64,
    /// The lane with which the next round starts.
    lane_from: usize,
    /// The earliest expiry among the leases that the last scan read.
    next_lease: i64,
    /// The state of the current scan for expired leases; none between two scans.
    lease_scan: Option<LeaseScan>,
    /// The earliest start of the next scan, which bounds the share of time that scans take.
    lease_scan_from: i64,
    /// How long a scan takes, in microseconds.
    lease_scan_cost: i64,
    /// The latest start of the next scan.
    lease_scan_by: i64,
    deadlines: Deadlines,
    /// The earliest run_at beyond `due_until`.
    next_run: i64,
    /// Listeners have been notified of all tasks that became due up to this time.
    due_until: i64,
    schedules: Schedules,
    /// When all queues were last checked.
    swept_at: i64,
    /// When to create partitions next.
    next_partitions: i64,
    /// When to apply retention next, even if no partition can be created.
    next_retention: i64,
    /// Whether there is no partition yet because there has been no task.
    awaits_first_task: bool,
    /// The parts of retention that may have more rows to delete now.
    to_retire: Vec<fn(i32) -> bool>,
    /// Whether there may be more events to process now.
    more_events: bool,
    /// Whether a turn of the sweep for lost events has begun and not ended.
    sweeping: bool,
    /// The position of that sweep; none if everything has been checked.
    sweep_position: Option<Vec<u8>>,
    /// When its last turn began; AT_ONCE if the next one need not wait for `sweep_interval`.
    turn_began: i64,
    /// The earliest start of its next turn, which bounds the share of time that it takes.
    rests_until: i64,
    /// How long this turn has taken so far.
    swept_for: Duration,
    /// The queues to notify, and the earliest time to do so.
    to_notify: BTreeSet<Vec<u8>>,
    notify_from: i64,
    handlers: Processes,
    /// The pause of each step.
    pauses: [Pause; STEPS.len()],
}

/// A step of a round.
type StepOf = fn(&mut Worker, &QueueBits) -> Installed;

/// The steps of a round, in their order.
const STEPS: [StepOf; 12] = [
    Worker::raise_tokens,
    Worker::maintain_lanes,
    Worker::reap,
    Worker::expire_unstarted,
    Worker::run_schedules,
    Worker::find_lost_events,
    Worker::process_events,
    Worker::find_due_queues,
    Worker::notify,
    Worker::keep_history,
    Worker::retire,
    Worker::run_handlers,
];
const RAISE_TOKENS: usize = 0;
const MAINTAIN_LANES: usize = 1;
const REAP: usize = 2;
const EXPIRE_UNSTARTED: usize = 3;
const RUN_SCHEDULES: usize = 4;
const FIND_LOST_EVENTS: usize = 5;
const PROCESS_EVENTS: usize = 6;
const FIND_DUE_QUEUES: usize = 7;
const NOTIFY: usize = 8;
const KEEP_HISTORY: usize = 9;
const RETIRE: usize = 10;
const RUN_HANDLERS: usize = 11;

impl Worker {
    fn new(shared: &'static Shared, database: &'static Database) -> Self {
        Self {
            shared,
            database,
            launcher_pid: shared.launcher.pid(),
            next_lane: NEVER,
            lane_from: 0,
            next_lease: NEVER,
            lease_scan: None,
            lease_scan_from: AT_ONCE,
            lease_scan_cost: 0,
            lease_scan_by: AT_ONCE,
            deadlines: Deadlines::new(),
            next_run: NEVER,
            due_until: now(),
            schedules: Schedules::new(),
            swept_at: i64::MIN,
            next_partitions: AT_ONCE,
            next_retention: AT_ONCE,
            awaits_first_task: false,
            to_retire: Vec::new(),
            more_events: false,
            sweeping: false,
            sweep_position: None,
            turn_began: AT_ONCE,
            rests_until: AT_ONCE,
            swept_for: Duration::ZERO,
            to_notify: BTreeSet::new(),
            notify_from: AT_ONCE,
            handlers: Processes::new(),
            pauses: [Pause::NONE; STEPS.len()],
        }
    }

    fn run(mut self) {
        installed::attempt(c"comparing versions", true, core::compare_versions);
        while self.may_stay() {
            if self.clock_went_back(now()) {
                // The clock was set back, and the times at which this worker planned its steps may be years ahead.
                // The processes that it has started stay.
                let handlers = std::mem::replace(&mut self.handlers, Processes::new());
                self = Self { handlers, ..Self::new(self.shared, self.database) };
                self.handlers.replan();
            }
            let pause = match self.round() {
                Installed::Yes | Installed::Failed => {
                    self.database.counters.rounds.fetch_add(1, Ordering::Relaxed);
                    self.until_next()
                }
                Installed::Locked => {
                    // It is there, as the launcher has to know: the lock may be held for long.
                    self.database.counters.rounds.fetch_add(1, Ordering::Relaxed);
                    extension::RETRY_LOCKED
                }
                Installed::No => {
                    self.database.absent.store(true, Ordering::SeqCst);
                    return;
                }
            };
            process::report(None);
            process::sleep(process::Sleep::Main, pause);
            self.database.worker.sleep_until(0);
            process::reload_settings();
        }
    }

    /// Whether the clock shows an earlier time than at a previous step.
    fn clock_went_back(&self, moment: i64) -> bool {
        let notified = self.notify_from.saturating_sub(microseconds(settings::notify_interval()));
        let done = [
            self.swept_at,
            self.turn_began,
            self.deadlines.read_until(),
            self.due_until,
            notified,
            self.lease_scan_by - LEASE_SCAN_EVERY,
            self.next_partitions - HISTORY_EVERY,
        ];
        done.into_iter().any(|time| time > moment)
    }

    fn may_stay(&self) -> bool {
        settings::worker_enabled()
            && self.shared.launcher.pid() == self.launcher_pid
            && self.database.kept_out(now()) == 0
    }

    /// Runs the steps that are due.
    fn round(&mut self) -> Installed {
        // At most once in notify_interval: under load there are always new tasks.
        let takes_pushed = now() >= self.notify_from;
        let pushed = if takes_pushed { self.database.pushed.take() } else { QueueBits::default() };
        // Sessions announce the next run of a schedule like a scheduled task. Read before any snapshot is taken, and
        // kept, because not every round searches for the next ones.
        let announced = self.database.next_run.take();
        self.next_run = self.next_run.min(announced);
        self.schedules.announce(announced);
        for index in 0..STEPS.len() {
            self.wake_due();
            let mut installed = Installed::Yes;
            if self.schedules_run_first() {
                installed = self.take(RUN_SCHEDULES, &pushed);
            }
            if installed == Installed::Yes {
                installed = self.take(index, &pushed);
            }
            if installed != Installed::Yes {
                // The announcements were not processed: put them back.
                self.database.pushed.insert(&pushed);
                return installed;
            }
        }
        Installed::Yes
    }

    /// Runs a step, unless it is paused. A failed step does not affect the others.
    fn take(&mut self, index: usize, pushed: &QueueBits) -> Installed {
        if self.pauses[index].until > now() {
            return Installed::Yes;
        }
        match STEPS[index](self, pushed) {
            Installed::Yes => self.pauses[index] = Pause::NONE,
            Installed::Failed => {
                self.pauses[index].failed(now());
                // A sweep finds what sessions announced and this step has not processed.
                self.swept_at = i64::MIN;
            }
            otherwise => return otherwise,
        }
        Installed::Yes
    }

    fn attempt<R>(&self, step: usize, activity: &CStr, body: impl FnOnce() -> R) -> Step<R> {
        installed::attempt(activity, self.pauses[step].is_logged(), body)
    }

    /// Stores an upper bound of tokens and publishes it, so that claims can commit asynchronously.
    fn raise_tokens(&mut self, _pushed: &QueueBits) -> Installed {
        if !self.database.tokens.wanted() {
            return Installed::Yes;
        }
        let step = self.attempt(RAISE_TOKENS, c"raising the token mark", core::raise_tokens);
        // The transaction has committed, so the mark is on disk.
        if let Some(Some(raised)) = step.result {
            self.database.tokens.publish(raised.mark, raised.base);
        }
        step.installed
    }

    /// How long to sleep. An announcement from now on wakes the worker.
    fn until_next(&self) -> Duration {
        self.database.worker.sleep_until(self.next_time());
        // Computed again: a session may have announced something before it could see when the worker wakes.
        let next = self.next_time();
        // Rounded up to milliseconds, or the worker would wake just before that time.
        let pause = Duration::from_micros((next - now()).max(0).unsigned_abs().saturating_add(999));
        // A bound, because the clock may have been set back since the round started.
        pause.min(settings::sweep_interval())
    }

    /// Computed at each use, so that a changed setting applies at once.
    fn next_sweep(&self) -> i64 {
        self.swept_at.saturating_add(microseconds(settings::sweep_interval()))
    }

    /// When the next turn of the sweep for lost events begins; computed at each use, too.
    fn next_turn(&self) -> i64 {
        self.turn_began.saturating_add(microseconds(settings::sweep_interval())).max(self.rests_until)
    }

    fn next_time(&self) -> i64 {
        let more = |there_is_more| if there_is_more { AT_ONCE } else { NEVER };
        let run = self.next_run.min(self.database.next_run.get());
        let notify = if self.to_notify.is_empty() && self.database.pushed.is_empty() {
            NEVER
        } else {
            self.notify_from
        };
        let mut times = [NEVER; STEPS.len()];
        times[MAINTAIN_LANES] = self.next_lane.min(self.database.next_lane.get());
        times[REAP] = self.lease_scan_due();
        times[EXPIRE_UNSTARTED] = self.next_deadline();
        times[RUN_SCHEDULES] = self.schedules.due().min(self.database.next_run.get());
        times[FIND_LOST_EVENTS] = more(self.sweeping).min(self.next_turn());
        times[PROCESS_EVENTS] = more(self.more_events);
        times[FIND_DUE_QUEUES] = run.max(self.notify_from).min(self.next_sweep());
        times[NOTIFY] = notify;
        times[KEEP_HISTORY] = self.next_partitions;
        times[RETIRE] = more(!self.to_retire.is_empty());
        let announced = self.database.handlers_changed.load(Ordering::SeqCst);
        times[RUN_HANDLERS] = if announced { AT_ONCE } else { self.handlers.due() };
        // A step that failed waits for the end of its pause.
        let due = times.iter().zip(&self.pauses).map(|(time, pause)| (*time).max(pause.until));
        due.fold(NEVER, i64::min)
    }
}
