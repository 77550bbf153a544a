//! queue.complete_many_and_claim

use super::Outcome;
use super::arguments::Arguments;
use super::claim::Places;
use super::complete_and_claim::then_claim;
use super::complete_many::finish_all;
use crate::fallback::Reason;

const PLACES: Places = Places { lease: 3, queue: 4, most: 5, worker: 6 };

/// Serves the call, or returns why it falls back to SQL. Once the tasks are completed, only the claim can fall back.
pub unsafe fn complete_many_and_claim(arguments: &Arguments) -> Result<Outcome, Reason> {
    // SAFETY: the arguments are where native.sql declares them.
    unsafe {
        let most = PLACES.most(arguments)?;
        finish_all(arguments)?;
        Ok(then_claim(arguments, PLACES, most))
    }
}
