//! What the current transaction did to tasks, and telling it to the lanes and the worker at its end.
//!
//! Only after the commit can others see the rows, so that is when the callback speaks. An ERROR in it
//! would take the whole server down: it only moves numbers that are in this process already into shared
//! memory, and holds nothing but the lock of a lane, one at a time.
//!
//! There is room for so many changes. Of what is beyond, only the bounds are kept that lanes have to be
//! lowered to, which is always right, and costs them a look into the table.

mod pending;
mod tally;

use crate::clock::now;
use crate::lanes::{Item, Key, Queue};
use crate::shared::{self, NEVER};
use pending::{CHANGES, Change, Pending, SUMMARIES, What};
use pgrx::prelude::*;
use std::cell::UnsafeCell;

thread_local! {
    static PENDING: UnsafeCell<Pending> = const { UnsafeCell::new(Pending::NOTHING) };
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

/// A task whose lease had run out, as far as the lane knew, runs on: it is looked at again at `until`.
pub fn runs_on(lane: u64, id: i64, until: i64) {
    with_pending(|pending| pending.change(lane, lease_of(id), What::RunsOn { until }));
}

/// A key for what is about a task's lease and nothing else.
const fn lease_of(id: i64) -> Key {
    Key { id, ..Key::LAST }
}

/// A task can no longer be claimed, or runs no more, and had its lease until then.
pub fn removed(queue: &Queue<'_>, key: Key, until: i64) {
    with_pending(|pending| pending.change(queue.hash(), key, What::Removed { until }));
}

/// A task that could be claimed is blocked in its group. It stays in the lane, where the claim that meets it drops it:
/// to take it out could hide it, since another transaction may admit it again and publish that first.
pub fn withdrawn(queue: &Queue<'_>, key: Key) {
    with_pending(|pending| pending.change(queue.hash(), key, What::Withdrawn));
}

/// Something happened that the next claim from the queue has to settle, or its limit has room.
pub fn signalled(queue: &Queue<'_>) {
    with_pending(|pending| {
        shared::set_bit(&mut pending.news.queues, shared::queue_bit(queue.name()));
        let news = &mut pending.news;
        if !news.events[..news.event_count].contains(&queue.hash()) {
            match news.events.get_mut(news.event_count) {
                Some(place) => {
                    *place = queue.hash();
                    news.event_count += 1;
                }
                // The bits of the queues stand for it.
                None => news.events_overflow = true,
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
#[pg_guard]
pub extern "C-unwind" fn uncounted() {
    with_pending(|pending| pending.tally.overflow());
}

/// This transaction is going to be prepared under the name with this hash.
#[pg_guard]
pub extern "C-unwind" fn prepared_as(name: u64) {
    with_pending(|pending| pending.prepared_as = name);
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
            || pending.news.events_overflow
            || pending.news.events[..pending.news.event_count].contains(&lane)
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
            change.lane == lane
                && matches!(change.what, What::Removed { .. } | What::Withdrawn | What::Extended { .. })
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
            // COMMIT PREPARED comes later and elsewhere, and makes all lanes read anew, unless there is nothing to be told
            // (hooks.rs). The times at least are known.
            XACT_EVENT_PREPARE => {
                if let Some(shared) = shared::get() {
                    shared.idle.prepared(pending.prepared_as, pending.is_nothing());
                }
                let leases = pending.changes[..pending.count].iter().map(Change::lease);
                pending.news.lease = leases.min().unwrap_or(NEVER);
                pending.tell_worker();
            }
            XACT_EVENT_ABORT => pending.give_back(0),
            _ => return,
        }
        pending.clear();
    });
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
