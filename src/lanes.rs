//! Lanes: a cache in shared memory of the next tasks of each queue.
//!
//! The server has `queue.lanes` of them. A queue is assigned a lane when a session first claims from it or waits for
//! it. If there are more queues than lanes, lanes are shared fairly ([`shares`]), and claims from queues without a lane
//! fall back to SQL. Each lane has a lock, which is held for a few memory operations and never while anything can fail.

mod assignment;
mod counters;
mod directory;
mod key;
mod lane;
mod leases;
mod maintenance;
mod ordered;
mod prepared;
pub mod refill_plan;
mod set;
mod shares;
mod slot;
mod two_phase;
mod waiters;

pub use assignment::Queue;
pub use counters::{Counts, Horizon, Item, Totals};
pub use directory::{announce_refill, available, await_refill, request, stamp, with};
pub use key::Key;
pub use lane::Answer;
pub use leases::Lease;
pub use maintenance::{maintain, wake_due};
pub use prepared::hash_of_name;
pub use refill_plan::RefillPlan;
pub use set::LaneSet;
pub use slot::{Activity, Slot};
pub use two_phase::{end_prepared, find_prepared, note_prepared};
pub use waiters::Wake;

use crate::clock::now;
use crate::shared::NEVER;
use assignment::take_lane;
use directory::{hashes, locked};
use pgrx::prelude::*;
use std::sync::atomic::Ordering;

/// A lane that was not used for so long, in microseconds, can be assigned to another queue.
const IDLE: i64 = 60_000_000;

/// As [`with`], but assigns a lane if the queue has none; none if all are in use.
pub fn with_or_new<R>(queue: &Queue<'_>, act: impl FnOnce(&mut Slot) -> R) -> Option<R> {
    let mut act = Some(act);
    let mut visit = |slot: &mut Slot| {
        slot.is_of(queue).then(|| {
            slot.used_at = now();
            act.take().map(|act| act(slot))
        })
    };
    match with(queue.hash, &mut visit) {
        Some(result) => result.flatten(),
        None => with(take_lane(queue, true)?, visit).flatten().flatten(),
    }
}

/// As `with`, but assigns a free lane if the queue has none; none if no lane is free.
pub fn with_or_free<R>(queue: &Queue<'_>, act: impl Fn(&mut Slot) -> R) -> Option<R> {
    let visit = |slot: &mut Slot| slot.is_of(queue).then(|| act(slot));
    match with(queue.hash, visit) {
        Some(result) => result,
        None => with(take_lane(queue, false)?, visit).flatten(),
    }
}

/// The results of `act` for each lane of this database, with the name of its queue.
pub fn each<R>(act: impl Fn(&Slot) -> R) -> Vec<(Vec<u8>, R)> {
    // SAFETY: a plain read of a constant of the process.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    let look = |index| {
        let found = locked(index, |slot| {
            (slot.hash != 0 && slot.database == database).then(|| (slot.name, slot.name_length, act(slot)))
        });
        found.map(|(name, length, result)| (name[..length].to_vec(), result))
    };
    (0..hashes().len()).filter_map(look).collect()
}

/// Invalidates these lanes of this database, after changes of their queues that were not published.
#[pg_guard]
pub extern "C-unwind" fn invalidate(lanes: &LaneSet) {
    visit(lanes, |slot| {
        slot.lane.invalidate();
        slot.events = stamp();
        slot.wake_in_turn()
    });
}

/// Drops the candidates of these lanes of this database, which were read from a table that has been rolled back.
pub fn forget_refills(lanes: &LaneSet) {
    visit(lanes, |slot| {
        slot.lane.invalidate();
        slot.wake_in_turn()
    });
}

/// There may be events to process in the queues of these lanes of this database.
pub fn note_events(lanes: &LaneSet) {
    visit(lanes, |slot| {
        slot.events = stamp();
        slot.wake_in_turn()
    });
}

/// Runs `act` with each lane of this database, locked, and wakes the process that it returns.
fn all(act: impl Fn(&mut Slot) -> Option<Wake>) {
    visit(&LaneSet::ALL, act);
}

/// The same, with those of the lanes that are in the set.
fn visit(lanes: &LaneSet, act: impl Fn(&mut Slot) -> Option<Wake>) {
    if lanes.is_empty() {
        return;
    }
    // SAFETY: a plain read of a constant of the process.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    for (index, hash) in hashes().iter().enumerate() {
        // A lane that gets its hash only after this is still empty.
        if !lanes.contains(hash.load(Ordering::Acquire)) {
            continue;
        }
        let ours = |slot: &mut Slot| slot.hash != 0 && slot.database == database;
        let wake = locked(index, |slot| if ours(slot) { act(slot) } else { None });
        wake.into_iter().for_each(Wake::now);
    }
}

/// Invalidates the counters of these lanes of this database, after changes of their queues that were not counted.
#[pg_guard]
pub extern "C-unwind" fn invalidate_counters(lanes: &LaneSet) {
    visit(lanes, |slot| {
        slot.counters.invalidate();
        None
    });
}

/// This process stops counting.
pub fn stop_counting() {
    // SAFETY: a plain read of a constant of the process.
    let me = unsafe { pg_sys::MyProcPid };
    all(|slot| {
        slot.counters.give_up(me);
        None
    });
}

/// Frees the lanes of a database that was dropped.
pub fn forget(database: pg_sys::Oid) {
    for (index, hash) in hashes().iter().enumerate() {
        locked(index, |slot| {
            if slot.hash != 0 && slot.database == database.to_u32() {
                hash.store(0, Ordering::Release);
                slot.hash = 0;
            }
        });
    }
}
