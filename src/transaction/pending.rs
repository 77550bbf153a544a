//! What is pending in a transaction, and telling it, or giving it back.

use super::tally::Tally;
use crate::clock::now;
use crate::lanes::{self, Item, Key, Lease, Wake};
use crate::shared::{self, NEVER, QueueBits};
use pgrx::prelude::*;

pub(super) const CHANGES: usize = 2048;
pub(super) const SUMMARIES: usize = 8;

/// What happened to a task.
#[derive(Clone, Copy)]
pub(super) enum What {
    /// It can be claimed from its run_at on.
    Added,
    /// This transaction leased it; it stood in the line before.
    Leased { until: i64 },
    /// A claim of this transaction took it from the line. If it could not be leased, that may be because of
    /// what this transaction did to it before, and so it goes back to the line at a rollback all the same.
    Held,
    /// Its lease ran out at that time, and this transaction ends the attempt, if it commits.
    Ending { until: i64 },
    /// It was looked at because its lease ran out, but that is to be looked at again at another time.
    RunsOn { until: i64 },
    /// Its lease ends at another time.
    Extended { until: i64 },
    /// It can no longer be claimed, or runs no more, and had its lease until then.
    Removed { until: i64 },
    /// It is blocked in its group, and is not to be claimed until it is admitted again.
    Withdrawn,
    /// Nothing, in the end.
    Nothing,
}

impl What {
    /// When the lease ends that it is about.
    fn lease(self) -> i64 {
        match self {
            Self::Leased { until }
            | Self::Extended { until }
            | Self::RunsOn { until }
            | Self::Ending { until } => until,
            _ => NEVER,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) lane: u64,
    pub(super) subtransaction: pg_sys::SubTransactionId,
    pub(super) key: Key,
    pub(super) what: What,
}

/// What is beyond the room for changes, for one lane.
#[derive(Clone, Copy)]
struct Summary {
    lane: u64,
    /// Tasks that can be claimed, if it commits.
    added: Key,
    added_from: i64,
    /// Tasks that can be claimed again, if it rolls back.
    leased: Key,
    until: i64,
    /// Tasks ended, if it commits.
    removed: bool,
}

/// The pieces of news that are not about one task.
pub(super) struct News {
    pub(super) created: bool,
    /// The first end of a lease that is in no lane.
    pub(super) lease: i64,
    /// When something is to be done in a lane.
    pub(super) lane_time: i64,
    pub(super) run: i64,
    pub(super) queues: QueueBits,
    /// Lanes in whose queues something happened that a claim has to settle, or room came free.
    pub(super) events: [u64; SUMMARIES],
    pub(super) event_count: usize,
    /// More of them than there is room for: those of `queues`.
    pub(super) events_overflow: bool,
}

const NO_NEWS: News = News {
    created: false,
    lease: NEVER,
    lane_time: NEVER,
    run: NEVER,
    queues: [0; 4],
    events: [0; SUMMARIES],
    event_count: 0,
    events_overflow: false,
};

pub(super) struct Pending {
    pub(super) registered: bool,
    pub(super) count: usize,
    pub(super) summary_count: usize,
    /// More lanes than there are summaries: all of them have to doubt what they know.
    pub(super) doubt: bool,
    pub(super) news: News,
    /// The lane that this process is refilling, 0 if none.
    pub(super) refilling: u64,
    /// Lanes that learned from this transaction how the table is after its own changes.
    pub(super) taught: [u64; SUMMARIES],
    pub(super) taught_count: usize,
    /// This process is counting the tables for accounts.
    pub(super) counting: bool,
    /// The name under which this transaction is going to be prepared, as a hash; 0 for none.
    pub(super) prepared_as: u64,
    pub(super) tally: Tally,
    pub(super) changes: [Change; CHANGES],
    summaries: [Summary; SUMMARIES],
}

const NO_KEY: Key = Key::FIRST;
const NO_CHANGE: Change = Change { lane: 0, subtransaction: 0, key: NO_KEY, what: What::Nothing };
const NO_SUMMARY: Summary =
    Summary { lane: 0, added: Key::LAST, added_from: NEVER, leased: Key::LAST, until: NEVER, removed: false };

impl Pending {
    /// Nothing happened yet.
    pub(super) const NOTHING: Self = Self {
        registered: false,
        count: 0,
        summary_count: 0,
        doubt: false,
        news: NO_NEWS,
        refilling: 0,
        taught: [0; SUMMARIES],
        taught_count: 0,
        counting: false,
        prepared_as: 0,
        tally: Tally::NOTHING,
        changes: [NO_CHANGE; CHANGES],
        summaries: [NO_SUMMARY; SUMMARIES],
    };

