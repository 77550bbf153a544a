//! The assignment of lanes to queues.

use super::directory::{alone, hashes, locked, stamp};
use super::shares::{self, Taker};
use super::slot::{Activity, NAME, Slot};
use super::waiters::Wake;
use super::{IDLE, NEVER};
use crate::clock::now;
use crate::shared;
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;

/// The queue of a lane. Where there is no space for the name, a hash identifies it; two queues with the same hash
/// cannot both have a lane.
#[derive(Clone, Copy)]
pub struct Queue<'a> {
    pub(super) hash: u64,
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
        // 0 means a free lane.
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

/// Assigns a lane to the queue; returns the hash. One process at a time does this, so that two processes find the same
/// lane for a queue.
pub fn take_lane(queue: &Queue<'_>, idle_too: bool) -> Option<u64> {
    let moment = now();
    // A free lane, one that was not used for long, or one of a role that has more lanes.
    // Lanes taken only for statistics are evicted first.
    let used_at = if idle_too { moment } else { moment - IDLE - 1 };
    // The earliest lease of the previous queue, which the worker has to end from now on, and its waiters, which have to
    // check again.
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
                // The least recently used one.
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

impl Slot {
    /// Whether this is the lane of the queue.
    pub(super) fn is_of(&self, queue: &Queue<'_>) -> bool {
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
        self.counters.invalidate();
        self.waiters.clear();
        (self.in_turn, self.checked_at) = (false, i64::MIN);
        self.events = stamp();
        self.activity = Activity::default();
    }
}
