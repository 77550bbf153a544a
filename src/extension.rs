//! Keeps the extension from being dropped while a transaction of the worker, or a look of queue.wait(), goes on.
//!
//! DROP EXTENSION locks the extension before anything else, so a session that locked it first never waits for a drop that
//! waits for that session. But others can hold that lock, too: ALTER FUNCTION ... DEPENDS ON EXTENSION keeps it to the end of
//! its transaction. Of those who do not own the extension, commands that take it are refused (hooks/refusals.rs), unless the
//! library is not preloaded. Where the lock does not come free in the time that a drop takes to lock the rest, a lock on
//! queue.tasks takes its place, which no stranger can hold off. Such a transaction and a drop that comes then may wait for
//! each other's tables, which a timeout ends.

use crate::process::{self, Sleep};
use pgrx::pg_sys;
use std::cell::Cell;
use std::time::{Duration, Instant};

const SHARE: pg_sys::LOCKMODE = pg_sys::AccessShareLock as pg_sys::LOCKMODE;

/// In this time a drop that waits for nobody has locked all that belongs to the extension.
const DROP_LOCKS: Duration = Duration::from_millis(300);
/// For how long this process does not wait again for a lock that did not come free.
const CROWDED: Duration = Duration::from_secs(30);

thread_local! {
    static CROWDED_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The extension of this database, or InvalidOid. In a transaction.
pub fn oid() -> pg_sys::Oid {
    // SAFETY: a catalog lookup within a transaction.
    unsafe { pg_sys::get_extension_oid(c"queue_ext".as_ptr(), true) }
}

/// Keeps the extension until the transaction ends. False if it is being dropped now; "patient" waits for the end of that.
/// What was dropped meanwhile is for the caller to see.
pub fn hold(extension: pg_sys::Oid, patient: bool) -> bool {
    let crowded = CROWDED_SINCE.get().is_some_and(|since| since.elapsed() < CROWDED);
    let started = Instant::now();
    loop {
        // SAFETY: a lock of this transaction.
        if unsafe { pg_sys::ConditionalLockDatabaseObject(pg_sys::ExtensionRelationId, extension, 0, SHARE) }
        {
            return true;
        }
        if crowded || started.elapsed() >= DROP_LOCKS {
            break;
        }
        process::sleep(Sleep::Leave, Duration::from_millis(5));
    }
    if !crowded {
        CROWDED_SINCE.set(Some(Instant::now()));
    }
    // SAFETY: a lock of this transaction, and catalog lookups.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"queue".as_ptr(), true);
        let tasks = pg_sys::get_relname_relid(c"tasks".as_ptr(), schema);
        if patient && tasks != pg_sys::InvalidOid {
            pg_sys::LockRelationOid(tasks, SHARE);
            return true;
        }
        tasks != pg_sys::InvalidOid && pg_sys::ConditionalLockRelationOid(tasks, SHARE)
    }
}
