//! Schedules: due ones run before every other step, so that they are in time.

use super::{BATCH, RUN_SCHEDULES, Worker, core};
use crate::clock::now;
use crate::extension::Installed;
use crate::shared::{AT_ONCE, NEVER, QueueBits};
use std::time::{Duration, Instant};

/// How long other steps run before schedules come first again, if there are always due ones.
const SCHEDULES_PAUSE: Duration = Duration::from_millis(100);
/// Reading all schedules takes at most one part in so many of the time.
const READING_SHARE: i64 = 2;

/// What the worker knows of the schedules.
pub(super) struct Schedules {
    /// When the next one is due.
    next: i64,
    /// The time up to which none was left due, except those that wait for `retry`; unknown at first.
    since: Option<i64>,
    /// When all of them have to be read, because due ones are left.
    retry: i64,
    /// They are not read before, however many are left.
    read_from: i64,
    /// When schedules ran last, and the queue at which they stopped.
    ran: Instant,
    after: Vec<u8>,
}

impl Schedules {
    pub(super) fn new() -> Self {
        Self {
            next: NEVER,
            since: None,
            retry: AT_ONCE,
            read_from: AT_ONCE,
            ran: Instant::now(),
            after: Vec::new(),
        }
    }

    /// A session has committed a schedule, or a task, that is due at `next`. If the time is over, calls that continue from
    /// `since` would not find the schedule.
    pub(super) fn announce(&mut self, next: i64) {
        self.next = self.next.min(next);
        if self.since.is_some_and(|since| next <= since) {
            self.retry = self.retry.min(next);
        }
    }

    /// When schedules have to run next.
    pub(super) fn due(&self) -> i64 {
        self.next.min(self.retry.max(self.read_from))
    }
}

impl Worker {
    /// Whether all schedules are to be read.
    fn reads_all_schedules(&self, moment: i64) -> bool {
        self.schedules.since.is_none_or(|since| since > moment)
            || self.schedules.retry.min(self.next_sweep()) <= moment && self.schedules.read_from <= moment
    }

    fn schedules_are_due(&self, moment: i64) -> bool {
        self.schedules.next <= moment || self.reads_all_schedules(moment)
    }

    /// Whether schedules run before the next step: they are due, and their pause is over. Without the pause, schedules
    /// that are far behind would take all the time.
    pub(super) fn schedules_run_first(&self) -> bool {
        self.schedules_are_due(now()) && self.schedules.ran.elapsed() >= SCHEDULES_PAUSE
    }

    /// Pushes the tasks of due schedules.
    pub(super) fn run_schedules(&mut self, _pushed: &QueueBits) -> Installed {
        let moment = now();
        if !self.schedules_are_due(moment) {
            return Installed::Yes;
        }
        let all = self.reads_all_schedules(moment);
        let step = self.attempt(RUN_SCHEDULES, c"running schedules", || {
            let since = self.schedules.since.filter(|_| !all);
            core::fire_schedules(BATCH, &self.schedules.after, since)
        });
        self.schedules.ran = Instant::now();
        let Some(fired) = step.result else { return step.installed };
        let schedules = &mut self.schedules;
        if all {
            let end = now();
            schedules.retry = NEVER;
            schedules.read_from = end.saturating_add(end.saturating_sub(moment) * (READING_SHARE - 1));
        }
        schedules.retry = schedules.retry.min(fired.retry);
        schedules.next = if fired.until.is_some() { fired.next } else { moment };
        schedules.since = fired.until.or(schedules.since);
        schedules.after = fired.last.unwrap_or_default();
        Installed::Yes
    }
}
