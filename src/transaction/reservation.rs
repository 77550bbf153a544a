//! The candidates of a claim.

use super::pending::{CHANGES, Change, What};
use super::with_pending;
use crate::lanes::{Item, Key};
use crate::wait;
use pgrx::prelude::*;

/// The candidates that a claim has reserved in a lane, before it reads their rows. A rollback returns them to the lane.
/// Until it is complete, no other change may be recorded.
pub struct Reservation {
    lane: u64,
    first: usize,
    subtransaction: pg_sys::SubTransactionId,
}

impl Reservation {
    /// An empty reservation.
    pub fn new(lane: u64) -> Self {
        // SAFETY: reads the state of the transaction.
        let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
        with_pending(|pending| Self { lane, first: pending.count, subtransaction })
    }

    /// How many more candidates fit.
    pub fn room(&self) -> usize {
        with_pending(|pending| CHANGES - pending.count)
    }

    /// Reserves a candidate, which must fit.
    pub fn add(&mut self, key: Key) {
        with_pending(|pending| {
            let Self { lane, subtransaction, .. } = *self;
            pending.changes[pending.count] = Change { lane, subtransaction, key, what: What::Reserved };
            pending.count += 1;
        });
    }

    /// How many were reserved.
    pub fn len(&self) -> usize {
        with_pending(|pending| pending.count - self.first)
    }

    /// The candidate of this number.
    pub fn get(&self, number: usize) -> Key {
        with_pending(|pending| pending.changes[self.first + number].key)
    }

    /// The candidate of this number has been leased.
    pub fn leased(&self, number: usize, until: i64) {
        wait::claimed();
        with_pending(|pending| {
            let change = &mut pending.changes[self.first + number];
            change.what = What::Leased { until };
            let run_at = change.key.run_at;
            pending.count_item(self.lane, Item::queued(run_at), -1);
            pending.count_item(self.lane, Item::RUNNING, 1);
        });
    }
}
