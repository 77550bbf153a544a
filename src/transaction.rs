//! What the current transaction did to tasks, and telling it to the lanes and the worker at its end.
//!
//! Only after the commit can others see the rows, so that is when the callback speaks. An ERROR in it
//! would take the whole server down: it only moves numbers that are in this process already into shared
//! memory, and holds nothing but the lock of a lane, one at a time.
//!
//! There is room for so many changes. Of what is beyond, only the bounds are kept that lanes have to be
//! lowered to, which is always right, and costs them a look into the table.

mod tally;

use crate::clock::now;
use crate::lanes::{self, Item, Key, Lease, Queue, Wake};
use crate::shared::{self, NEVER, QueueBits};
use pgrx::prelude::*;
use std::cell::UnsafeCell;
use tally::Tally;

const CHANGES: usize = 2048;
const SUMMARIES: usize = 8;

/// What happened to a task.
#[derive(Clone, Copy)]
enum What {
    /// It can be claimed from its run_at on.
    Added,
    /// This transaction leased it; it stood in the line before.
    Leased { until: i64 },
    /// A claim of this transaction took it from the line. If it could not be leased, that may be because of
    /// what this transaction did to it before, and so it goes back to the line at a rollback all the same.
    Held,
    /// Its lease ran out at that time, and this transaction ends the attempt, if it commits.
    Ending { until: i64 },
    /// Its lease ends at another time.
    Extended { until: i64 },
    /// It can no longer be claimed, or runs no more, and had its lease until then.
    Removed { until: i64 },
    /// Nothing, in the end.
    Nothing,
}

