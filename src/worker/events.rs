//! Events: what unblocks tasks that wait for a predecessor or for their turn, in case no claim comes.

use super::installed::Installed;
use super::{BATCH, FIND_LOST_EVENTS, PROCESS_EVENTS, Worker, core, microseconds};
use crate::clock::now;
use crate::settings;
use crate::shared::QueueBits;
use std::time::{Duration, Instant};

/// The sweep for lost events may take one part in so many of the time.
const LOST_SHARE: i64 = 10;
/// How many rows a piece of the sweep for lost events has.
const SWEEP_PIECE: i32 = 50;
/// For how long a round sweeps. After it the schedules and the leases have their turn.
const SWEEP_TIME: Duration = Duration::from_millis(50);

impl Worker {
    /// Leaves events about waiting tasks and groups of which no event tells, a piece of the tables in each round.
    pub(super) fn find_lost_events(&mut self, _pushed: &QueueBits) -> Installed {
        if !self.sweeping {
            if now() < self.next_lost {
                return Installed::Yes;
            }
            self.next_lost = now().saturating_add(microseconds(settings::sweep_interval()));
            self.swept_for = Duration::ZERO;
            self.sweeping = true;
        }
        // Not by the clock, which may be put forward by years meanwhile.
        let started = Instant::now();
        let place = self.sweep_place.as_deref();
        let step = self.attempt(FIND_LOST_EVENTS, c"looking for lost events", || {
            let mut swept = core::sweep(place, SWEEP_PIECE);
            while !swept.turn_is_over && started.elapsed() < SWEEP_TIME {
                swept = core::sweep(swept.place.as_deref(), SWEEP_PIECE);
            }
            swept
        });
        let Some(swept) = step.result else { return step.installed };
        self.swept_for += started.elapsed();
        self.sweep_place = swept.place;
        self.sweeping = !swept.turn_is_over;
        if swept.turn_is_over {
            // A long turn is not repeated at once, and one that left something out is not waited for longer than that.
            let rested = now() + LOST_SHARE * microseconds(self.swept_for);
            self.next_lost = if self.sweep_place.is_some() { rested } else { self.next_lost.max(rested) };
        }
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
