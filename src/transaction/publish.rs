//! What a transaction publishes after its commit: to the lanes, and to the launcher and the worker.

use super::pending::{Change, Notices, Pending, What};
use crate::lanes::{self, Lease, Wake};
use crate::shared::{self, Handler, NEVER};
use pgrx::prelude::*;

impl Pending {
    /// Publishes to the lanes what has been committed.
    pub(super) fn publish(&mut self, now: i64) {
        // SAFETY: reads the state of the transaction, which has its id until the callbacks are done.
        let me = unsafe { pg_sys::GetTopFullTransactionIdIfAny() }.value;
        lanes::invalidate_counters(self.tally.unknown());
        let mut rest = &self.changes[..self.count];
        while let Some(first) = rest.first() {
            // The changes of one lane at a time, with at most so many wake-ups.
            const AT_ONCE: usize = 64;
            let same = rest.iter().take(AT_ONCE).take_while(|change| change.lane == first.lane).count();
            let mut wakes = [const { None }; AT_ONCE];
            let known = lanes::with(first.lane, |slot| {
                for (change, wake) in rest[..same].iter().zip(&mut wakes) {
                    *wake = change.publish(slot, now);
                }
                self.tally.publish(slot, first.lane, me);
                slot.next_time()
            });
            match known {
                Some(next) => self.notices.lane_time = self.notices.lane_time.min(next),
                // The worker has to scan the table for them.
                None => {
                    self.notices.lease = rest[..same]
                        .iter()
                        .fold(self.notices.lease, |lease, change| lease.min(change.lease()))
                }
            }
            wakes.into_iter().flatten().for_each(Wake::now);
            rest = &rest[same..];
        }
        // Lanes that have only counts, or whose changes are not kept individually.
        while let Some(lane) = self.tally.lane() {
            lanes::with(lane, |slot| self.tally.publish(slot, lane, me));
            // Also where there is no such lane.
            self.tally.drop_lane(lane);
        }
        self.wake_result_waiters();
        for summary in &self.summaries[..self.summary_count] {
            let wake = lanes::with(summary.lane, |slot| {
                slot.lane.lower(summary.added);
                slot.lane.lower_scheduled(summary.added_from);
                slot.lane.leases.add_unknown(summary.until);
                if summary.removed {
                    slot.lane.leases.remove_unknown();
                }
                slot.wake_in_turn()
            });
            self.notices.lease = self.notices.lease.min(if wake.is_none() { summary.until } else { NEVER });
            wake.flatten().into_iter().for_each(Wake::now);
        }
        for lane in &self.notices.events[..self.notices.event_count] {
            let wake = lanes::with(*lane, |slot| {
                slot.events = lanes::stamp();
                slot.wake_in_turn()
            });
            wake.flatten().into_iter().for_each(Wake::now);
        }
        lanes::note_events(&self.notices.more_events);
        lanes::invalidate(&self.invalidated);
    }

    /// Wakes the sessions that wait for the end of a task.
    fn wake_result_waiters(&self) {
        let Some(shared) = shared::get().filter(|shared| !shared.results.is_empty()) else { return };
        // SAFETY: a plain read of a constant of the process.
        let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
        let removed =
            self.changes[..self.count].iter().filter(|change| matches!(change.what, What::Removed { .. }));
        removed.for_each(|change| shared.results.wake(database, change.key.id));
    }

    /// Notifies the launcher and the worker.
    pub(super) fn notify_worker(&self) {
        let Some(shared) = shared::get() else { return };
        let Notices { created, handlers, cancels, lease, lane_time, run, start_by, queues, .. } =
            self.notices;
        // SAFETY: a plain read of a constant of the process.
        let database_oid = unsafe { pg_sys::MyDatabaseId };
        if created {
            shared.announce_created(database_oid);
        }
        for task in cancels.into_iter().take_while(|task| *task != 0) {
            shared.handlers.handling(database_oid, task).into_iter().for_each(Handler::interrupt);
        }
        let anything = handlers || lease.min(lane_time).min(run).min(start_by) != NEVER || queues != [0; 4];
        let Some(database) = anything.then(|| shared.database(database_oid)).flatten() else { return };
        if lease != NEVER {
            database.lease_until(lease);
        }
        if lane_time != NEVER {
            database.lane_time(lane_time);
        }
        if run != NEVER {
            database.run_at(run);
        }
        if start_by != NEVER {
            database.start_by(start_by);
        }
        database.pushed(&queues);
        if handlers {
            database.handlers_changed();
        }
    }
}

impl Change {
    /// Publishes the change; returns the process to wake.
    fn publish(&self, slot: &mut lanes::Slot, now: i64) -> Option<Wake> {
        match self.what {
            What::Added => return slot.lane.add(self.key, now).then(|| slot.wake()).flatten(),
            What::Leased { until } => slot.lane.leased(self.key, until, now),
            What::Extended { until } => slot.lane.extended(self.key, until, now),
            What::RunsOn { until } => slot.lane.leases.take_back(Lease { id: self.key.id, until }),
            What::Removed { until } => slot.lane.removed(self.key, until),
            What::Ending { .. } | What::Reserved | What::Withdrawn | What::Nothing => {}
        }
        None
    }
}
