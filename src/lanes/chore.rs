//! What is due in a lane by itself, and what of that the worker has to do.

use super::directory::{hashes, locked};
use super::leases::Lease;
use super::{IDLE, NAME, Queue, Slot, Wake};
use crate::clock::now;
use pgrx::prelude::*;

/// How many leases of a lane the worker ends before it looks at the next lane.
const CHORE: usize = 64;

/// What the worker has to do for a lane.
pub struct Chore {
    lane: u64,
    ids: [i64; CHORE],
    expired: usize,
    wake: Option<Wake>,
    next: i64,
    reread: Option<([u8; NAME], usize)>,
    relation: u32,
}

impl Chore {
    /// The hash of the lane's queue.
    pub fn lane(&self) -> u64 {
        self.lane
    }

    /// The tasks whose lease ran out.
    pub fn expired(&self) -> &[i64] {
        &self.ids[..self.expired]
    }

    /// Hands the leases back to the lane, since nobody could end them. A claim that finds nothing else does.
    pub fn hand_back(&self) {
        let until = now();
        super::with(self.lane, |slot| {
            self.expired().iter().for_each(|&id| slot.lane.leases.take_back(Lease { id, until }));
        });
    }

    /// When there is more to do, after this.
    pub fn next(&self) -> i64 {
        if self.expired == CHORE { 0 } else { self.next }
    }

    /// The queue that has to be read anew. That is begun where it is done: until it ends, claims may wait for it.
    pub fn reread(&self) -> Option<Queue<'_>> {
        let (name, length) = self.reread.as_ref()?;
        Some(Queue::new(self.relation.into(), &name[..*length]))
    }
}

/// Does what is due in the lanes of this database, from the one with the number `from` on; what is left for the worker
/// it gets one by one, until it says that this is enough. Returns the number of the lane at which to go on then.
pub fn tend(from: usize, now: i64, sweep_interval: i64, mut act: impl FnMut(Chore) -> bool) -> Option<usize> {
    // SAFETY: a plain read of a constant of the process.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    let count = hashes().len();
    for index in (0..count).map(|step| (from + step) % count) {
        let chore = locked(index, |slot| {
            (slot.hash != 0 && slot.database == database).then(|| slot.tend(now, sweep_interval))
        });
        if let Some(mut chore) = chore {
            chore.wake.take().into_iter().for_each(Wake::now);
            if !act(chore) {
                return Some((index + 1) % count);
            }
        }
    }
    None
}

/// Wakes those who wait for a task that has just come due, in all lanes of this database: a moment's work, which must not wait
/// for what else the worker does.
pub fn wake_due(now: i64) {
    super::all(|slot| if slot.lane.let_in(now) > 0 { slot.wake_in_turn() } else { None });
}

impl Slot {
    /// Does what is due by itself; returns what the worker has to do.
    fn tend(&mut self, now: i64, sweep_interval: i64) -> Chore {
        let mut ids = [0; CHORE];
        let expired = self.lane.leases.take_expired(now, &mut ids);
        self.counters.expired += expired as u64;
        let unknown =
            self.lane.leases.unknown() <= now || !self.waiters.is_empty() && self.lane.timed_unknown(now);
        let in_use = !self.waiters.is_empty() || now - self.used_at < IDLE;
        let sweep = in_use && now >= self.lane.next_reading(sweep_interval, now);
        let reread = (unknown || sweep) && self.lane.refiller() == 0;
        self.lane.let_in(now);
        let wake = if self.lane.line_length() > 0 { self.wake_in_turn() } else { None };
        // A reading tells of itself, and is not to be repeated at once if it fails.
        let next = self.next_time().max(if reread { now + 100_000 } else { now + 1000 });
        let next = if in_use { next.min(self.lane.next_reading(sweep_interval, now)) } else { next };
        let reread = reread.then_some((self.name, self.name_length));
        Chore { lane: self.hash, ids, expired, wake, next, reread, relation: self.relation }
    }
}
