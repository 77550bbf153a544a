//! Prevents DROP EXTENSION during a transaction of the worker or a check of queue.wait().
//!
//! DROP EXTENSION locks the extension before anything else. So a session that has locked it first cannot deadlock with
//! a drop. But other commands take that lock too: ALTER FUNCTION ... DEPENDS ON EXTENSION holds it to the end of its
//! transaction. If the library is preloaded, such commands are refused unless the user owns the extension
//! (hooks/refusals.rs). If the lock is not released in the time that a drop needs to lock the other objects, this
//! session locks queue.tasks instead, which other roles cannot prevent. Then the session and a later drop may deadlock,
//! which a timeout ends.

use crate::process::{self, Sleep};
use pgrx::pg_sys;
use std::cell::Cell;
use std::time::{Duration, Instant};

const SHARE: pg_sys::LOCKMODE = pg_sys::AccessShareLock as pg_sys::LOCKMODE;

/// The time in which a drop that has to wait for no lock locks all objects of the extension.
const DROP_LOCKS: Duration = Duration::from_millis(300);
/// How long this process does not wait again after the lock was not released.
const GIVE_UP_FOR: Duration = Duration::from_secs(30);

thread_local! {
    static GAVE_UP_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The OID of the extension in this database, or InvalidOid. In a transaction.
pub fn oid() -> pg_sys::Oid {
    // SAFETY: a catalog lookup within a transaction.
    unsafe { pg_sys::get_extension_oid(c"queue_ext".as_ptr(), true) }
}

/// Locks the extension until the end of the transaction; false if another session keeps it locked. Unlike `hold`, it never
/// locks queue.tasks instead, so that a drop cannot deadlock with a process that has no lock_timeout.
pub fn try_hold(extension: pg_sys::Oid) -> bool {
    lock_within(extension, DROP_LOCKS)
}

/// Waits for a drop at the beginning of a transaction, which has no other lock. Returns whether the extension still exists.
pub fn hold_first() -> bool {
    let extension = oid();
    if extension == pg_sys::InvalidOid {
        return false;
    }
    // SAFETY: a lock of this transaction; it also reads the invalidation messages of a drop.
    unsafe { pg_sys::LockDatabaseObject(pg_sys::ExtensionRelationId, extension, 0, SHARE) };
    oid() == extension
}

fn lock_within(extension: pg_sys::Oid, time: Duration) -> bool {
    let started = Instant::now();
    loop {
        // SAFETY: a lock of this transaction.
        if unsafe { pg_sys::ConditionalLockDatabaseObject(pg_sys::ExtensionRelationId, extension, 0, SHARE) }
        {
            return true;
        }
        if started.elapsed() >= time {
            return false;
        }
        process::sleep(Sleep::Leave, Duration::from_millis(5));
    }
}

/// Locks the extension until the end of the transaction. Returns false if it is being dropped; with `wait` it waits
/// for the drop instead. The caller has to check whether the extension still exists.
pub fn hold(extension: pg_sys::Oid, wait: bool) -> bool {
    let gave_up = GAVE_UP_AT.get().is_some_and(|since| since.elapsed() < GIVE_UP_FOR);
    if lock_within(extension, if gave_up { Duration::ZERO } else { DROP_LOCKS }) {
        return true;
    }
    if !gave_up {
        GAVE_UP_AT.set(Some(Instant::now()));
    }
    // SAFETY: a lock of this transaction, and catalog lookups.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"queue".as_ptr(), true);
        let tasks = pg_sys::get_relname_relid(c"tasks".as_ptr(), schema);
        if wait && tasks != pg_sys::InvalidOid {
            pg_sys::LockRelationOid(tasks, SHARE);
            return true;
        }
        tasks != pg_sys::InvalidOid && pg_sys::ConditionalLockRelationOid(tasks, SHARE)
    }
}