    pub(super) fn change(&mut self, lane: u64, key: Key, what: What) {
        // SAFETY: reads the state of the transaction.
        let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
        if self.count < CHANGES {
            self.changes[self.count] = Change { lane, subtransaction, key, what };
            self.count += 1;
            return;
        }
        let known = self.summaries[..self.summary_count].iter().position(|summary| summary.lane == lane);
        let Some(place) = known.or_else(|| (self.summary_count < SUMMARIES).then_some(self.summary_count))
        else {
            self.doubt = true;
            self.news.lease = self.news.lease.min(what.lease());
            return;
        };
        if place == self.summary_count {
            self.summaries[place] = Summary { lane, ..NO_SUMMARY };
            self.summary_count += 1;
        }
        let summary = &mut self.summaries[place];
        match what {
            What::Added => {
                summary.added = summary.added.min(key);
                summary.added_from = summary.added_from.min(key.run_at);
            }
            What::Leased { .. } | What::Extended { .. } | What::RunsOn { .. } | What::Ending { .. } => {
                summary.leased = summary.leased.min(key);
                summary.until = summary.until.min(what.lease());
            }
            What::Removed { .. } => summary.removed = true,
            What::Held | What::Withdrawn | What::Nothing => {}
        }
    }

    pub(super) fn count_item(&mut self, lane: u64, item: Item, more: i32) {
        // SAFETY: reads the state of the transaction.
        let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
        self.tally.note(lane, subtransaction, item, more);
    }

    /// Whether nobody has to be told of anything, however this transaction ends.
    pub(super) fn is_nothing(&self) -> bool {
        let News { created, lease, lane_time, run, queues, event_count, events_overflow, .. } = self.news;
        let news = created || queues != [0; 4] || event_count > 0 || events_overflow;
        let counts = [self.count, self.summary_count, self.taught_count];
        !(news || self.doubt || self.counting || self.refilling != 0)
            && lease.min(lane_time).min(run) == NEVER
            && counts == [0; 3]
            && self.tally.is_nothing()
    }

    /// Gives back what the subtransactions from this one on had in their hands.
    pub(super) fn give_back(&mut self, from: pg_sys::SubTransactionId) {
        self.tally.forget(from);
        if std::mem::take(&mut self.counting) {
            lanes::stop_counting();
        }
        let moment = now();
        // Ends of leases that no lane takes back.
        let mut lease = NEVER;
        for change in self.changes[..self.count].iter_mut().filter(|change| change.subtransaction >= from) {
            let had = matches!(change.what, What::Leased { .. } | What::Held | What::Ending { .. })
                && !crate::injection::forgets();
            let wake = had.then_some(change.lane).and_then(|lane| {
                lanes::with(lane, |slot| match change.what {
                    // A lease that was not given by a claim may have been on a task for later.
                    What::Leased { .. } | What::Held => {
                        slot.lane.add(change.key, moment).then(|| slot.wake()).flatten()
                    }
                    What::Ending { until } => {
                        slot.lane.leases.take_back(Lease { id: change.key.id, until });
                        slot.wake()
                    }
                    _ => None,
                })
            });
            if wake.is_none()
                && let What::Ending { until } = change.what
            {
                lease = lease.min(until);
            }
            wake.flatten().into_iter().for_each(Wake::now);
            change.what = What::Nothing;
        }
        for summary in &self.summaries[..self.summary_count] {
            let wake = lanes::with(summary.lane, |slot| {
                slot.lane.lower(summary.leased);
                slot.lane.leases.add_unknown(summary.until);
                slot.wake_in_turn()
            });
            lease = lease.min(if wake.is_none() { summary.until } else { NEVER });
            wake.flatten().into_iter().for_each(Wake::now);
        }
        if self.doubt {
            lanes::invalidate();
            lease = lease.min(self.news.lease);
        }
        // SAFETY: a plain read of a constant of the process.
        shared::leases_until(unsafe { pg_sys::MyDatabaseId }, lease);
        for lane in &self.taught[..std::mem::take(&mut self.taught_count)] {
            if *lane == 0 {
                lanes::invalidate();
                continue;
            }
            let wake = lanes::with(*lane, |slot| {
                slot.lane.invalidate();
                slot.wake_in_turn()
            });
            wake.flatten().into_iter().for_each(Wake::now);
        }
        if self.refilling != 0 {
            lanes::with(self.refilling, |slot| slot.lane.give_up());
            lanes::announce_refill(self.refilling);
            self.refilling = 0;
        }
    }

