//! Events: the worker processes them in case no claim does, and sweeps for lost ones.

use super::{BATCH, FIND_LOST_EVENTS, PROCESS_EVENTS, Worker, core, microseconds};
use crate::clock::now;
use crate::extension::Installed;
use crate::shared::{AT_ONCE, QueueBits};
use std::time::{Duration, Instant};

/// The sweep for lost events takes at most one in so many parts of the time.
const LOST_SHARE: i64 = 10;
/// The number of rows in a piece of the sweep.
const SWEEP_PIECE: i32 = 50;
/// How long a round sweeps, before schedules and leases get their turn.
const SWEEP_TIME: Duration = Duration::from_millis(50);

impl Worker {
    /// Creates the missing events for a piece of the tables.
    pub(super) fn find_lost_events(&mut self, _pushed: &QueueBits) -> Installed {
        if !self.sweeping {
            if now() < self.next_turn() {
                return Installed::Yes;
            }
            self.turn_began = now();
            self.swept_for = Duration::ZERO;
            self.sweeping = true;
        }
        // Monotonic, because the clock may be set meanwhile.
        let started = Instant::now();
        let position = self.sweep_position.as_deref();
        let step = self.attempt(FIND_LOST_EVENTS, c"looking for lost events", || {
            let mut swept = core::sweep(position, SWEEP_PIECE);
            while !swept.turn_is_over && started.elapsed() < SWEEP_TIME {
                swept = core::sweep(swept.position.as_deref(), SWEEP_PIECE);
            }
            swept
        });
        let Some(swept) = step.result else { return step.installed };
        self.swept_for += started.elapsed();
        self.sweep_position = swept.position;
        self.sweeping = !swept.turn_is_over;
        if swept.turn_is_over {
            // In batches until none is left. Each start of a task adds one, so a bounded number per turn might not keep up.
            let starts: fn(i32) -> bool = core::retire_group_starts;
            self.to_retire.retain(|part| !std::ptr::fn_addr_eq(*part, starts));
            self.to_retire.push(starts);
            // After a long turn, the next one waits in proportion. If this one did not check everything, the next one
            // waits no longer than that.
            self.rests_until = now() + LOST_SHARE * microseconds(self.swept_for);
            if self.sweep_position.is_some() {
                self.turn_began = AT_ONCE;
            }
        }
        self.more_events = true;
        Installed::Yes
    }

    /// Unblocks tasks that waited for a predecessor or for their turn, in case no claim comes.
    pub(super) fn process_events(&mut self, pushed: &QueueBits) -> Installed {
        let moment = now();
        // A postponed event is announced like a scheduled task.
        let due = moment >= self.next_sweep().min(self.next_run);
        if !due && *pushed == [0; 4] && !self.more_events {
            return Installed::Yes;
        }
        let step = self.attempt(PROCESS_EVENTS, c"processing events", || core::process_events(BATCH));
        self.more_events = step.result.is_none_or(|checked| checked > 0);
        step.installed
    }
}