#[derive(Clone, Copy)]
struct Change {
    lane: u64,
    subtransaction: pg_sys::SubTransactionId,
    key: Key,
    what: What,
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
struct News {
    created: bool,
    /// The first end of a lease that is in no lane.
    lease: i64,
    /// When something is to be done in a lane.
    lane_time: i64,
    run: i64,
    queues: QueueBits,
    /// Lanes in whose queues something happened that a claim has to settle, or room came free.
    signals: [u64; SUMMARIES],
    signal_count: usize,
}

const NO_NEWS: News = News {
    created: false,
    lease: NEVER,
    lane_time: NEVER,
    run: NEVER,
    queues: [0; 4],
    signals: [0; SUMMARIES],
    signal_count: 0,
};

struct Pending {
    registered: bool,
    count: usize,
    summary_count: usize,
    /// More lanes than there are summaries: all of them have to doubt what they know.
    doubt: bool,
    news: News,
    /// The lane that this process is refilling, 0 if none.
    refilling: u64,
    /// Lanes that learned from this transaction how the table is after its own changes.
    taught: [u64; SUMMARIES],
    taught_count: usize,
    /// This process is counting the tables for accounts.
    counting: bool,
    tally: Tally,
    changes: [Change; CHANGES],
    summaries: [Summary; SUMMARIES],
}

const NO_KEY: Key = Key::FIRST;
const NO_CHANGE: Change = Change { lane: 0, subtransaction: 0, key: NO_KEY, what: What::Nothing };
const NO_SUMMARY: Summary =
    Summary { lane: 0, added: Key::LAST, added_from: NEVER, leased: Key::LAST, until: NEVER, removed: false };

thread_local! {
    static PENDING: UnsafeCell<Pending> = const {
        UnsafeCell::new(Pending {
            registered: false,
            count: 0,
            summary_count: 0,
            doubt: false,
            news: NO_NEWS,
            refilling: 0,
            taught: [0; SUMMARIES],
            taught_count: 0,
            counting: false,
            tally: Tally::NOTHING,
            changes: [NO_CHANGE; CHANGES],
            summaries: [NO_SUMMARY; SUMMARIES],
        })
    };
}

/// Runs `act` with what is pending.
fn with_pending<R>(act: impl FnOnce(&mut Pending) -> R) -> R {
    PENDING.with(|pending| {
        // SAFETY: a backend has one thread, and none of the functions given here calls back.
        let pending = unsafe { &mut *pending.get() };
        if !pending.registered {
            // SAFETY: the callbacks live as long as the process, since the library is never unloaded.
            unsafe {
                pg_sys::RegisterXactCallback(Some(at_end_of_transaction), std::ptr::null_mut());
                pg_sys::RegisterSubXactCallback(Some(at_end_of_subtransaction), std::ptr::null_mut());
            }
            pending.registered = true;
        }
        act(pending)
    })
}

/// A task can be claimed from its run_at on, once this transaction has committed.
pub fn added(queue: &Queue<'_>, key: Key, now: i64) {
    with_pending(|pending| {
        if key.run_at <= now {
            shared::set_bit(&mut pending.news.queues, shared::queue_bit(queue.name()));
        } else {
            pending.news.run = pending.news.run.min(key.run_at);
        }
        pending.change(queue.hash(), key, What::Added);
    });
}

/// This transaction leased a task.
pub fn leased(queue: &Queue<'_>, key: Key, until: i64) {
    with_pending(|pending| pending.change(queue.hash(), key, What::Leased { until }));
}

/// The lease of a task ends at another time.
pub fn extended(queue: &Queue<'_>, key: Key, until: i64) {
    with_pending(|pending| pending.change(queue.hash(), key, What::Extended { until }));
}

/// The leases of these tasks were taken from the lane because they ran out. Should the transaction roll
/// back, they are still to be ended.
pub fn ending(lane: u64, ids: &[i64]) {
    let until = now();
    with_pending(|pending| {
        ids.iter().for_each(|id| pending.change(lane, lease_of(*id), What::Ending { until }))
    });
}

/// A lease ran out, but somebody else has the task locked: it is looked at again at `at`.
pub fn locked(lane: u64, id: i64, at: i64) {
    with_pending(|pending| pending.change(lane, lease_of(id), What::Extended { until: at }));
}

/// A key for what is about a task's lease and nothing else.
const fn lease_of(id: i64) -> Key {
    Key { id, ..Key::LAST }
}

/// A task can no longer be claimed, or runs no more, and had its lease until then.
pub fn removed(queue: &Queue<'_>, key: Key, until: i64) {
    with_pending(|pending| pending.change(queue.hash(), key, What::Removed { until }));
}

/// Something happened that the next claim from the queue has to settle, or its limit has room.
pub fn signalled(queue: &Queue<'_>) {
    with_pending(|pending| {
        shared::set_bit(&mut pending.news.queues, shared::queue_bit(queue.name()));
        let news = &mut pending.news;
        if !news.signals[..news.signal_count].contains(&queue.hash()) {
            match news.signals.get_mut(news.signal_count) {
                Some(place) => {
                    *place = queue.hash();
                    news.signal_count += 1;
                }
                None => pending.doubt = true,
            }
        }
    });
}

/// Something is to be looked at from this time on.
pub fn expected(time: i64) {
    with_pending(|pending| pending.news.run = pending.news.run.min(time));
}

/// There are so many more of an item in the queue.
pub fn counted(queue: &Queue<'_>, item: Item, more: i32) {
    with_pending(|pending| pending.count_item(queue.hash(), item, more));
}

/// Nobody can tell what this transaction did to the numbers of tasks.
pub fn uncounted() {
    with_pending(|pending| pending.tally.overflow());
}

/// Notes whether this process is counting, in case that ends with an ERROR.
pub fn counting(yes: bool) {
    with_pending(|pending| pending.counting = yes);
}

/// This database has the extension, once this transaction has committed.
pub fn created() {
    with_pending(|pending| pending.news.created = true);
}

/// Candidates that a claim took from a lane, before it looks at their rows: whatever happens, they are
/// not lost. Nothing else may be noted meanwhile.
pub struct Hands {
    lane: u64,
    first: usize,
    subtransaction: pg_sys::SubTransactionId,
}

impl Hands {
    /// Takes nothing yet.
    pub fn new(lane: u64) -> Self {
        // SAFETY: reads the state of the transaction.
        let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
        with_pending(|pending| Self { lane, first: pending.count, subtransaction })
    }

    /// For how many more candidates there is room.
    pub fn room(&self) -> usize {
        with_pending(|pending| CHANGES - pending.count)
    }

