//! What the sessions and the background worker of one database share.

use super::NEVER;
use super::queue_set::{QueueBits, QueueSet};
use super::sleeper::Sleeper;
use super::token_base::TokenBase;
use crate::fallback::REASONS;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

/// How long the worker is kept out after it has exited for a command. The command locks the database long before that
/// time has passed, and from then on a new worker waits for that lock.
pub const KEEP_OUT_MICROSECONDS: i64 = 3_000_000;

/// What the sessions of one database announce to its worker, and what it publishes to them. Times are
/// microseconds since 2000-01-01 UTC, as Postgres counts them.
#[derive(Default)]
pub struct Database {
    pub(super) oid: AtomicU32,
    /// The worker's latch, and whether it runs.
    pub worker: Sleeper,
    /// The earliest end of a lease that was granted since the worker last checked, and is in no lane.
    pub next_lease: Earliest,
    /// The earliest time at which maintenance of a lane is due that the worker does not know of.
    pub next_lane: Earliest,
    /// The earliest run_at of a task that was scheduled since the worker last checked.
    pub next_run: Earliest,
    /// The earliest start deadline of a task that was pushed since the worker last checked.
    pub next_deadline: Earliest,
    /// The queues that got a task to claim since the worker last checked.
    pub pushed: QueueSet,
    /// Until when the worker is kept out, because a session runs a command on the whole database.
    pub keep_out_until: AtomicI64,
    /// The worker found that the database does not have the extension.
    pub absent: AtomicBool,
    /// A handler was attached or detached, or a right was granted or revoked.
    pub handlers_changed: AtomicBool,
    /// How many processes of handlers could not be started, for lack of max_worker_processes.
    pub handlers_unstarted: AtomicU32,
    /// For how many queues the processes of the handler keep exiting.
    pub handlers_failing: AtomicU32,
    /// The base of this database's tokens.
    pub tokens: TokenBase,
    /// The counters for queue.engine_stats().
    pub counters: Counters,
}

/// Counters of one database since the server started.
#[derive(Default)]
pub struct Counters {
    /// Rounds of the worker's loop in which it found the extension.
    pub rounds: AtomicU64,
    /// Leases that the worker found expired.
    pub leases_reaped: AtomicU64,
    /// NOTIFYs sent.
    pub notifications: AtomicU64,
    /// Calls that the native fast path served.
    pub served: AtomicU64,
    /// Calls that fell back to SQL, by [`crate::fallback::Reason`].
    pub fallbacks: [AtomicU64; REASONS],
}

impl Counters {
    fn clear(&self) {
        let single = [&self.rounds, &self.leases_reaped, &self.notifications, &self.served];
        single.into_iter().chain(&self.fallbacks).for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
}

impl Database {
    /// Frees the slot. The launcher calls it for a database that was dropped.
    pub fn forget(&self) {
        self.next_lease.take();
        self.next_lane.take();
        self.next_run.take();
        self.next_deadline.take();
        self.pushed.take();
        self.keep_out_until.store(0, Ordering::SeqCst);
        self.handlers_changed.store(false, Ordering::SeqCst);
        self.handlers_unstarted.store(0, Ordering::SeqCst);
        self.handlers_failing.store(0, Ordering::SeqCst);
        self.counters.clear();
        self.tokens.clear();
        self.oid.store(0, Ordering::Release);
    }

    /// For how many microseconds the worker is still kept out.
    pub fn kept_out(&self, moment: i64) -> i64 {
        match self.keep_out_until.load(Ordering::SeqCst) {
            // Later than any session sets it: the clock was set back. Twice, because `moment` may be older than that.
            until if (1..=2 * KEEP_OUT_MICROSECONDS).contains(&(until - moment)) => until - moment,
            _ => 0,
        }
    }

    /// Announces a lease that ends at `time`.
    pub fn lease_until(&self, time: i64) {
        self.next_lease.lower(time);
        self.worker.wake_if_later(time);
    }

    /// Announces that maintenance of a lane is due at `time`.
    pub fn lane_time(&self, time: i64) {
        self.next_lane.lower(time);
        self.worker.wake_if_later(time);
    }

    /// Announces a task that becomes due at `time`.
    pub fn run_at(&self, time: i64) {
        self.next_run.lower(time);
        self.worker.wake_if_later(time);
    }

    /// Announces a task that has to be started by `time`.
    pub fn start_by(&self, time: i64) {
        self.next_deadline.lower(time);
        self.worker.wake_if_later(time);
    }

    /// Announces that handlers were attached or detached.
    pub fn handlers_changed(&self) {
        self.handlers_changed.store(true, Ordering::SeqCst);
        self.worker.wake();
    }

    /// Announces that the queues in `queues` have a task to claim.
    pub fn pushed(&self, queues: &QueueBits) {
        if self.pushed.insert(queues) {
            self.worker.wake();
        }
    }
}

/// The earliest of the times that were announced.
pub struct Earliest(AtomicI64);

impl Default for Earliest {
    fn default() -> Self {
        Self(AtomicI64::new(NEVER))
    }
}

impl Earliest {
    /// Announces a time.
    pub fn lower(&self, time: i64) {
        self.0.fetch_min(time, Ordering::SeqCst);
    }

    /// The earliest time.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    /// The earliest time, which is then forgotten.
    pub fn take(&self) -> i64 {
        self.0.swap(NEVER, Ordering::SeqCst)
    }
}
