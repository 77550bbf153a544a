//! queue.complete

use super::Outcome;
use super::arguments::Arguments;
use super::finish::{Finisher, Step};
use crate::fallback::Reason;
use pgrx::prelude::*;

/// Serves the call, or returns why it falls back to SQL.
pub unsafe fn complete(arguments: &Arguments) -> Result<Outcome, Reason> {
    // SAFETY: the arguments are where native.sql declares them.
    unsafe {
        finish(arguments)?;
        Ok(Outcome::Served(pg_sys::Datum::from(0)))
    }
}

/// Finishes the task that the first two arguments name.
pub(super) unsafe fn finish(arguments: &Arguments) -> Result<(), Reason> {
    let id = arguments.needed(0)?.value() as i64;
    let token = arguments.needed(1)?.value() as i64;
    // SAFETY: in a transaction.
    unsafe {
        let mut finisher = Finisher::open()?;
        let result = finisher.finish(id, token, arguments.get(2));
        finisher.flush();
        finisher.close();
        match result {
            Step::Done => Ok(()),
            Step::Fallback(reason) => Err(reason),
            // The SQL implementation raises the right error.
            Step::NotRunning | Step::Changed => Err(Reason::Lease),
        }
    }
}
