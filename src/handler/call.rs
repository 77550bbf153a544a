//! The call of the handler.

use super::verbs::Task;
use crate::ffi::guarded;
use crate::verbs::sql;
use pgrx::prelude::*;
use std::cell::Cell;

/// The number of the timeout that cancels a statement, in PostgreSQL's list of timeouts.
const STATEMENT_TIMEOUT: i32 = 3;
/// Any number of a timeout that is not PostgreSQL's own: it assigns a free one.
const OWN_TIMEOUT: i32 = 16;

thread_local! {
    /// The number of the timeout that ends the process.
    static EXIT_TIMEOUT: Cell<Option<i32>> = const { Cell::new(None) };
}

unsafe extern "C-unwind" {
    // pgrx has no bindings of timeout.h.
    fn enable_timeout_at(id: i32, time: i64);
    fn disable_timeout(id: i32, keep_indicator: bool);
    fn RegisterTimeout(id: i32, handler: unsafe extern "C" fn()) -> i32;
    safe fn raise(signal: i32) -> i32;
}

/// Ends the process as pg_terminate_backend does, which a handler cannot catch.
unsafe extern "C" fn exit() {
    raise(pg_sys::SIGTERM as i32);
}

/// Cancels what the process runs at the deadline of the task, and ends the process at the end of its lease if that was
/// caught. Until `forget_interrupts`: the commit can run code of the role, too.
fn begin_timeouts(task: &Task) {
    // SAFETY: in a process that has connected; the function is async-signal-safe.
    unsafe {
        let exit_timeout = EXIT_TIMEOUT.get().unwrap_or_else(|| RegisterTimeout(OWN_TIMEOUT, exit));
        EXIT_TIMEOUT.set(Some(exit_timeout));
        enable_timeout_at(STATEMENT_TIMEOUT, task.deadline());
        enable_timeout_at(exit_timeout, task.lease_until());
    }
}

/// Calls the handler as the current role, under the timeouts of the task. Returns none for null.
///
/// # Safety
/// In a transaction with a snapshot, before `forget_interrupts`; the function is callable.
pub unsafe fn call(function: pg_sys::Oid, task: &Task) -> Option<pg_sys::Datum> {
    // SAFETY: the caller's promise.
    unsafe {
        // Looked up for each call, as by a query: it may have been replaced.
        let mut info = pg_sys::FmgrInfo::default();
        pg_sys::fmgr_info(function, &mut info);
        begin_timeouts(task);
        // In case the lease has already ended, or the interrupt came before the call.
        pgrx::check_for_interrupts!();
        let argument = pg_sys::NullableDatum { value: task.datum(), isnull: false };
        guarded(|| sql::call(&mut info, &[argument]))
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

/// Ends the timeouts, and forgets an interrupt that came too late for the task that it was meant for.
pub fn forget_interrupts() {
    // SAFETY: outside a transaction; a flag of this process.
    unsafe {
        disable_timeout(STATEMENT_TIMEOUT, false);
        EXIT_TIMEOUT.get().into_iter().for_each(|exit| disable_timeout(exit, false));
        pg_sys::QueryCancelPending = 0;
    }
}
