//! The worker: one process per database that has the extension. It keeps time.
//!
//! It puts back tasks whose lease ran out, runs the schedules, tells listeners of tasks that can be
//! claimed, and keeps the history in its partitions. Nothing depends on it for correctness: claims
//! take over expired leases by themselves, and `CALL queue.maintain()` does the rest by hand.
//!
//! Each round takes what sessions announced in shared memory, does what is due in short
//! transactions, and sleeps until the next thing is due. What nobody could announce is found by a
//! sweep. No step does more than a batch or reads more than a piece in a round, or waits for a lock for long, so that one
//! thing is in no other's way; and schedules that are due run before any other step. A step that fails is a WARNING, and is tried again after a pause that grows.

mod core;
mod events;
mod history;
mod installed;
mod lanes;
mod leases;
mod listeners;
mod owner;
mod schedules;

use crate::clock::now;
use crate::guard;
use crate::process;
use crate::settings;
use crate::shared::{self, AT_ONCE, Database, NEVER, QueueBits, Shared};
use pgrx::prelude::*;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use installed::{Installed, Step};
use leases::LeaseLook;

/// How many tasks one transaction of the worker touches at most.
const BATCH: i32 = 1000;
/// The longest time without a look for expired leases that no session announced.
const LEASE_SCAN_EVERY: i64 = 60_000_000;
/// How often partitions and retention are looked after.
const UPKEEP_EVERY: i64 = 60_000_000;
/// After a step failed, it is tried again: after this time, which doubles with each failure up to the second.
const FIRST_PAUSE: i64 = 1_000_000;
const LONGEST_PAUSE: i64 = 60_000_000;
/// How soon to look again while somebody else holds the extension locked.
const RETRY_LOCKED: Duration = Duration::from_millis(200);

/// The worker's main function; the argument is the database's OID.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn worker_main(argument: pg_sys::Datum) {
    let oid = pg_sys::Oid::from(argument.value() as u32);
    process::start(oid);
    let Some(shared) = shared::get() else { return };
    let Some(database) = shared.database(oid) else { return };
    if !database.worker.try_enter() {
        // The worker of an earlier launcher has not left yet.
        return;
    }
    // SAFETY: the function only touches atomics in shared memory, which outlives the process.
    unsafe { pg_sys::before_shmem_exit(Some(leave), argument) };
    core::prepare_session();
    guard::always();
    Worker::new(shared, database).run();
}

/// Runs at every exit of the process, also after an ERROR.
#[pg_guard]
unsafe extern "C-unwind" fn leave(_code: i32, argument: pg_sys::Datum) {
    let oid = pg_sys::Oid::from(argument.value() as u32);
    if let Some(database) = shared::get().and_then(|shared| shared.database(oid)) {
        database.worker.leave();
    }
}

fn microseconds(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(NEVER)
}

struct Worker {
    shared: &'static Shared,
    database: &'static Database,
    /// The launcher that started this worker. When it is gone, so must this worker be: the next
    /// launcher starts its own.
    launcher_pid: i32,
    /// When something is to be done in a lane.
    next_lane: i64,
    /// The lane with which the next round begins.
    lane_from: usize,
    /// The earliest expiry among the leases seen by the last look.
    next_lease: i64,
    /// How far the look for expired leases has come, unless it is between two.
    lease_look: Option<LeaseLook>,
    /// Not before this time is the next look for expired leases worth its cost.
    lease_scan_from: i64,
    /// What a look takes, in microseconds.
    lease_scan_cost: i64,
    /// Not after this time is the next look, whatever is known.
    lease_scan_by: i64,
    /// The earliest run_at beyond `due_until`.
    next_run: i64,
    /// Tasks that came due up to here have been told.
    due_until: i64,
    /// When the next schedule is due, as far as this worker knows.
    next_schedule: i64,
    /// When schedules ran last, and the queue behind which the next ones are.
    schedules_ran: Instant,
    schedules_after: Vec<u8>,
    /// When everything was last looked at.
    swept_at: i64,
    next_upkeep: i64,
    /// When to begin to apply retention, even if partitions cannot be made.
    next_retirement: i64,
    /// Whether there was no task yet for which to make partitions.
    history_awaited: bool,
    /// What there may be more of to delete right now.
    to_retire: Vec<fn(i32) -> bool>,
    /// Whether there may be more events to process right now.
    more_events: bool,
    /// Whether a turn of the sweep for lost events has begun, and not ended.
    sweeping: bool,
    /// How far that sweep has come; nothing where everything has been looked at.
    sweep_place: Option<Vec<u8>>,
    /// When its next turn begins.
    next_lost: i64,
    /// How long this turn has taken so far.
    swept_for: Duration,
    /// Queues to notify, and when.
    to_notify: BTreeSet<Vec<u8>>,
    notify_from: i64,
    /// What became of each step lately.
    pauses: [Pause; STEPS.len()],
}

