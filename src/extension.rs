//! Keeps the extension from being dropped while a transaction of the worker, or a look of queue.wait(), goes on.
//!
//! DROP EXTENSION locks the extension before anything else, so whoever has a lock on it first never waits for a drop that
//! waits in turn for them. But anybody can hold that lock against the others: ALTER FUNCTION ... DEPENDS ON EXTENSION keeps
//! it to the end of its transaction and asks for no right on the extension, and DROP EXTENSION takes it before it checks for
//! ownership. Where it is not free, a lock on queue.tasks takes its place, which DROP EXTENSION needs later on and no
//! stranger can hold off. Such a transaction and a drop may then wait for each other's tables, which a timeout ends.

use pgrx::pg_sys;

const SHARE: pg_sys::LOCKMODE = pg_sys::AccessShareLock as pg_sys::LOCKMODE;

/// The extension of this database, or InvalidOid. In a transaction.
pub fn oid() -> pg_sys::Oid {
    // SAFETY: a catalog lookup within a transaction.
    unsafe { pg_sys::get_extension_oid(c"queue_ext".as_ptr(), true) }
}

/// Keeps the extension until the transaction ends, if it is not being dropped now; without "patient" it does not wait to
/// find that out, and returns false. What was dropped meanwhile is for the caller to see.
pub fn hold(extension: pg_sys::Oid, patient: bool) -> bool {
    // SAFETY: locks of this transaction, and catalog lookups.
    unsafe {
        if pg_sys::ConditionalLockDatabaseObject(pg_sys::ExtensionRelationId, extension, 0, SHARE) {
            return true;
        }
        let tasks = pg_sys::get_relname_relid(
            c"tasks".as_ptr(),
            pg_sys::get_namespace_oid(c"queue".as_ptr(), true),
        );
        if patient && tasks != pg_sys::InvalidOid {
            pg_sys::LockRelationOid(tasks, SHARE);
            return true;
        }
        tasks != pg_sys::InvalidOid && pg_sys::ConditionalLockRelationOid(tasks, SHARE)
    }
}
