//! Events: what unblocks tasks that wait for a predecessor or for their turn, in case no claim comes.

use super::installed::Installed;
use super::{BATCH, FIND_LOST_EVENTS, PROCESS_EVENTS, Worker, core, microseconds};
use crate::clock::now;
use crate::settings;
use crate::shared::QueueBits;
use std::time::{Duration, Instant};

/// A sweep for lost events may take one part in so many of the time.
const LOST_SHARE: i64 = 10;
/// How many rows a piece of the sweep for lost events has.
const SWEEP_PIECE: i32 = 50;
/// For how long a round sweeps. After it the schedules and the leases have their turn.
const SWEEP_TIME: Duration = Duration::from_millis(50);

impl Worker {
    /// Leaves events about waiting tasks and groups of which no event tells, a piece of the tables in each round.
    pub(super) fn find_lost_events(&mut self, _pushed: &QueueBits) -> Installed {
        if self.sweeping.is_none() && now() < self.next_lost {
            return Installed::Yes;
        }
        if self.sweeping.is_none() {
            self.next_lost = now().saturating_add(microseconds(settings::sweep_interval()));
            self.swept_for = Duration::ZERO;
        }
        // Not by the clock, which may be put forward by years meanwhile.
        let started = Instant::now();
        let place = self.sweeping.take();
        let step = self.attempt(FIND_LOST_EVENTS, c"looking for lost events", || {
            let mut next = core::sweep(place.as_deref(), SWEEP_PIECE);
            while next.is_some() && started.elapsed() < SWEEP_TIME {
                next = core::sweep(next.as_deref(), SWEEP_PIECE);
            }
            next
        });
        let Some(next) = step.result else {
            self.sweeping = place;
            return step.installed;
        };
        self.swept_for += started.elapsed();
        if next.is_none() {
            // A long sweep is not repeated at once.
            self.next_lost = self.next_lost.max(now() + LOST_SHARE * microseconds(self.swept_for));
        }
        self.sweeping = next;
        self.more_events = true;
        Installed::Yes
    }

    /// Unblocks tasks that waited for a predecessor or for their turn, in case no claim comes.
    pub(super) fn process_events(&mut self, pushed: &QueueBits) -> Installed {
        let moment = now();
        // An event that was postponed is announced as a task for later is.
        let due = moment >= self.next_sweep().min(self.next_run);
        if !due && *pushed == [0; 4] && !self.more_events {
            return Installed::Yes;
        }
        let step = self.attempt(PROCESS_EVENTS, c"processing events", || core::process_events(BATCH));
        self.more_events = step.result.is_none_or(|looks| looks > 0);
        step.installed
    }
}
