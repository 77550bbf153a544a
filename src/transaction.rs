//! The changes of the current transaction to tasks, which it publishes to the lanes and the worker at its end.
//!
//! Other sessions see the rows only after the commit, so the transaction callback publishes then. An ERROR in the
//! callback would be a PANIC of the server. So it only copies numbers from process memory to shared memory, and holds
//! only the lock of a lane, one at a time.
//!
//! The number of changes is limited. Of further ones, only the positions are kept to which the watermarks of the lanes
//! have to be lowered, which is always correct and costs a scan of the table. The number of these lanes is limited as
//! well, and further ones are invalidated.

mod pending;
mod publish;
mod reservation;
mod rollback;
mod tally;
mod watched;

use crate::clock::now;
use crate::durability;
use crate::lanes::{self, Item, Key, Queue};
use crate::shared;
use crate::wait;
use pending::{Change, Pending, What};
use pgrx::prelude::*;
pub use reservation::Reservation;
use std::cell::UnsafeCell;
use watched::Watched;

thread_local! {
    static PENDING: UnsafeCell<Pending> = const { UnsafeCell::new(Pending::NOTHING) };
}

/// Runs `act` with the pending changes.
fn with_pending<R>(act: impl FnOnce(&mut Pending) -> R) -> R {
    PENDING.with(|pending| {
        // SAFETY: a backend has one thread, and no `act` calls this function.
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
            shared::set_bit(&mut pending.notices.queues, shared::queue_bit(queue.name()));
        } else {
            pending.notices.run = pending.notices.run.min(key.run_at);
        }
        pending.change(queue.hash(), key, What::Added);
    });
}

/// This transaction leased a task.
pub fn leased(queue: &Queue<'_>, key: Key, until: i64) {
    wait::claimed();
    with_pending(|pending| pending.change(queue.hash(), key, What::Leased { until }));
}

/// This transaction changed the end of a lease.
pub fn extended(queue: &Queue<'_>, key: Key, until: i64) {
    with_pending(|pending| pending.change(queue.hash(), key, What::Extended { until }));
}

/// The leases of these tasks have expired and were removed from the lane. If the transaction rolls back, they still
/// have to be ended.
pub fn ending(lane: u64, ids: &[i64]) {
    let until = now();
    with_pending(|pending| {
        ids.iter().for_each(|id| pending.change(lane, lease_of(*id), What::Ending { until }))
    });
}

/// A task whose lease had expired according to the lane still runs: check its expiry again at `until`.
pub fn runs_on(lane: u64, id: i64, until: i64) {
    with_pending(|pending| pending.change(lane, lease_of(id), What::RunsOn { until }));
}

/// The key for a change that concerns only the lease.
const fn lease_of(id: i64) -> Key {
    Key { id, ..Key::LAST }
}

/// A task can no longer be claimed, or no longer runs. Its lease was until then.
pub fn removed(queue: &Queue<'_>, key: Key, until: i64) {
    with_pending(|pending| pending.change(queue.hash(), key, What::Removed { until }));
}

/// A claimable task is now blocked in its group. It stays in the lane until a claim finds it blocked: removing it could
/// hide it, because another transaction may admit it again and publish that first.
pub fn withdrawn(queue: &Queue<'_>, key: Key) {
    with_pending(|pending| pending.change(queue.hash(), key, What::Withdrawn));
}

/// The queue has a new event, which the next claim processes, or a free slot.
pub fn event_added(queue: &Queue<'_>) {
    with_pending(|pending| {
        shared::set_bit(&mut pending.notices.queues, shared::queue_bit(queue.name()));
        let notices = &mut pending.notices;
        if !notices.events[..notices.event_count].contains(&queue.hash()) {
            match notices.events.get_mut(notices.event_count) {
                Some(place) => {
                    *place = queue.hash();
                    notices.event_count += 1;
                }
                None => notices.more_events.insert(queue.hash()),
            }
        }
    });
}

/// A task or a schedule becomes due at this time, which the worker has to process.
pub fn due_at(time: i64) {
    with_pending(|pending| pending.notices.run = pending.notices.run.min(time));
}

/// Notes that a task has this start deadline, at which the worker has to end it.
pub fn start_by(time: i64) {
    with_pending(|pending| pending.notices.start_by = pending.notices.start_by.min(time));
}

/// The number of an item in the queue has grown by `more`.
pub fn counted(queue: &Queue<'_>, item: Item, more: i32) {
    with_pending(|pending| pending.count_item(queue.hash(), item, more));
}

