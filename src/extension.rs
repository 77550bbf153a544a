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
/// The pause of a process of the extension while another session holds a lock on it.
pub const RETRY_LOCKED: Duration = Duration::from_millis(200);

thread_local! {
    static GAVE_UP_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The OID of the extension in this database, or InvalidOid. In a transaction.
pub fn oid() -> pg_sys::Oid {
    // SAFETY: a catalog lookup within a transaction.
    unsafe { pg_sys::get_extension_oid(c"queue_ext".as_ptr(), true) }
}

/// Whether the extension is installed, and cannot be dropped before the end of the transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    Yes,
    /// Another session is creating, altering or dropping it.
    Locked,
    No,
    /// It is installed, but the step of the worker failed: the error is in the log, and the transaction was rolled back.
    Failed,
}

/// Locks the extension, or queue.tasks if another session keeps the extension locked. With `wait` it waits for the
/// lock on queue.tasks.
pub fn hold(wait: bool) -> Installed {
    hold_by(|extension| {
        let gave_up = GAVE_UP_AT.get().is_some_and(|since| since.elapsed() < GIVE_UP_FOR);
        if lock_within(extension, if gave_up { Duration::ZERO } else { DROP_LOCKS }) {
            return true;
        }
        if !gave_up {
            GAVE_UP_AT.set(Some(Instant::now()));
        }
        lock_tasks(wait)
    })
}

/// Locks the extension. Never locks queue.tasks instead, so a process that has no lock_timeout cannot deadlock with a drop.
pub fn try_hold() -> Installed {
    hold_by(|extension| lock_within(extension, DROP_LOCKS))
}

/// Locks the extension, however long that takes. For the beginning of a transaction, which has no other lock.
pub fn hold_first() -> Installed {
    hold_by(|extension| {
        // SAFETY: a lock of this transaction.
        unsafe { pg_sys::LockDatabaseObject(pg_sys::ExtensionRelationId, extension, 0, SHARE) };
        true
    })
}

/// Locks the extension with `lock`, which also reads the invalidation messages of a drop, and checks whether it was dropped.
fn hold_by(lock: impl FnOnce(pg_sys::Oid) -> bool) -> Installed {
    let extension = oid();
    if extension == pg_sys::InvalidOid {
        return Installed::No;
    }
    match (lock(extension), oid() == extension) {
        (true, true) => Installed::Yes,
        (true, false) => Installed::No,
        (false, _) => Installed::Locked,
    }
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

fn lock_tasks(wait: bool) -> bool {
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
