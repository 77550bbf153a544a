//! The worker is connected as a superuser, but runs its steps as the owner of the tables. A process that runs a handler is
//! connected as another role, and reads the tables as their owner.

use crate::catalog;
use pgrx::prelude::*;

/// Switches to the owner of queue.tasks, without the right to SET ROLE.
pub fn become_owner() {
    let owner = |row: &pg_sys::FormData_pg_class| row.relowner;
    // SAFETY: catalog lookups in a transaction; the layout is that of the cache.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"queue".as_ptr(), false);
        let tasks = pg_sys::get_relname_relid(c"tasks".as_ptr(), schema);
        let owner = catalog::row(pg_sys::SysCacheIdentifier::RELOID, tasks, owner);
        let owner = owner.unwrap_or_else(|| error!("queue.tasks is gone"));
        pg_sys::SetUserIdAndSecContext(owner, pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32);
    }
}

/// Switches back to the role of the session, after the end of the transaction, which runs deferred triggers.
pub fn become_itself() {
    // SAFETY: outside a transaction.
    unsafe { pg_sys::SetUserIdAndSecContext(pg_sys::GetSessionUserId(), 0) };
}

/// Runs `body` as the owner, in a transaction of another role. After an ERROR, the end of the transaction restores the
/// role.
pub fn as_owner<R>(body: impl FnOnce() -> R) -> R {
    let (mut user, mut context) = (pg_sys::InvalidOid, 0);
    // SAFETY: in a transaction; sets two variables of the process, and restores them.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        become_owner();
        let result = body();
        pg_sys::SetUserIdAndSecContext(user, context);
        result
    }
}