/// How many more queued tasks the queue has because of this transaction, if that is known.
pub fn queued_here(lane: u64) -> Option<i64> {
    with_pending(|pending| pending.tally.queued(lane))
}

/// This transaction changed the numbers of tasks of all queues in an unknown way.
#[pg_guard]
pub extern "C-unwind" fn uncounted() {
    with_pending(|pending| pending.tally.forget_all());
}

/// This transaction is going to be prepared under the name with this hash.
#[pg_guard]
pub extern "C-unwind" fn prepared_as(name: u64) {
    with_pending(|pending| pending.prepared_as = name);
}

/// Records whether this process is counting, in case of an ERROR.
pub fn counting(yes: bool) {
    with_pending(|pending| pending.counting = yes);
}

/// This database has the extension, once this transaction has committed.
pub fn created() {
    with_pending(|pending| pending.notices.created = true);
}

/// Whether a claim in this transaction may find tasks that the lane does not know, because of the transaction's own
/// changes.
pub fn has_own(lane: u64) -> bool {
    let now = now();
    with_pending(|pending| {
        pending.summary_count > 0
            || pending.notices.more_events.contains(lane)
            || pending.notices.events[..pending.notices.event_count].contains(&lane)
            || pending.changes[..pending.count]
                .iter()
                .any(|change| change.lane == lane && change.may_add(now))
    })
}

/// Notes for [`has_changed_watched`] whether this transaction changes the task.
pub fn watch(task: i64) {
    with_pending(|pending| pending.watched = Watched::of(task));
}

/// Whether this transaction has changed the watched task, which was running before.
pub fn has_changed_watched() -> bool {
    with_pending(|pending| pending.watched.is_changed())
}

/// Handlers were attached or detached, or rights have changed.
pub fn handlers_changed() {
    with_pending(|pending| pending.notices.handlers = true);
}

/// The cancellation of a running task was requested: its handler is interrupted, if this transaction commits.
pub fn cancel_requested(task: i64) {
    with_pending(|pending| {
        let cancels = &mut pending.notices.cancels;
        if let Some(place) = cancels.iter_mut().find(|place| **place == 0) {
            *place = task;
        }
    });
}

/// Records which lane this process is refilling, 0 for none, in case of an ERROR.
pub fn refilling(lane: u64) {
    with_pending(|pending| pending.refilling = lane);
}

/// A refill of the lane is about to read the table as this transaction sees it. If the transaction has removed tasks,
/// or changed leases, a rollback has to invalidate the lane.
pub fn refilled_before_commit(lane: u64) {
    with_pending(|pending| {
        let changed = |change: &Change| {
            change.lane == lane
                && matches!(change.what, What::Removed { .. } | What::Withdrawn | What::Extended { .. })
        };
        if pending.summary_count > 0 || pending.changes[..pending.count].iter().any(changed) {
            pending.refilled.insert(lane);
        }
    });
}

/// Runs before the commit, and after the transaction's rows are visible to others.
unsafe extern "C-unwind" fn at_end_of_transaction(
    event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    use pg_sys::XactEvent::*;
    // First, so that nothing below sees the changed setting.
    match event {
        XACT_EVENT_PRE_COMMIT => return durability::before_commit(),
        XACT_EVENT_COMMIT => durability::after_commit(),
        XACT_EVENT_PREPARE | XACT_EVENT_ABORT => durability::after_end(),
        _ => return,
    }
    with_pending(|pending| {
        match event {
            XACT_EVENT_COMMIT => {
                pending.publish(now());
                pending.notify_worker();
            }
            // COMMIT PREPARED runs later in another session, and publishes what is recorded here (hooks.rs). But the
            // worker can be notified of the other times now.
            XACT_EVENT_PREPARE => {
                let start_by = pending.notices.start_by;
                lanes::note_prepared(pending.prepared_as, pending.lanes(), pending.lease(), start_by);
                pending.notify_worker();
            }
            XACT_EVENT_ABORT => pending.roll_back(0),
            _ => return,
        }
        pending.clear();
    });
}

/// Runs at the end of a subtransaction. Subtransaction ids increase, and all from an aborted one on are aborted with
/// it.
unsafe extern "C-unwind" fn at_end_of_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    subtransaction: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _argument: *mut std::ffi::c_void,
) {
    use pg_sys::SubXactEvent::*;
    match event {
        SUBXACT_EVENT_ABORT_SUB => with_pending(|pending| pending.roll_back(subtransaction)),
        SUBXACT_EVENT_COMMIT_SUB => with_pending(|pending| pending.tally.hand_up(subtransaction, parent)),
        _ => {}
    }
}
