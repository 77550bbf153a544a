//! Ends the attempts whose lease has expired according to a lane.

use crate::clock::now;
use crate::transaction;
use pgrx::prelude::*;

/// If another transaction has the task locked, it is checked again after as long as its lease has been expired, within
/// these bounds, because a prepared transaction may hold the lock for long.
const LOCKED_LEAST: i64 = 100_000;
const LOCKED_MOST: i64 = 5_000_000;
/// The pause before an attempt that cannot be ended is tried again.
const FAILED: i64 = 60_000_000;

/// Ends those of the attempts whose lease has expired, in SQL, and returns how many. The lane with this hash has
/// dropped their leases; it gets back those that still run.
pub fn end(lane: u64, ids: &[i64]) -> Result<u64, pgrx::spi::Error> {
    transaction::ending(lane, ids);
    point!(ExpiryNoted);
    let query = "SELECT expired, running, lease_ends, failed, rest FROM queue_internal.expire($1, '50 ms')";
    let (expired, running, lease_ends, failed, rest) = Spi::connect_mut(|client| {
        let row = client.update(query, Some(1), &[ids.to_vec().into()])?.first();
        let ends = row.get::<Vec<TimestampWithTimeZone>>(3)?;
        Ok::<_, pgrx::spi::Error>((
            row.get::<i64>(1)?,
            row.get::<Vec<i64>>(2)?,
            ends,
            row.get::<Vec<i64>>(4)?,
            row.get::<Vec<i64>>(5)?,
        ))
    })?;
    point!(ExpiryEnded);
    let moment = now();
    rest.into_iter().flatten().for_each(|id| transaction::runs_on(lane, id, moment));
    failed.into_iter().flatten().for_each(|id| transaction::runs_on(lane, id, moment + FAILED));
    // A task whose lease has expired is locked by another transaction. The others were extended or claimed again. That
    // was published to the lane, which may have dropped it since.
    for (id, end) in running.into_iter().flatten().zip(lease_ends.into_iter().flatten().map(i64::from)) {
        transaction::runs_on(
            lane,
            id,
            if end <= moment { moment + (moment - end).clamp(LOCKED_LEAST, LOCKED_MOST) } else { end },
        );
    }
    Ok(expired.unwrap_or(0).unsigned_abs())
}
