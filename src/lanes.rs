//! Lanes: shared memory that knows, for each queue, which tasks are next.
//!
//! There are `queue.lanes` of them for the whole server, and a queue takes one when it is first claimed
//! from or waited for. With more queues than lanes, they are shared fairly ([`shares`]), and queues that find none are
//! served by the core. Each lane has a lock, which is held for a few memory operations and never while anything can fail.

mod account;
mod chore;
mod directory;
mod lane;
mod leases;
mod ordered;
pub mod reading;
mod shares;
mod waiters;

pub use account::{Account, Census, Counts, Horizon, Item};
pub use chore::{tend, wake_due};
pub use directory::{announce_refill, available, await_refill, request, stamp};
pub use lane::{Answer, Bounds, Key, Lane};
pub use leases::Lease;

use crate::clock::now;
use crate::shared::{self, NEVER, QueueBits};
use directory::{alone, hashes, locked};
use pgrx::prelude::*;
use shares::Taker;
use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use waiters::Waiters;
pub use waiters::Wake;

/// A lane that nobody used for so long may be given to another queue.
const IDLE: i64 = 60_000_000;
const NAME: usize = 128;

/// Which queue a lane is for. A hash stands for it where there is no room for the name; two queues of
/// one hash cannot both have a lane.
#[derive(Clone, Copy)]
pub struct Queue<'a> {
    hash: u64,
    database: u32,
    relation: u32,
    name: &'a [u8],
}

impl<'a> Queue<'a> {
    /// The queue `name` whose tasks are in the table `tasks` of this database.
    pub fn new(tasks: pg_sys::Oid, name: &'a [u8]) -> Self {
        // SAFETY: a plain read of a constant of the process.
        let (database, relation) = (unsafe { pg_sys::MyDatabaseId }.to_u32(), tasks.to_u32());
        // Without random keys: every process must find the same lane.
        let mut hasher = DefaultHasher::new();
        (database, relation, name).hash(&mut hasher);
        // 0 stands for a free lane.
        Self { hash: hasher.finish().max(1), database, relation, name }
    }

    /// The hash, by which [`with`] finds the lane.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The name.
    pub fn name(&self) -> &'a [u8] {
        self.name
    }
}

/// A lane and what goes with it.
#[repr(C)]
pub struct Slot {
    /// The queue's tasks.
    pub lane: Lane,
    /// How many tasks the queue has.
    pub account: Account,
    /// Who waits for a task.
    pub waiters: Waiters,
    /// Not 0 if there may be events to process: a number that is never used twice.
    pub events: u64,
    /// Whoever finds a task is to wake the next one.
    in_turn: bool,
    /// What happened here since the server started.
    pub counters: Counters,
    hash: u64,
    database: u32,
    relation: u32,
    name_length: usize,
    name: [u8; NAME],
    used_at: i64,
}

// As queue.lanes and docs/engine.md say.
const _: () = assert!(size_of::<Slot>() > 80_000 && size_of::<Slot>() < 86_000);

/// What happened in a lane.
#[repr(C)]
#[derive(Clone, Copy, Default, serde::Serialize)]
pub struct Counters {
    /// Tasks that it offered to claims.
    pub offered: u64,
    /// Times that the table was read to refill it.
    pub refills: u64,
    /// Of those, how often from the first task on.
    pub sweeps: u64,
    /// Waiters that were woken.
    pub wakes: u64,
    /// Leases that ended before their tasks.
    pub expired: u64,
}

/// Runs `act` with the lane of the queue with this hash, if there is one.
pub fn with<R>(hash: u64, act: impl FnOnce(&mut Slot) -> R) -> Option<R> {
    let index = hashes().iter().position(|place| place.load(Ordering::Acquire) == hash)?;
    locked(index, |slot| (slot.hash == hash).then(|| act(slot)))
}

/// The same, with a lane that is taken now if need be; nothing if all are taken.
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

/// The same, with a lane that nobody has if need be; nothing if there is none.
pub fn with_or_free<R>(queue: &Queue<'_>, act: impl Fn(&mut Slot) -> R) -> Option<R> {
    let visit = |slot: &mut Slot| slot.is_of(queue).then(|| act(slot));
    match with(queue.hash, visit) {
        Some(result) => result,
        None => with(take_lane(queue, false)?, visit).flatten(),
    }
}