    /// Tells the lanes what has been committed.
    pub(super) fn tell(&mut self, now: i64) {
        // SAFETY: reads the state of the transaction, which has its id until the callbacks are done.
        let me = unsafe { pg_sys::GetTopFullTransactionIdIfAny() }.value;
        if self.tally.overflown() {
            lanes::invalidate_counters();
        }
        let mut rest = &self.changes[..self.count];
        while let Some(first) = rest.first() {
            // As many as are for one lane at a time, and at most so many wake-ups.
            const AT_ONCE: usize = 64;
            let same = rest.iter().take(AT_ONCE).take_while(|change| change.lane == first.lane).count();
            let mut wakes = [const { None }; AT_ONCE];
            let known = lanes::with(first.lane, |slot| {
                for (change, wake) in rest[..same].iter().zip(&mut wakes) {
                    *wake = change.tell(slot, now);
                }
                self.tally.tell(slot, first.lane, me);
                slot.next_time()
            });
            match known {
                Some(next) => self.news.lane_time = self.news.lane_time.min(next),
                // The worker has to find them in the table.
                None => {
                    self.news.lease =
                        rest[..same].iter().fold(self.news.lease, |lease, change| lease.min(change.lease()))
                }
            }
            wakes.into_iter().flatten().for_each(Wake::now);
            rest = &rest[same..];
        }
        // What is only counted, or beyond the room for changes.
        while let Some(lane) = self.tally.lane() {
            lanes::with(lane, |slot| self.tally.tell(slot, lane, me));
            // Also where there is no such lane.
            self.tally.drop_lane(lane);
        }
        self.tell_of_ends();
        for summary in &self.summaries[..self.summary_count] {
            let wake = lanes::with(summary.lane, |slot| {
                slot.lane.lower(summary.added);
                slot.lane.lower_scheduled(summary.added_from);
                slot.lane.leases.add_unknown(summary.until);
                if summary.removed {
                    slot.lane.leases.remove_unknown();
                }
                slot.wake_in_turn()
            });
            self.news.lease = self.news.lease.min(if wake.is_none() { summary.until } else { NEVER });
            wake.flatten().into_iter().for_each(Wake::now);
        }
        for lane in &self.news.events[..self.news.event_count] {
            let wake = lanes::with(*lane, |slot| {
                slot.events = lanes::stamp();
                slot.wake_in_turn()
            });
            wake.flatten().into_iter().for_each(Wake::now);
        }
        if self.news.events_overflow {
            lanes::note_events(&self.news.queues);
        }
        if self.doubt {
            lanes::invalidate();
        }
    }

    /// Tells those who wait for the end of a task.
    pub(super) fn tell_of_ends(&self) {
        let Some(shared) = shared::get().filter(|shared| !shared.results.is_empty()) else { return };
        // SAFETY: a plain read of a constant of the process.
        let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
        let removed =
            self.changes[..self.count].iter().filter(|change| matches!(change.what, What::Removed { .. }));
        removed.for_each(|change| shared.results.wake(database, change.key.id));
    }

    /// Tells the launcher and the worker.
    pub(super) fn tell_worker(&self) {
        let Some(shared) = shared::get() else { return };
        let News { created, lease, lane_time, run, queues, .. } = self.news;
        // SAFETY: a plain read of a constant of the process.
        let database_oid = unsafe { pg_sys::MyDatabaseId };
        if created {
            shared.announce_created(database_oid);
        }
        let anything = lease.min(lane_time).min(run) != NEVER || queues != [0; 4];
        let Some(database) = anything.then(|| shared.database(database_oid)).flatten() else { return };
        if lease != NEVER {
            database.lease_until(lease);
        }
        if lane_time != NEVER {
            database.lane_time(lane_time);
        }
        if run != NEVER {
            database.run_at(run);
        }
        database.pushed(&queues);
    }

    pub(super) fn clear(&mut self) {
        (self.taught_count, self.prepared_as) = (0, 0);
        self.tally.clear();
        (self.count, self.summary_count, self.doubt, self.news) = (0, 0, false, NO_NEWS);
    }
}

impl Change {
    /// Whether a claim of the same transaction may get the task because of this.
    pub(super) fn may_add(&self, now: i64) -> bool {
        match self.what {
            What::Added | What::Extended { .. } => true,
            What::Leased { until } => until <= now,
            _ => false,
        }
    }

    /// When the lease ends that is told of, if it commits.
    pub(super) fn lease(&self) -> i64 {
        match self.what {
            What::Ending { .. } => NEVER,
            what => what.lease(),
        }
    }

    pub(super) fn tell(&self, slot: &mut lanes::Slot, now: i64) -> Option<Wake> {
        match self.what {
            What::Added => return slot.lane.add(self.key, now).then(|| slot.wake()).flatten(),
            What::Leased { until } => slot.lane.leased(self.key, until, now),
            What::Extended { until } => slot.lane.extended(self.key, until, now),
            What::RunsOn { until } => slot.lane.leases.take_back(Lease { id: self.key.id, until }),
            What::Removed { until } => slot.lane.removed(self.key, until),
            What::Ending { .. } | What::Held | What::Withdrawn | What::Nothing => {}
        }
        None
    }
}
