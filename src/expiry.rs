//! Ending the attempts whose lease ran out, as a lane has told.

use crate::clock::now;
use crate::transaction;
use pgrx::prelude::*;

/// A task that somebody else has locked is looked at again after so long: whoever has it may have it for
/// long, as a prepared transaction may.
const AGAIN: i64 = 100_000;
/// And one that cannot be ended, until whoever reads the log has seen to it.
const LATER: i64 = 60_000_000;

/// Has the core end those of the attempts whose lease ran out, and returns how many. The lane with this
/// hash knows their leases no more; it learns again of those that could not be ended.
pub fn end(lane: u64, ids: &[i64]) -> Result<u64, pgrx::spi::Error> {
    transaction::ending(lane, ids);
    point!(ExpiryNoted);
    let query = "SELECT expired, locked, failed FROM queue_internal.expire($1)";
    let (expired, locked, failed) = Spi::connect_mut(|client| {
        let found = client.update(query, Some(1), &[ids.to_vec().into()])?;
        found.first().get_three::<i64, Vec<i64>, Vec<i64>>()
    })?;
    point!(ExpiryEnded);
    for (ids, pause) in [(locked, AGAIN), (failed, LATER)] {
        let again = now() + pause;
        ids.unwrap_or_default().into_iter().for_each(|id| transaction::locked(lane, id, again));
    }
    Ok(expired.unwrap_or(0).unsigned_abs())
}
