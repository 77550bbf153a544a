//! Which lanes prepared transactions concern, so that their ends invalidate only these.
//!
//! COMMIT PREPARED and ROLLBACK PREPARED run in any session, which does not know what the transaction changed. So
//! PREPARE TRANSACTION records its lanes here. A session that has ended a prepared transaction invalidates the lanes of
//! all recorded transactions of its database that are no longer in progress. It does not go by the name alone, because
//! another transaction may have been prepared under the same name since.
//!
//! A transaction that is not recorded, as after a restart, may have changed tasks of any queue: its end invalidates all
//! lanes of the database.
//!
//! The worker has to scan for the leases and the start deadlines as well. They may have passed while nobody could see
//! them.

use super::directory::with_prepared;
use super::prepared::{Prepared, entries};
use super::{LaneSet, invalidate, invalidate_counters};
use crate::clock::now;
use crate::shared::{self, AT_ONCE, NEVER};
use pgrx::prelude::*;

/// The current transaction, which has been prepared under the name with this hash and cannot have ended yet, concerns
/// these lanes. The first of its leases ends at `lease`, and its first start deadline is `start_by`.
pub fn note_prepared(name: u64, lanes: LaneSet, lease: i64, start_by: i64) {
    // SAFETY: reads the state of the transaction, which has its id until the callbacks are done, and a constant.
    let (database, transaction) = unsafe { (pg_sys::MyDatabaseId, pg_sys::GetTopTransactionIdIfAny()) };
    let (database, transaction) = (database.to_u32(), transaction.into());
    let new = Prepared { name, database, transaction, open: true, lanes, lease, start_by };
    with_prepared(|entries| {
        // An entry that was never used, or the oldest one. An open one only if there is no other.
        let place = entries.iter_mut().min_by_key(|entry| (entry.open, entry.transaction));
        place.into_iter().for_each(|place| *place = new);
    });
}

/// The id of the prepared transaction whose name has this hash, 0 if it is not recorded.
#[pg_guard]
pub extern "C-unwind" fn find_prepared(name: u64) -> u32 {
    // SAFETY: a plain read of a constant of the process.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    let found = with_prepared(|entries| {
        let mut known = entries.iter().filter(|entry| entry.open && entry.database == database);
        known.find(|entry| entry.name == name).map(|entry| entry.transaction)
    });
    found.flatten().unwrap_or(0)
}

/// This session has ended a prepared transaction whose name has this hash. `before` is what `find_prepared` returned
/// before that.
#[pg_guard]
pub extern "C-unwind" fn end_prepared(name: u64, before: u32) {
    // SAFETY: a plain read of a constant of the process.
    let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
    let is_open = |entry: &Prepared| entry.open && entry.database == database;
    let mut ended = Vec::with_capacity(entries());
    with_prepared(|entries| {
        ended.extend(entries.iter().copied().enumerate().filter(|(_, entry)| is_open(entry)));
    });
    // SAFETY: reads the shared state of transactions.
    ended.retain(|(_, entry)| !unsafe { pg_sys::TransactionIdIsInProgress(entry.transaction.into()) });
    let mut lanes = LaneSet::NONE;
    ended.iter().for_each(|(_, entry)| lanes.insert_all(&entry.lanes));
    let known = ended.iter().any(|(_, entry)| entry.name == name)
        // Or another session has found that it has ended, and has invalidated its lanes.
        || before != 0
            && with_prepared(|entries| {
                let mut closed = entries.iter().filter(|entry| !entry.open && entry.database == database);
                closed.any(|entry| entry.name == name && entry.transaction == before)
            }) == Some(true);
    let earliest = |time: fn(&Prepared) -> i64| ended.iter().map(|(_, entry)| time(entry)).min();
    let lease = earliest(|entry| entry.lease).unwrap_or(NEVER);
    let start_by = earliest(|entry| entry.start_by).unwrap_or(NEVER);
    let (lanes, lease, start_by) =
        if known { (lanes, lease, start_by) } else { (LaneSet::ALL, now(), AT_ONCE) };
    invalidate(&lanes);
    invalidate_counters(&lanes);
    shared::leases_until(database.into(), lease);
    shared::start_deadline(database.into(), start_by);
    // Not earlier: a session that finds an entry closed does nothing more.
    with_prepared(|entries| {
        for (index, entry) in &ended {
            entries[*index].open &= entries[*index].transaction != entry.transaction;
        }
    });
}
