//! What a transaction changed in the numbers of tasks, for the counters of the lanes.

use crate::lanes::{Item, LaneSet, Slot};
use pgrx::prelude::*;

const ENTRIES: usize = 512;
/// How many of the last entries are searched for one to add to.
const NEAR: usize = 4;

/// A change of the number of an item in the queue of a lane.
#[derive(Clone, Copy)]
struct Entry {
    lane: u64,
    subtransaction: pg_sys::SubTransactionId,
    item: Item,
    more: i32,
}

/// See the top of this file. If there are more different changes than fit, those of a lane count as unknown, and the tasks
/// of its queue have to be counted again.
pub struct Tally {
    count: usize,
    /// The lanes whose changes are unknown. They get no more entries.
    unknown: LaneSet,
    entries: [Entry; ENTRIES],
}

impl Tally {
    /// No changes.
    pub const NOTHING: Self = Self {
        count: 0,
        unknown: LaneSet::NONE,
        entries: [Entry { lane: 0, subtransaction: 0, item: Item::RUNNING, more: 0 }; ENTRIES],
    };

    /// Adds a change of the number of an item.
    pub fn note(&mut self, lane: u64, subtransaction: pg_sys::SubTransactionId, item: Item, more: i32) {
        if self.unknown.contains(lane) {
            return;
        }
        let entry = Entry { lane, subtransaction, item, more };
        let near = self.count.saturating_sub(NEAR)..self.count;
        if let Some(known) = self.entries[near].iter_mut().find(|known| known.is_like(&entry)) {
            known.more += more;
            return;
        }
        if self.count == ENTRIES {
            self.compact();
            // There is space now, or the changes of this lane are unknown.
            return self.note(lane, subtransaction, item, more);
        }
        self.entries[self.count] = entry;
        self.count += 1;
    }

    /// Adds up entries of one kind, and drops those that are 0. If that is not enough, drops those of the lanes that have
    /// most of them.
    fn compact(&mut self) {
        let entries = &mut self.entries[..self.count];
        entries.sort_unstable_by_key(|entry| (entry.lane, entry.subtransaction, entry.item));
        let mut kept: usize = 0;
        for i in 0..entries.len() {
            let entry = entries[i];
            match kept.checked_sub(1).map(|last| &mut entries[last]) {
                Some(last) if last.is_like(&entry) => last.more += entry.more,
                _ => {
                    entries[kept] = entry;
                    kept += 1;
                }
            }
            if entries[kept - 1].more == 0 && entries.get(i + 1).is_none_or(|next| !next.is_like(&entry)) {
                kept -= 1;
            }
        }
        self.count = kept;
        // It must not stay nearly full either, or it would be sorted again for every entry.
        if kept > ENTRIES - NEAR {
            while self.count > ENTRIES / 2 {
                self.drop_largest();
            }
        }
    }

    /// Drops the entries, which are sorted, of the lane that has most of them. Its changes are unknown from then on.
    fn drop_largest(&mut self) {
        let lanes = self.entries[..self.count].chunk_by(|one, other| one.lane == other.lane);
        if let Some(entries) = lanes.max_by_key(|entries| entries.len()) {
            let lane = entries[0].lane;
            self.unknown.insert(lane);
            self.drop_lane(lane);
        }
    }

    /// Assigns the changes of a subtransaction to its parent.
    pub fn hand_up(&mut self, subtransaction: pg_sys::SubTransactionId, parent: pg_sys::SubTransactionId) {
        let entries = self.entries[..self.count].iter_mut();
        entries
            .filter(|entry| entry.subtransaction == subtransaction)
            .for_each(|entry| entry.subtransaction = parent);
    }

    /// Drops the changes of the subtransactions from this one on.
    pub fn forget(&mut self, from: pg_sys::SubTransactionId) {
        let mut kept = 0;
        for i in 0..self.count {
            if self.entries[i].subtransaction < from {
                self.entries[kept] = self.entries[i];
                kept += 1;
            }
        }
        self.count = kept;
    }

    /// How many more queued tasks the queue of a lane has, if that is known.
    pub fn queued(&self, lane: u64) -> Option<i64> {
        let entries = self.entries[..self.count].iter();
        let queued = entries
            .filter(|entry| entry.lane == lane && entry.item.is_queued())
            .map(|entry| i64::from(entry.more));
        (!self.unknown.contains(lane)).then(|| queued.sum())
    }

    /// The lanes that have entries, each once for each entry.
    pub fn lanes(&self) -> impl Iterator<Item = u64> {
        self.entries[..self.count].iter().map(|entry| entry.lane)
    }

    /// One of the lanes that have entries.
    pub fn lane(&self) -> Option<u64> {
        self.entries[..self.count].last().map(|entry| entry.lane)
    }

    /// Publishes the entries of a lane to its counters.
    pub fn publish(&mut self, slot: &mut Slot, lane: u64, transaction: u64) {
        let mut items = self.entries[..self.count].iter().filter(|entry| entry.lane == lane).peekable();
        if items.peek().is_some() {
            slot.counters.publish(transaction, items.map(|entry| (entry.item, entry.more)));
            self.drop_lane(lane);
        }
    }

    /// Drops the entries of a lane.
    pub fn drop_lane(&mut self, lane: u64) {
        let mut kept = 0;
        for i in 0..self.count {
            if self.entries[i].lane != lane {
                self.entries[kept] = self.entries[i];
                kept += 1;
            }
        }
        self.count = kept;
    }

    /// The lanes whose changes are unknown.
    pub fn unknown(&self) -> &LaneSet {
        &self.unknown
    }

    /// The transaction changed the numbers of all queues in an unknown way.
    pub fn forget_all(&mut self) {
        self.unknown = LaneSet::ALL;
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        (self.count, self.unknown) = (0, LaneSet::NONE);
    }
}

impl Entry {
    fn is_like(&self, other: &Self) -> bool {
        (self.lane, self.subtransaction, self.item) == (other.lane, other.subtransaction, other.item)
    }
}
