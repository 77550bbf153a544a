//! Transactions in which the extension is installed and cannot be dropped.

use super::owner;
use crate::extension::{self, Installed};
use crate::process;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::prelude::*;
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;

/// The result of a step of the worker.
pub struct Step<R> {
    /// Whether the step ran.
    pub installed: Installed,
    /// What it returned, if it ran.
    pub result: Option<R>,
}

/// Runs `body` in a transaction, as the owner of the tables, unless the extension is absent or locked. An ERROR rolls
/// the transaction back and is logged if `report` is set. DROP EXTENSION waits for one short transaction at most.
pub fn attempt<R>(activity: &CStr, report: bool, body: impl FnOnce() -> R) -> Step<R> {
    PgTryBuilder::new(AssertUnwindSafe(|| transaction(activity, body)))
        .catch_others(|error| {
            process::roll_back();
            owner::become_itself();
            if report {
                warn(activity, &error);
            }
            Step { installed: Installed::Failed, result: None }
        })
        .execute()
}

fn transaction<R>(activity: &CStr, body: impl FnOnce() -> R) -> Step<R> {
    process::report(Some(activity));
    let step = process::transaction(|| match extension::hold(false) {
        Installed::Yes => {
            owner::become_owner();
            Step { installed: Installed::Yes, result: Some(body()) }
        }
        installed => Step { installed, result: None },
    });
    owner::become_itself();
    step
}

fn warn(activity: &CStr, error: &CaughtError) {
    let (CaughtError::PostgresError(error)
    | CaughtError::ErrorReport(error)
    | CaughtError::RustPanic { ereport: error, .. }) = error;
    let message = format!("{} failed: {}", activity.to_string_lossy(), error.message());
    // Without the detail, which may contain a row.
    let hint = error.hint().unwrap_or("The background worker repeats it, after pauses of up to a minute.");
    ErrorReport::new(error.sql_error_code(), message, "queue_ext").set_hint(hint).report(PgLogLevel::WARNING);
}
