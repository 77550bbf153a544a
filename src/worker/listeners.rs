//! Whom the worker tells that there is something to claim.

use super::installed::Installed;
use super::{LOOK_FOR_DUE, NOTIFY, Worker, core, microseconds};
use crate::clock::now;
use crate::settings;
use crate::shared::QueueBits;
use std::sync::atomic::Ordering;

impl Worker {
    /// Finds the queues that listeners must hear of.
    pub(super) fn look_for_due(&mut self, pushed: &QueueBits) -> Installed {
        let moment = now();
        let sweep = moment >= self.next_sweep();
        // Not more often than listeners are told, however many tasks come due one after the other.
        let came_due = moment >= self.next_run.max(self.notify_from);
        if !sweep && !came_due && *pushed == [0; 4] {
            return Installed::Yes;
        }
        // A sweep repeats what is already waiting, for listeners that missed it.
        let since = if sweep { i64::MIN } else { self.due_until };
        let step = self.attempt(LOOK_FOR_DUE, c"looking for due tasks", || {
            let due = (sweep || came_due).then(|| core::due_queues(since, moment));
            (due, core::open_queues(pushed))
        });
        let Some((due, pushed)) = step.result else { return step.installed };
        self.to_notify.extend(pushed);
        if let Some((queues, next_run)) = due {
            self.to_notify.extend(queues);
            self.next_run = next_run;
            self.due_until = moment;
        }
        if sweep {
            self.swept_at = moment;
        }
        step.installed
    }

    /// Sends the notifications, at most one per queue and interval.
    pub(super) fn notify(&mut self, pushed: &QueueBits) -> Installed {
        let moment = now();
        let nothing = self.to_notify.is_empty() && *pushed == [0; 4];
        if nothing || moment < self.notify_from {
            return Installed::Yes;
        }
        let next = moment.saturating_add(microseconds(settings::notify_interval()));
        if self.to_notify.is_empty() {
            self.notify_from = next;
            return Installed::Yes;
        }
        let queues: Vec<_> = self.to_notify.iter().cloned().collect();
        let count = queues.len() as u64;
        let step = self.attempt(NOTIFY, c"notifying listeners", || core::notify(queues));
        if step.result.is_some() {
            self.to_notify.clear();
            self.database.counters.notifications.fetch_add(count, Ordering::Relaxed);
            self.notify_from = next;
        }
        step.installed
    }
}