/// A step of a round.
type StepOf = fn(&mut Worker, &QueueBits) -> Installed;

/// The steps of a round, in their order.
const STEPS: [StepOf; 10] = [
    Worker::raise_tokens,
    Worker::maintain_lanes,
    Worker::reap,
    Worker::run_schedules,
    Worker::find_lost_events,
    Worker::process_events,
    Worker::look_for_due,
    Worker::notify,
    Worker::keep_history,
    Worker::retire,
];
const RAISE_TOKENS: usize = 0;
const MAINTAIN_LANES: usize = 1;
const REAP: usize = 2;
const RUN_SCHEDULES: usize = 3;
const FIND_LOST_EVENTS: usize = 4;
const PROCESS_EVENTS: usize = 5;
const LOOK_FOR_DUE: usize = 6;
const NOTIFY: usize = 7;
const KEEP_HISTORY: usize = 8;
const RETIRE: usize = 9;

/// A step that fails is left alone for a while.
#[derive(Clone, Copy)]
struct Pause {
    failures: u32,
    until: i64,
}

impl Pause {
    const NONE: Self = Self { failures: 0, until: AT_ONCE };

    fn failed(&mut self, moment: i64) {
        let longer = FIRST_PAUSE << self.failures.min(10);
        self.failures = self.failures.saturating_add(1);
        self.until = moment + longer.min(LONGEST_PAUSE);
    }

    /// Whether the log is to say so, should it fail again: the first times, then more and more rarely.
    fn is_news(&self) -> bool {
        (self.failures + 1).is_power_of_two()
    }
}

impl Worker {
    fn new(shared: &'static Shared, database: &'static Database) -> Self {
        Self {
            shared,
            database,
            launcher_pid: shared.launcher.pid(),
            next_lane: NEVER,
            lane_from: 0,
            next_lease: NEVER,
            lease_look: None,
            lease_scan_from: AT_ONCE,
            lease_scan_cost: 0,
            lease_scan_by: AT_ONCE,
            next_run: NEVER,
            due_until: now(),
            next_schedule: NEVER,
            schedules_ran: Instant::now(),
            schedules_after: Vec::new(),
            swept_at: i64::MIN,
            next_upkeep: AT_ONCE,
            next_retirement: AT_ONCE,
            history_awaited: false,
            to_retire: Vec::new(),
            more_events: false,
            sweeping: false,
            sweep_place: None,
            next_lost: AT_ONCE,
            swept_for: Duration::ZERO,
            to_notify: BTreeSet::new(),
            notify_from: AT_ONCE,
            pauses: [Pause::NONE; STEPS.len()],
        }
    }

