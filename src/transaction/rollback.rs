//! What a transaction returns to the lanes when it rolls back, or a subtransaction does.

use super::pending::{Pending, What};
use crate::clock::now;
use crate::lanes::{self, LaneSet, Lease, Wake};
use crate::shared::{self, NEVER};
use pgrx::prelude::*;

impl Pending {
    /// Returns to the lanes what the subtransactions from this one on took from them.
    pub(super) fn roll_back(&mut self, from: pg_sys::SubTransactionId) {
        self.tally.forget(from);
        self.watched.roll_back(from);
        if std::mem::take(&mut self.counting) {
            lanes::stop_counting();
        }
        let moment = now();
        // The earliest end of a lease that cannot be returned to a lane.
        let mut lease = NEVER;
        for change in self.changes[..self.count].iter_mut().filter(|change| change.subtransaction >= from) {
            let taken = matches!(change.what, What::Leased { .. } | What::Reserved | What::Ending { .. })
                && !crate::injection::forgets();
            let wake = taken.then_some(change.lane).and_then(|lane| {
                lanes::with(lane, |slot| match change.what {
                    // SQL can also lease a scheduled task.
                    What::Leased { .. } | What::Reserved => {
                        slot.lane.add(change.key, moment).then(|| slot.wake()).flatten()
                    }
                    What::Ending { until } => {
                        slot.lane.leases.take_back(Lease { id: change.key.id, until });
                        slot.wake()
                    }
                    _ => None,
                })
            });
            if wake.is_none()
                && let What::Ending { until } = change.what
            {
                lease = lease.min(until);
            }
            wake.flatten().into_iter().for_each(Wake::now);
            change.what = What::Nothing;
        }
        for summary in &self.summaries[..self.summary_count] {
            let wake = lanes::with(summary.lane, |slot| {
                slot.lane.lower(summary.leased);
                slot.lane.leases.add_unknown(summary.until);
                slot.wake_in_turn()
            });
            lease = lease.min(if wake.is_none() { summary.until } else { NEVER });
            wake.flatten().into_iter().for_each(Wake::now);
        }
        if !self.invalidated.is_empty() {
            lanes::invalidate(&self.invalidated);
            lease = lease.min(self.notices.lease);
        }
        // SAFETY: a plain read of a constant of the process.
        shared::leases_until(unsafe { pg_sys::MyDatabaseId }, lease);
        lanes::forget_refills(&std::mem::replace(&mut self.refilled, LaneSet::NONE));
        if self.refilling != 0 {
            lanes::with(self.refilling, |slot| slot.lane.give_up());
            lanes::announce_refill(self.refilling);
            self.refilling = 0;
        }
    }
}