    /// Takes a candidate, for which there is room. At a rollback it goes back to the lane.
    pub fn take(&mut self, key: Key) {
        with_pending(|pending| {
            let Self { lane, subtransaction, .. } = *self;
            pending.changes[pending.count] = Change { lane, subtransaction, key, what: What::Held };
            pending.count += 1;
        });
    }

    /// How many were taken.
    pub fn len(&self) -> usize {
        with_pending(|pending| pending.count - self.first)
    }

    /// The candidate of this number.
    pub fn get(&self, number: usize) -> Key {
        with_pending(|pending| pending.changes[self.first + number].key)
    }

    /// The candidate of this number has been leased.
    pub fn leased(&self, number: usize, until: i64) {
        with_pending(|pending| {
            let change = &mut pending.changes[self.first + number];
            change.what = What::Leased { until };
            let run_at = change.key.run_at;
            pending.count_item(self.lane, Item::queued(run_at), -1);
            pending.count_item(self.lane, Item::RUNNING, 1);
        });
    }
}

/// Whether this transaction itself did something that may let a claim of its own have more tasks than
/// the lane knows of.
pub fn has_own(lane: u64) -> bool {
    let now = now();
    with_pending(|pending| {
        pending.summary_count > 0
            || pending.doubt
            || pending.news.signals[..pending.news.signal_count].contains(&lane)
            || pending.changes[..pending.count]
                .iter()
                .any(|change| change.lane == lane && change.may_add(now))
    })
}

/// Notes which lane this process is refilling, 0 for none, in case it ends with an ERROR.
pub fn refilling(lane: u64) {
    with_pending(|pending| pending.refilling = lane);
}

/// A refill of the lane is about to read the table as this transaction sees it. Where it has removed tasks,
/// or changed leases, the lane has to be read again should that be undone.
pub fn teaches(lane: u64) {
    with_pending(|pending| {
        let changed = |change: &Change| {
            change.lane == lane && matches!(change.what, What::Removed { .. } | What::Extended { .. })
        };
        let untouched = pending.summary_count == 0 && !pending.changes[..pending.count].iter().any(changed);
        if untouched || pending.taught[..pending.taught_count].contains(&lane) {
            return;
        }
        // Where there is no room, the last one stands for all lanes.
        let place = pending.taught_count.min(SUMMARIES - 1);
        pending.taught[place] = if pending.taught_count < SUMMARIES { lane } else { 0 };
        pending.taught_count = place + 1;
    });
}

impl Pending {
    fn change(&mut self, lane: u64, key: Key, what: What) {
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
            What::Leased { until } | What::Extended { until } | What::Ending { until } => {
                summary.leased = summary.leased.min(key);
                summary.until = summary.until.min(until);
            }
            What::Removed { .. } => summary.removed = true,
            What::Held | What::Nothing => {}
        }
    }

    fn count_item(&mut self, lane: u64, item: Item, more: i32) {
        // SAFETY: reads the state of the transaction.
        let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
        self.tally.note(lane, subtransaction, item, more);
    }

