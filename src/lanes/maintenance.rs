//! Maintenance of the lanes: tasks that become due, leases that expire, and refills that the worker has to run.

use super::directory::{hashes, locked};
use super::leases::Lease;
use super::slot::NAME;
use super::{IDLE, NEVER, Queue, Slot, Wake};
use crate::clock::now;
use pgrx::prelude::*;

/// How many expired leases of a lane the worker ends before it continues with the next lane.
const EXPIRED_AT_ONCE: usize = 64;

/// What the worker has to do for a lane.
pub struct Maintenance {
    lane: u64,
    ids: [i64; EXPIRED_AT_ONCE],
    expired: usize,
    wake: Option<Wake>,
    next: i64,
    reread: Option<([u8; NAME], usize)>,
    relation: u32,
}

impl Maintenance {
    /// The hash of the lane's queue.
    pub fn lane(&self) -> u64 {
        self.lane
    }

    /// The tasks whose lease has expired.
    pub fn expired(&self) -> &[i64] {
        &self.ids[..self.expired]
    }

    /// Returns the leases to the lane, because the worker could not end them. A claim that finds no other task will.
    pub fn hand_back(&self) {
        let until = now();
        super::with(self.lane, |slot| {
            self.expired().iter().for_each(|&id| slot.lane.leases.take_back(Lease { id, until }));
        });
    }

    /// When the next maintenance is due.
    pub fn next(&self) -> i64 {
        if self.expired == EXPIRED_AT_ONCE { 0 } else { self.next }
    }

    /// The queue that has to be read again. The worker registers with the lane, because claims may wait until it has
    /// finished.
    pub fn reread(&self) -> Option<Queue<'_>> {
        let (name, length) = self.reread.as_ref()?;
        Some(Queue::new(self.relation.into(), &name[..*length]))
    }
}

/// Maintains the lanes of this database, starting with the lane number `from`, and passes the rest of the work to
/// `act`, until that returns false. Returns the number of the lane at which to continue then.
pub fn maintain(
    from: usize,
    now: i64,
    sweep_interval: i64,
    mut act: impl FnMut(Maintenance) -> bool,
) -> Option<usize> {
    // SAFETY: a plain read of a constant of the process.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    let count = hashes().len();
    for index in (0..count).map(|step| (from + step) % count) {
        let left = locked(index, |slot| {
            (slot.hash != 0 && slot.database == database).then(|| slot.maintain(now, sweep_interval))
        });
        if let Some(mut left) = left {
            left.wake.take().into_iter().for_each(Wake::now);
            if !act(left) {
                return Some((index + 1) % count);
            }
        }
    }
    None
}

/// Wakes the sessions that wait for a task that has just become due, in all lanes of this database. This takes
/// microseconds, so it is done between the steps of the worker.
pub fn wake_due(now: i64) {
    super::all(|slot| if slot.lane.move_due(now) > 0 { slot.wake_in_turn() } else { None });
}

impl Slot {
    /// Maintains the lane; returns what the worker has to do.
    fn maintain(&mut self, now: i64, sweep_interval: i64) -> Maintenance {
        let mut ids = [0; EXPIRED_AT_ONCE];
        let expired = self.lane.leases.take_expired(now, &mut ids);
        self.activity.expired += expired as u64;
        let unknown =
            self.lane.leases.unknown() <= now || !self.waiters.is_empty() && self.lane.scheduled_unknown(now);
        let in_use = !self.waiters.is_empty() || now - self.used_at < IDLE;
        let sweep = in_use && now >= self.lane.next_reading(sweep_interval, now);
        let reread = (unknown || sweep) && self.lane.refiller() == 0;
        let due = self.lane.move_due(now);
        let wake = if due > 0 || self.lane.ready_count() > 0 { self.wake_in_turn() } else { None };
        // A refill records its end itself, and is not repeated at once if it fails.
        let next = if in_use { self.lane.next_reading(sweep_interval, now) } else { NEVER };
        let next = next.min(self.next_time()).max(if reread { now + 100_000 } else { now + 1000 });
        let reread = reread.then_some((self.name, self.name_length));
        Maintenance { lane: self.hash, ids, expired, wake, next, reread, relation: self.relation }
    }
}
