//! The worker is connected as a superuser, but runs its steps as the owner of the tables. A process that runs a handler is
//! connected as another role, and reads the tables as their owner.

use pgrx::prelude::*;

/// Switches to the owner of queue.tasks, without the right to SET ROLE.
pub fn become_owner() {
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"queue".as_ptr(), false);
        let tasks = pg_sys::get_relname_relid(c"tasks".as_ptr(), schema);
        let relation = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as i32, tasks.into());
        if relation.is_null() {
            error!("queue.tasks is gone");
        }
        let owner = (*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_class>(relation)).relowner;
        pg_sys::ReleaseSysCache(relation);
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
