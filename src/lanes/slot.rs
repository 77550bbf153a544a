//! A lane in shared memory: the tasks of one queue, their counters, and the sessions that wait for a task.

use super::NEVER;
use super::counters::TaskCounters;
use super::lane::Lane;
use super::waiters::{Waiters, Wake};

/// The longest name of a queue, in bytes.
pub const NAME: usize = 128;

/// A lane with the counters and the waiters of its queue.
#[repr(C)]
pub struct Slot {
    /// The queue's tasks.
    pub lane: Lane,
    /// How many tasks the queue has.
    pub counters: TaskCounters,
    /// The sessions that wait for a task.
    pub waiters: Waiters,
    /// Not 0 if there may be events to process: a number that is never used twice.
    pub events: u64,
    /// A session that finds a task has to wake the next one.
    pub(super) in_turn: bool,
    /// When a waiting session last began to check by itself.
    pub(super) checked_at: i64,
    /// Statistics since the server started.
    pub activity: Activity,
    pub(super) hash: u64,
    pub(super) database: u32,
    pub(super) relation: u32,
    pub(super) name_length: usize,
    pub(super) name: [u8; NAME],
    pub(super) used_at: i64,
}

// As queue.lanes and docs/engine.md document it.
const _: () = assert!(size_of::<Slot>() > 80_000 && size_of::<Slot>() < 86_000);

/// The statistics of a lane, for queue.engine_stats().
#[repr(C)]
#[derive(Clone, Copy, Default, serde::Serialize)]
pub struct Activity {
    /// Tasks that were offered to claims.
    pub offered: u64,
    /// Times that the table was read to refill it.
    pub refills: u64,
    /// Of those, how often from the first task on.
    pub sweeps: u64,
    /// Waiters that were woken.
    pub wakes: u64,
    /// Leases that have expired.
    pub expired: u64,
}

impl Slot {
    /// Removes the process that has waited longest, for one ready task. The caller wakes it after it has released the
    /// lock.
    pub fn wake(&mut self) -> Option<Wake> {
        let next = self.waiters.next();
        self.activity.wakes += u64::from(next.is_some());
        next
    }

    /// The same for an unknown number of tasks: each process that finds one wakes the next.
    pub fn wake_in_turn(&mut self) -> Option<Wake> {
        let next = self.wake();
        // If no process waits, there is no next one: a process that starts to wait later checks the lane itself.
        self.in_turn |= next.is_some();
        next
    }

    /// Until when the calling process, which waits, need not check by itself, because another one has checked within the
    /// interval. If none has, or the caller was woken, it has to check now, for all.
    pub fn checked_until(&mut self, now: i64, interval: i64) -> Option<i64> {
        let until = self.checked_at.saturating_add(interval);
        // The other one may have looked at the clock a moment later. Unless that has been set back.
        if now < until && self.checked_at < now.saturating_add(interval) && self.waiters.has_caller() {
            return Some(until);
        }
        self.checked_at = now;
        None
    }

    /// The calling process has not finished its check for all. Returns the next process, which has to check.
    pub fn has_not_checked(&mut self) -> Option<Wake> {
        self.checked_at = i64::MIN;
        self.wake()
    }

    /// The calling process has found a task for which no process was woken. There may be more.
    pub fn found_unannounced(&mut self) {
        self.in_turn = true;
    }

    /// Removes the calling process from the list. `takes` means that it is going to claim one of the tasks. Returns the
    /// next process if that one has to be woken instead.
    pub fn leave(&mut self, takes: bool) -> Option<Wake> {
        let woken = !self.waiters.leave();
        let left = self.lane.ready_count() > usize::from(takes)
            || !takes && (self.events != 0 || self.lane.is_unread());
        self.in_turn &= left && !self.waiters.is_empty();
        if left && (self.in_turn || woken && !takes) { self.wake() } else { None }
    }

    /// When the next maintenance is due: a lease expires, or a task becomes due for which a session waits.
    pub fn next_time(&self) -> i64 {
        let due = if self.waiters.is_empty() { NEVER } else { self.lane.next_time() };
        due.min(self.lane.leases.next())
    }
}
