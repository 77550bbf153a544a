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
        point!(FinishClaims);
        Ok(claim_for(arguments, PLACES, most)
            .unwrap_or_else(|reason| Outcome::FallbackClaim(reason, PLACES.raw(arguments))))
    }
}