    fn run(mut self) {
        installed::attempt(c"comparing versions", true, core::compare_versions);
        while self.may_stay() {
            if self.is_of_the_future(now()) {
                // The clock was put back, and what this worker had planned may be years ahead.
                self = Self::new(self.shared, self.database);
            }
            let pause = match self.round() {
                Installed::Yes | Installed::Failed => {
                    self.database.counters.rounds.fetch_add(1, Ordering::Relaxed);
                    self.until_next()
                }
                Installed::Locked => RETRY_LOCKED,
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

    /// Whether it has done something at a time that is still to come.
    fn is_of_the_future(&self, moment: i64) -> bool {
        let notified = self.notify_from.saturating_sub(microseconds(settings::notify_interval()));
        let done = [
            self.swept_at,
            self.due_until,
            notified,
            self.lease_scan_by - LEASE_SCAN_EVERY,
            self.next_upkeep - UPKEEP_EVERY,
        ];
        done.into_iter().any(|time| time > moment)
    }

    fn may_stay(&self) -> bool {
        settings::worker_enabled()
            && self.shared.launcher.pid() == self.launcher_pid
            && self.database.kept_out(now()) == 0
    }

    /// Does what is due.
    fn round(&mut self) -> Installed {
        // Not more often than it may be told: under load there is something new at any time.
        let heard = now() >= self.notify_from;
        let pushed = if heard { self.database.pushed.take() } else { QueueBits::default() };
        // Sessions announce a schedule's next run as they do a task for later. Taken before any
        // transaction's snapshot, and kept, because not every round looks for the next ones anew.
        let announced = self.database.next_run.take();
        self.next_run = self.next_run.min(announced);
        self.next_schedule = self.next_schedule.min(announced);
        for index in 0..STEPS.len() {
            self.wake_due();
            let mut installed = Installed::Yes;
            if self.schedules_are_pressing() {
                installed = self.take(RUN_SCHEDULES, &pushed);
            }
            if installed == Installed::Yes {
                installed = self.take(index, &pushed);
            }
            if installed != Installed::Yes {
                // Not done yet: hand back what the sessions said.
                self.database.pushed.insert(&pushed);
                return installed;
            }
        }
        Installed::Yes
    }

    /// Takes a step, unless it failed a short time ago. That it fails is in no other's way.
    fn take(&mut self, index: usize, pushed: &QueueBits) -> Installed {
        if self.pauses[index].until > now() {
            return Installed::Yes;
        }
        match STEPS[index](self, pushed) {
            Installed::Yes => self.pauses[index] = Pause::NONE,
            Installed::Failed => {
                self.pauses[index].failed(now());
                // What sessions announced is looked at in a sweep.
                self.swept_at = i64::MIN;
            }
            otherwise => return otherwise,
        }
        Installed::Yes
    }

    fn attempt<R>(&self, step: usize, activity: &CStr, body: impl FnOnce() -> R) -> Step<R> {
        installed::attempt(activity, self.pauses[step].is_news(), body)
    }

    /// Writes how far tokens may go from now on, and publishes it, so that claims need not be durable.
    fn raise_tokens(&mut self, _pushed: &QueueBits) -> Installed {
        if !self.database.tokens.wanted() {
            return Installed::Yes;
        }
        let step = self.attempt(RAISE_TOKENS, c"raising the mark of tokens", core::raise_tokens);
        // The mark is on disk now, and not before.
        if let Some(Some(raised)) = step.result {
            self.database.tokens.publish(raised.mark, raised.base);
        }
        step.installed
    }

    /// How long nothing is due. What sessions announce from now on wakes the worker.
    fn until_next(&self) -> Duration {
        self.database.worker.sleep_until(self.next_time());
        // Once more: a session may have spoken before it could know when the worker wakes.
        let next = self.next_time();
        // Rounded up to the clock's step, or the worker would wake just before the time.
        let pause = Duration::from_micros((next - now()).max(0).unsigned_abs().saturating_add(999));
        // Sleep is not measured by the clock, which may have been put back since the round began.
        pause.min(settings::sweep_interval())
    }

    /// Computed anew each time, so that a changed setting counts at once.
    fn next_sweep(&self) -> i64 {
        self.swept_at.saturating_add(microseconds(settings::sweep_interval()))
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
        times[RUN_SCHEDULES] = self.next_schedule.min(self.database.next_run.get());
        times[FIND_LOST_EVENTS] = more(self.sweeping).min(self.next_lost);
        times[PROCESS_EVENTS] = more(self.more_events);
        times[LOOK_FOR_DUE] = run.max(self.notify_from).min(self.next_sweep());
        times[NOTIFY] = notify;
        times[KEEP_HISTORY] = self.next_upkeep;
        times[RETIRE] = more(!self.to_retire.is_empty());
        // What failed waits for the end of its pause.
        let due = times.iter().zip(&self.pauses).map(|(time, pause)| (*time).max(pause.until));
        due.fold(NEVER, i64::min)
    }
}
