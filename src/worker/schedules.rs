//! Schedules: due ones run before every other step, so that they are in time.

use super::installed::Installed;
use super::{BATCH, RUN_SCHEDULES, Worker, core};
use crate::clock::now;
use crate::shared::QueueBits;
use std::time::{Duration, Instant};

/// The pause before due schedules are tried again that another session has locked.
const RETRY_SCHEDULES: i64 = 1_000_000;
/// How long other steps run before schedules come first again, if there are always due ones.
const SCHEDULES_PAUSE: Duration = Duration::from_millis(100);

impl Worker {
    /// Whether schedules run before the next step: they are due, and their pause is over. Without the pause, schedules
    /// that are far behind would take all the time.
    pub(super) fn schedules_run_first(&self) -> bool {
        self.next_schedule.min(self.next_sweep()) <= now() && self.schedules_ran.elapsed() >= SCHEDULES_PAUSE
    }

    /// Pushes the tasks of due schedules.
    pub(super) fn run_schedules(&mut self, _pushed: &QueueBits) -> Installed {
        let moment = now();
        if moment < self.next_schedule.min(self.next_sweep()) {
            return Installed::Yes;
        }
        let step = self.attempt(RUN_SCHEDULES, c"running schedules", || {
            // Read-only if none is due.
            let next = core::next_schedule();
            if next > moment { (0, next, None) } else { core::fire_schedules(BATCH, &self.schedules_after) }
        });
        self.schedules_ran = Instant::now();
        let Some((fired, next, last)) = step.result else { return step.installed };
        // If none was pushed, the due schedules are locked or failing, and are tried again later.
        let earliest = if fired > 0 || last.is_some() { moment } else { moment + RETRY_SCHEDULES };
        self.schedules_after = last.unwrap_or_default();
        self.next_schedule = if next > moment { next } else { earliest };
        Installed::Yes
    }
}
