//! Ending the attempts whose lease ran out, as a lane has told.

use crate::clock::now;
use crate::transaction;
use pgrx::prelude::*;

/// A task that somebody else has locked is looked at again after as long as its lease has been over, within these bounds:
/// whoever has it may have it for long, as a prepared transaction may.
const AGAIN: i64 = 100_000;
const AGAIN_AT_LAST: i64 = 5_000_000;
/// And one that cannot be ended, until whoever reads the log has seen to it.
const LATER: i64 = 60_000_000;

/// Has the core end those of the attempts whose lease ran out, and returns how many. The lane with this
/// hash knows their leases no more; it learns again of those that go on.
pub fn end(lane: u64, ids: &[i64]) -> Result<u64, pgrx::spi::Error> {
    transaction::ending(lane, ids);
    point!(ExpiryNoted);
    let query = "SELECT expired, running, lease_ends, failed FROM queue_internal.expire($1)";
    let (expired, running, lease_ends, failed) = Spi::connect_mut(|client| {
        let row = client.update(query, Some(1), &[ids.to_vec().into()])?.first();
        let ends = row.get::<Vec<TimestampWithTimeZone>>(3)?;
        Ok::<_, pgrx::spi::Error>((
            row.get::<i64>(1)?,
            row.get::<Vec<i64>>(2)?,
            ends,
            row.get::<Vec<i64>>(4)?,
        ))
    })?;
    point!(ExpiryEnded);
    let moment = now();
    failed.into_iter().flatten().for_each(|id| transaction::runs_on(lane, id, moment + LATER));
    // One whose lease is over is locked by somebody else. The others were extended, or claimed again: that was told
    // to the lane, but it may have forgotten it since, because it was told to look now.
    for (id, end) in running.into_iter().flatten().zip(lease_ends.into_iter().flatten().map(i64::from)) {
        transaction::runs_on(
            lane,
            id,
            if end <= moment { moment + (moment - end).clamp(AGAIN, AGAIN_AT_LAST) } else { end },
        );
    }
    Ok(expired.unwrap_or(0).unsigned_abs())
}
