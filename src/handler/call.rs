//! The call of the handler.

use crate::ffi::guarded;
use crate::verbs::sql;
use pgrx::prelude::*;

/// The number of the timeout that cancels a statement, in PostgreSQL's list of timeouts.
const STATEMENT_TIMEOUT: i32 = 3;

unsafe extern "C-unwind" {
    // pgrx has no bindings of timeout.h.
    fn enable_timeout_at(id: i32, time: i64);
    fn disable_timeout(id: i32, keep_indicator: bool);
}

/// Calls the handler as the current role, and cancels it at the deadline. Returns none for null.
///
/// # Safety
/// In a transaction with a snapshot; the function is callable, and the task is a queue.claimed_task.
pub unsafe fn call(function: pg_sys::Oid, task: pg_sys::Datum, deadline: i64) -> Option<pg_sys::Datum> {
    // SAFETY: the caller's promise. An ERROR leaves the timeout to `forget_interrupts`.
    unsafe {
        // Looked up for each call, as by a query: it may have been replaced.
        let mut info = pg_sys::FmgrInfo::default();
        pg_sys::fmgr_info(function, &mut info);
        enable_timeout_at(STATEMENT_TIMEOUT, deadline);
        // In case the lease has already ended, or the interrupt came before the call.
        pgrx::check_for_interrupts!();
        let argument = pg_sys::NullableDatum { value: task, isnull: false };
        let result = guarded(|| sql::call(&mut info, &[argument]));
        disable_timeout(STATEMENT_TIMEOUT, false);
        result
    }
}

/// Whether the function exists and the current role may execute it, which the executor checks in a query.
pub fn is_callable(function: pg_sys::Oid) -> bool {
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        let (user, none) = (pg_sys::GetUserId(), pg_sys::Datum::from(0));
        let execute = pg_sys::ACL_EXECUTE as _;
        let exists = pg_sys::SearchSysCacheExists(
            pg_sys::SysCacheIdentifier::PROCOID as i32,
            function.into(),
            none,
            none,
            none,
        );
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let allowed = || pg_sys::pg_proc_aclcheck(function, user, execute);
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let allowed = || pg_sys::object_aclcheck(pg_sys::ProcedureRelationId, function, user, execute);
        exists && allowed() == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Ends the timeout, and forgets an interrupt that came too late for the task that it was meant for.
pub fn forget_interrupts() {
    // SAFETY: outside a transaction; a flag of this process.
    unsafe {
        disable_timeout(STATEMENT_TIMEOUT, false);
        pg_sys::QueryCancelPending = 0;
    }
}
