//! How a session tells the worker what its transaction brought.
//!
//! The verbs call these functions while their transaction runs. What they say is kept in this
//! process and passed on by the commit callback, because only then can the worker see the rows.
//! An ERROR in that callback would take the whole server down, so it only moves numbers into
//! atomics. A savepoint that rolls back leaves its announcements standing: a wake-up for nothing.

use crate::shared::{self, NEVER, QueueBits};
use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;
use std::cell::Cell;

/// What the current transaction has to say.
struct Pending {
    registered: Cell<bool>,
    created: Cell<bool>,
    lease: Cell<i64>,
    run: Cell<i64>,
    queues: Cell<QueueBits>,
}

thread_local! {
    static PENDING: Pending = const {
        Pending {
            registered: Cell::new(false),
            created: Cell::new(false),
            lease: Cell::new(NEVER),
            run: Cell::new(NEVER),
            queues: Cell::new([0; 4]),
        }
    };
}

/// `queue_internal.announce_task`: the queue has something to claim, from `run_at` on.
#[pg_extern(sql = false)]
fn announce_task(queue: &str, run_at: TimestampWithTimeZone) {
    with_pending(|pending| {
        let run_at = microseconds(run_at);
        if run_at <= now() {
            let mut queues = pending.queues.get();
            shared::set_bit(&mut queues, shared::queue_bit(queue));
            pending.queues.set(queues);
        } else {
            pending.run.set(pending.run.get().min(run_at));
        }
    });
}

/// `queue_internal.announce_lease`: a lease was granted that ends at `lease_until`.
#[pg_extern(sql = false)]
fn announce_lease(lease_until: TimestampWithTimeZone) {
    with_pending(|pending| pending.lease.set(pending.lease.get().min(microseconds(lease_until))));
}

/// `queue_internal.announce_extension`: this database has the extension from now on.
#[pg_extern(sql = false)]
fn announce_extension() {
    with_pending(|pending| pending.created.set(true));
}

/// The server's clock, in Postgres's microseconds.
pub fn now() -> i64 {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

fn microseconds(time: TimestampWithTimeZone) -> i64 {
    time.into()
}

fn with_pending(change: impl FnOnce(&Pending)) {
    if shared::get().is_none() {
        return;
    }
    PENDING.with(|pending| {
        if !pending.registered.replace(true) {
            // SAFETY: the callback lives as long as the process, since the library is never
            // unloaded, and neither raises nor allocates.
            unsafe { pg_sys::RegisterXactCallback(Some(at_end_of_transaction), std::ptr::null_mut()) };
        }
        change(pending);
    });
}

/// Runs after the transaction's rows are visible to others.
unsafe extern "C-unwind" fn at_end_of_transaction(
    event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    use pg_sys::XactEvent::*;
    let committed = match event {
        // COMMIT PREPARED comes later and elsewhere; then at least the times are known, and the
        // worker's sweep finds the rest.
        XACT_EVENT_COMMIT | XACT_EVENT_PREPARE => true,
        XACT_EVENT_ABORT => false,
        _ => return,
    };
    PENDING.with(|pending| {
        let created = pending.created.replace(false);
        let lease = pending.lease.replace(NEVER);
        let run = pending.run.replace(NEVER);
        let queues = pending.queues.replace([0; 4]);
        let Some(shared) = shared::get().filter(|_| committed) else { return };
        // SAFETY: a plain read of a constant of the process.
        let database_oid = unsafe { pg_sys::MyDatabaseId };
        if created {
            shared.announce_created(database_oid);
        }
        let anything = lease != NEVER || run != NEVER || queues != [0; 4];
        let Some(database) = anything.then(|| shared.database(database_oid)).flatten() else { return };
        if lease != NEVER {
            database.lease_until(lease);
        }
        if run != NEVER {
            database.run_at(run);
        }
        database.pushed(&queues);
    });
}
