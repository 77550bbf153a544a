//! queue.complete_and_claim

use super::Outcome;
use super::arguments::Arguments;
use super::claim::{Places, claim_for};
use super::complete::finish;
use crate::fallback::Reason;

const PLACES: Places = Places { lease: 3, queue: 4, most: 6, worker: 5 };

/// Serves the call, or returns why it falls back to SQL. Once the task is completed, only the claim can fall back.
pub unsafe fn complete_and_claim(arguments: &Arguments) -> Result<Outcome, Reason> {
    // SAFETY: the arguments are where native.sql declares them.
    unsafe {
        let most = PLACES.most(arguments)?;
        finish(arguments)?;
        Ok(then_claim(arguments, PLACES, most))
    }
}

/// Claims up to `most` tasks, natively or in SQL, after others were completed.
pub(super) unsafe fn then_claim(arguments: &Arguments, places: Places, most: usize) -> Outcome {
    point!(FinishClaims);
    // SAFETY: the caller knows where the arguments are.
    unsafe {
        claim_for(arguments, places, most)
            .unwrap_or_else(|reason| Outcome::FallbackClaim(reason, places.raw(arguments)))
    }
}
