//! Transactions in which the extension is known to be there, and to stay.

use super::owner;
use crate::process;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport, ErrorReportWithLevel};
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;

/// What a look at the extension found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    /// It is here.
    Yes,
    /// It is being created, altered or dropped by somebody right now.
    Locked,
    /// It is not here.
    No,
    /// The extension is here, but the step failed: the log says why, and its transaction was rolled back.
    Failed,
}

/// What became of a step of the worker.
pub struct Step<R> {
    /// Whether the step could run.
    pub installed: Installed,
    /// What it returned, if it ran.
    pub result: Option<R>,
}

/// Runs `body` in a transaction, as the owner of the tables, unless the extension is absent or about to go. An ERROR
/// rolls it back, and with `report` it is logged. The lock on the extension is taken first, and DROP EXTENSION takes it
/// first too: so neither can hold what the other needs next, and DROP waits for one short transaction at most. The
/// worker waits for the lock for its lock_timeout, since anybody can hold it for an instant, again and again: DROP
/// EXTENSION takes it before it checks for ownership.
pub fn attempt<R>(activity: &CStr, report: bool, body: impl FnOnce() -> R) -> Step<R> {
    let locked = AssertUnwindSafe(Cell::new(false));
    PgTryBuilder::new(AssertUnwindSafe(|| transaction(activity, &locked, body)))
        .catch_others(|error| {
            process::roll_back();
            owner::become_itself();
            if !locked.get() && report_of(&error).sql_error_code() == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE {
                return Step { installed: Installed::Locked, result: None };
            }
            if report {
                warn(activity, &error);
            }
            Step { installed: Installed::Failed, result: None }
        })
        .execute()
}

fn transaction<R>(activity: &CStr, locked: &Cell<bool>, body: impl FnOnce() -> R) -> Step<R> {
    process::report(Some(activity));
    let step = process::transaction(|| match lock() {
        Installed::Yes => {
            locked.set(true);
            owner::become_owner();
            Step { installed: Installed::Yes, result: Some(body()) }
        }
        installed => Step { installed, result: None },
    });
    owner::become_itself();
    step
}

fn report_of(error: &CaughtError) -> &ErrorReportWithLevel {
    let (CaughtError::PostgresError(error)
    | CaughtError::ErrorReport(error)
    | CaughtError::RustPanic { ereport: error, .. }) = error;
    error
}

fn warn(activity: &CStr, error: &CaughtError) {
    let error = report_of(error);
    let message = format!("{} failed: {}", activity.to_string_lossy(), error.message());
    // Without its detail, which may show a row.
    let hint = error.hint().unwrap_or("The background worker tries again, after pauses of up to a minute.");
    ErrorReport::new(error.sql_error_code(), message, "queue_ext").set_hint(hint).report(PgLogLevel::WARNING);
}

fn lock() -> Installed {
    let oid = extension_oid();
    if oid == pg_sys::InvalidOid {
        return Installed::No;
    }
    // SAFETY: a lock of this transaction on an object of this database.
    unsafe {
        let mode = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        pg_sys::LockDatabaseObject(pg_sys::ExtensionRelationId, oid, 0, mode);
    }
    if extension_oid() == oid { Installed::Yes } else { Installed::No }
}

fn extension_oid() -> pg_sys::Oid {
    // SAFETY: a catalog lookup within a transaction.
    unsafe { pg_sys::get_extension_oid(c"queue_ext".as_ptr(), true) }
}