    /// Gives back what the subtransactions from this one on had in their hands.
    fn give_back(&mut self, from: pg_sys::SubTransactionId) {
        self.tally.forget(from);
        if std::mem::take(&mut self.counting) {
            lanes::stop_counting();
        }
        let moment = now();
        for change in self.changes[..self.count].iter_mut().filter(|change| change.subtransaction >= from) {
            let had = matches!(change.what, What::Leased { .. } | What::Held | What::Ending { .. });
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
            wake.flatten().into_iter().for_each(Wake::now);
            change.what = What::Nothing;
        }
        for summary in &self.summaries[..self.summary_count] {
            let wake = lanes::with(summary.lane, |slot| {
                slot.lane.lower(summary.leased);
                slot.lane.leases.add_unknown(summary.until);
                slot.wake_in_turn()
            });
            wake.flatten().into_iter().for_each(Wake::now);
        }
        for lane in &self.taught[..std::mem::take(&mut self.taught_count)] {
            if *lane == 0 {
                lanes::doubt();
            }
            let wake = lanes::with(*lane, |slot| {
                slot.lane.doubt();
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
    fn tell(&mut self, now: i64) {
        // SAFETY: reads the state of the transaction, which has its id until the callbacks are done.
        let me = unsafe { pg_sys::GetTopFullTransactionIdIfAny() }.value;
        if self.tally.overflown() {
            lanes::doubt_accounts();
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
                slot.lane.lower_timed(summary.added_from);
                slot.lane.leases.add_unknown(summary.until);
                if summary.removed {
                    slot.lane.leases.remove_unknown();
                }
                slot.wake_in_turn()
            });
            wake.flatten().into_iter().for_each(Wake::now);
        }
        for lane in &self.news.signals[..self.news.signal_count] {
            let wake = lanes::with(*lane, |slot| {
                slot.signals = lanes::stamp();
                slot.wake_in_turn()
            });
            wake.flatten().into_iter().for_each(Wake::now);
        }
        if self.doubt {
            lanes::doubt();
        }
    }

    /// Tells those who wait for the end of a task.
    fn tell_of_ends(&self) {
        let Some(shared) = shared::get().filter(|shared| !shared.results.is_empty()) else { return };
        // SAFETY: a plain read of a constant of the process.
        let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
        let removed =
            self.changes[..self.count].iter().filter(|change| matches!(change.what, What::Removed { .. }));
        removed.for_each(|change| shared.results.wake(database, change.key.id));
    }

    /// Tells the launcher and the worker.
    fn tell_worker(&self) {
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

    fn clear(&mut self) {
        self.taught_count = 0;
        self.tally.clear();
        (self.count, self.summary_count, self.doubt, self.news) = (0, 0, false, NO_NEWS);
    }
}

impl Change {
    /// Whether a claim of the same transaction may get the task because of this.
    fn may_add(&self, now: i64) -> bool {
        match self.what {
            What::Added | What::Extended { .. } => true,
            What::Leased { until } => until <= now,
            _ => false,
        }
    }

    /// When the lease ends that it is about.
    fn lease(&self) -> i64 {
        match self.what {
            What::Leased { until } | What::Extended { until } => until,
            _ => NEVER,
        }
    }

    fn tell(&self, slot: &mut lanes::Slot, now: i64) -> Option<Wake> {
        match self.what {
            What::Added => return slot.lane.add(self.key, now).then(|| slot.wake()).flatten(),
            What::Leased { until } => slot.lane.leased(self.key, until, now),
            What::Extended { until } => slot.lane.extended(self.key, until, now),
            What::Removed { until } => slot.lane.gone(self.key, until),
            What::Ending { .. } | What::Held | What::Nothing => {}
        }
        None
    }
}

/// Runs after the transaction's rows are visible to others.
unsafe extern "C-unwind" fn at_end_of_transaction(
    event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    use pg_sys::XactEvent::*;
    with_pending(|pending| {
        match event {
            XACT_EVENT_COMMIT => {
                pending.tell(now());
                pending.tell_worker();
            }
            // COMMIT PREPARED comes later and elsewhere, and makes all lanes read anew (hooks.rs). The
            // times at least are known.
            XACT_EVENT_PREPARE => {
                let leases = pending.changes[..pending.count].iter().map(Change::lease);
                pending.news.lease = leases.min().unwrap_or(NEVER);
                pending.tell_worker();
            }
            XACT_EVENT_ABORT => pending.give_back(0),
            _ => return,
        }
        pending.clear();
    });
    if event == XACT_EVENT_ABORT {
        crate::wait::leave_lists(false);
    }
}

/// Runs when a savepoint, or a block with an exception handler, ends. What it did can be told by the
/// numbers of the subtransactions, which grow: all from an aborted one on are aborted with it.
unsafe extern "C-unwind" fn at_end_of_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    subtransaction: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _argument: *mut std::ffi::c_void,
) {
    use pg_sys::SubXactEvent::*;
    match event {
        SUBXACT_EVENT_ABORT_SUB => with_pending(|pending| pending.give_back(subtransaction)),
        SUBXACT_EVENT_COMMIT_SUB => with_pending(|pending| pending.tally.hand_up(subtransaction, parent)),
        _ => {}
    }
}