/// Gives a lane to the queue; returns the hash. One process at a time does so: who is not alone finds
/// the lane of the other, or none.
fn take_lane(queue: &Queue<'_>, idle_too: bool) -> Option<u64> {
    let moment = now();
    // A free one, or one that nobody has used for long, or one of those who have more. Two processes that do this for
    // one queue at the same time meet at the first lane's lock.
    // Who only counts is the first to make room for who claims.
    let used_at = if idle_too { moment } else { moment - IDLE - 1 };
    // What the lane knew of leases, which is the worker's to know from now on; and who waited, and has to look anew.
    let left = Cell::new((0, NEVER));
    let woken = RefCell::new(Vec::new());
    let give = |index: usize, wanted: &dyn Fn(&Slot) -> bool| {
        locked(index, |slot| {
            let wanted = wanted(slot);
            if wanted {
                if slot.hash != 0 {
                    left.set((slot.database, slot.lane.leases.next()));
                    woken.borrow_mut().extend(std::iter::from_fn(|| slot.waiters.next()));
                }
                slot.give_to(queue, moment);
                slot.used_at = used_at;
            }
            wanted
        })
    };
    let give_any = |wanted: &dyn Fn(&Slot) -> bool| (0..hashes().len()).find(|index| give(*index, wanted));
    let idle = |slot: &Slot| idle_too && slot.idle(moment);
    let taker = Taker::current();
    let choose = || {
        give_any(&|slot| slot.hash == 0)
            .or_else(|| give_any(&|slot| idle(slot) && slot.lane.leases.next() == NEVER))
            .or_else(|| give_any(&idle))
            .or_else(|| {
                // What was used least lately goes first.
                let lanes = if idle_too { shares::to_give_up(taker) } else { Vec::new() };
                let used_at = |index: &usize| locked(*index, |slot| slot.used_at);
                let index = lanes.into_iter().min_by_key(used_at)?;
                give(index, &|slot| slot.lane.refiller() == 0).then_some(index)
            })
    };
    let taken = alone(hashes().len(), || {
        if hashes().iter().any(|place| place.load(Ordering::Acquire) == queue.hash) {
            return Some(queue.hash);
        }
        let index = choose()?;
        hashes()[index].store(queue.hash, Ordering::Release);
        taker.note(index);
        Some(queue.hash)
    });
    woken.into_inner().into_iter().for_each(Wake::now);
    let (database, lease) = left.get();
    shared::leases_until(database.into(), lease);
    taken
}

/// What `act` returns of each lane of this database, with its queue's name.
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

/// Something may have happened in any queue of this database that no lane was told of.
#[pg_guard]
pub extern "C-unwind" fn doubt() {
    all(|slot| {
        slot.lane.doubt();
        slot.events = stamp();
        slot.wake_in_turn()
    });
}

/// There may be events to process in these queues of this database.
pub fn note_events(queues: &QueueBits) {
    all(|slot| {
        if !shared::contains(queues, &slot.name[..slot.name_length]) {
            return None;
        }
        slot.events = stamp();
        slot.wake_in_turn()
    });
}

/// Runs `act` with each lane of this database, locked, and wakes whom it says.
fn all(act: impl Fn(&mut Slot) -> Option<Wake>) {
    // SAFETY: a plain read of a constant of the process.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    for index in 0..hashes().len() {
        let ours = |slot: &mut Slot| slot.hash != 0 && slot.database == database;
        let wake = locked(index, |slot| if ours(slot) { act(slot) } else { None });
        wake.into_iter().for_each(Wake::now);
    }
}

/// Something may have changed in the numbers of tasks of any queue of this database that nobody told.
#[pg_guard]
pub extern "C-unwind" fn doubt_accounts() {
    all(|slot| {
        slot.account.doubt();
        None
    });
}

/// This process counts no more.
pub fn stop_counting() {
    // SAFETY: a plain read of a constant of the process.
    let me = unsafe { pg_sys::MyProcPid };
    all(|slot| {
        slot.account.give_up(me);
        None
    });
}

/// Gives back the lanes of a database that is gone.
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

impl Slot {
    /// Takes out the one who has waited longest, for the caller to wake once the lock is let go: for one task
    /// that there is.
    pub fn wake(&mut self) -> Option<Wake> {
        let next = self.waiters.next();
        self.counters.wakes += u64::from(next.is_some());
        next
    }

    /// The same where nobody knows how many tasks there are: each who finds one wakes the next.
    pub fn wake_in_turn(&mut self) -> Option<Wake> {
        let next = self.wake();
        // Where nobody waits there is no next one: whoever comes looks by himself.
        self.in_turn |= next.is_some();
        next
    }

    /// Takes the calling process out of the list. `takes` says whether it will claim one of the tasks. Returns
    /// the next one, if what this process was woken for is left to that one.
    pub fn leave(&mut self, takes: bool) -> Option<Wake> {
        let woken = !self.waiters.leave();
        let left = self.lane.line_length() > usize::from(takes) || !takes && self.events != 0;
        self.in_turn &= left && !self.waiters.is_empty();
        if left && (self.in_turn || woken && !takes) { self.wake() } else { None }
    }

    /// When something is to be done here by itself: ending a lease, or waking those who wait for a task
    /// that comes due.
    pub fn next_time(&self) -> i64 {
        let timed = if self.waiters.is_empty() { NEVER } else { self.lane.next_time() };
        timed.min(self.lane.leases.next())
    }

    fn is_of(&self, queue: &Queue<'_>) -> bool {
        (self.hash, self.database, self.relation) == (queue.hash, queue.database, queue.relation)
            && self.name[..self.name_length] == *queue.name
    }

    fn idle(&self, moment: i64) -> bool {
        moment - self.used_at > IDLE && self.waiters.is_empty() && self.lane.refiller() == 0
    }

    fn give_to(&mut self, queue: &Queue<'_>, moment: i64) {
        let name = queue.name;
        let length = name.len().min(NAME);
        (self.hash, self.database, self.relation) = (queue.hash, queue.database, queue.relation);
        self.name[..length].copy_from_slice(&name[..length]);
        self.name_length = length;
        self.lane.clear(moment);
        self.account.doubt();
        self.waiters.clear();
        self.in_turn = false;
        self.events = stamp();
        self.counters = Counters::default();
    }
}
