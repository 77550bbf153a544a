//! queue.complete_and_claim

use super::Outcome;
use super::arguments::Arguments;
use super::claim::{Places, claim_for};
use super::complete::finish;
use crate::fallback::Reason;
use pgrx::prelude::*;

const PLACES: Places = Places { lease: 3, queue: 4, worker: 5 };

/// Serves the call, or returns why it falls back to SQL. Once the task is completed, only the claim can fall back.
pub unsafe fn complete_and_claim(arguments: &Arguments) -> Result<Outcome, Reason> {
    // SAFETY: the arguments are where native.sql declares them.
    unsafe {
        finish(arguments)?;
        point!(FinishClaims);
        Ok(claim_for(arguments, PLACES, 1).unwrap_or_else(|reason| {
            let one = pg_sys::NullableDatum { value: pg_sys::Datum::from(1), isnull: false };
            let [lease, queue, worker] = PLACES.raw(arguments);
            Outcome::FallbackClaim(reason, [lease, queue, one, worker])
        }))
    }
}
