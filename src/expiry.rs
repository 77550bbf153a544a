//! Leases that ended before their tasks.

use crate::clock::now;
use crate::lanes::{self, Lease};
use crate::shared;
use crate::transaction;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;

/// How soon to look again, at the earliest, for a task that runs on: somebody else may have locked it.
const RETRY: i64 = 100_000;

/// Ends the attempts of those of the tasks, just taken from the leases of the lane with this hash, whose
/// lease ran out; returns how many. If this is rolled back, the lane has them again.
pub fn end(lane: u64, ids: &[i64]) -> u64 {
    transaction::expiring(lane, ids);
    let query = "SELECT expired, running, ends FROM queue_internal.expire($1)";
    let result = Spi::connect_mut(|client| {
        let row = client.update(query, Some(1), &[ids.to_vec().into()])?.first();
        let ends = row.get::<Vec<TimestampWithTimeZone>>(3)?;
        pgrx::spi::Result::Ok((row.get::<i64>(1)?, row.get::<Vec<i64>>(2)?, ends))
    });
    let (expired, running, ends) = match result {
        Ok((expired, running, ends)) => (expired.unwrap_or(0), running.unwrap_or_default(), ends.unwrap_or_default()),
        Err(error) => error!("leases could not be ended: {error}"),
    };
    let soon = now() + RETRY;
    let ends = ends.into_iter().map(|end| i64::from(end).max(soon));
    let left: Vec<Lease> = running.into_iter().zip(ends).map(|(id, until)| Lease { id, until }).collect();
    if let Some(next) = left.iter().map(|lease| lease.until).min() {
        lanes::with(lane, |slot| left.iter().for_each(|lease| slot.lane.leases.take_back(*lease)));
        // SAFETY: a plain read of a constant of the process.
        let database = shared::get().and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }));
        database.into_iter().for_each(|database| database.lane_time(next));
    }
    expired.unsigned_abs()
}
