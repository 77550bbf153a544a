//! Ending the attempts whose lease ran out, as a lane has told.

use crate::clock::now;
use crate::transaction;
use pgrx::prelude::*;

/// A task that somebody else has locked is looked at again after so long: whoever has it may have it for
/// long, as a prepared transaction may.
const AGAIN: i64 = 100_000;

/// Has the core end those of the attempts whose lease ran out, and returns how many. The lane with this
/// hash knows their leases no more; it learns again of those that go on.
pub fn end(lane: u64, ids: &[i64]) -> Result<u64, pgrx::spi::Error> {
    transaction::ending(lane, ids);
    point!(ExpiryNoted);
    let query = "SELECT expired, running, lease_ends FROM queue_internal.expire($1)";
    let (expired, running, lease_ends) = Spi::connect_mut(|client| {
        let row = client.update(query, Some(1), &[ids.to_vec().into()])?.first();
        row.get_three::<i64, Vec<i64>, Vec<TimestampWithTimeZone>>()
    })?;
    point!(ExpiryEnded);
    // One whose lease is over is locked by somebody else. The others were extended, or claimed again: that was told
    // to the lane, but it may have forgotten it since, because it was told to look now.
    let moment = now();
    for (id, end) in running.into_iter().flatten().zip(lease_ends.into_iter().flatten().map(i64::from)) {
        transaction::runs_on(lane, id, if end <= moment { moment + AGAIN } else { end });
    }
    Ok(expired.unwrap_or(0).unsigned_abs())
}
