//! Schedules, which run in time whatever else there is to do.

use super::installed::Installed;
use super::{BATCH, RUN_SCHEDULES, Worker, core};
use crate::clock::now;
use crate::shared::QueueBits;
use std::time::{Duration, Instant};

/// How soon to look again for schedules that are due and that somebody else holds locked.
const RETRY_SCHEDULES: i64 = 1_000_000;
/// For how long other steps have their turn, while there are always schedules that are due.
const SCHEDULES_REST: Duration = Duration::from_millis(100);

impl Worker {
    /// Whether schedules are due, and have rested since they ran last: then they run before any other step, because no
    /// step knows how long the next one takes. Without the rest, those that are far behind would take all the time.
    pub(super) fn schedules_are_pressing(&self) -> bool {
        self.next_schedule.min(self.next_sweep()) <= now() && self.schedules_ran.elapsed() >= SCHEDULES_REST
    }

    /// Pushes what the schedules have due.
    pub(super) fn run_schedules(&mut self, _pushed: &QueueBits) -> Installed {
        let moment = now();
        if moment < self.next_schedule.min(self.next_sweep()) {
            return Installed::Yes;
        }
        let step = self.attempt(RUN_SCHEDULES, c"running schedules", || {
            // Only reads, as long as none is due.
            let next = core::next_schedule();
            if next > moment { (0, next, None) } else { core::fire_schedules(BATCH, &self.schedules_after) }
        });
        self.schedules_ran = Instant::now();
        let Some((fired, next, last)) = step.result else { return step.installed };
        // Those that come next have waited for others that could not be pushed.
        let earliest = if fired > 0 || last.is_some() { moment } else { moment + RETRY_SCHEDULES };
        self.schedules_after = last.unwrap_or_default();
        self.next_schedule = if next > moment { next } else { earliest };
        Installed::Yes
    }
}
