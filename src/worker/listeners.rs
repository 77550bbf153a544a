//! Notifications for sessions that LISTEN for tasks to claim.

use super::{FIND_DUE_QUEUES, NOTIFY, Worker, core, microseconds};
use crate::clock::now;
use crate::extension::Installed;
use crate::settings;
use crate::shared::QueueBits;
use std::sync::atomic::Ordering;

impl Worker {
    /// Finds the queues whose listeners have to be notified.
    pub(super) fn find_due_queues(&mut self, pushed: &QueueBits) -> Installed {
        let moment = now();
        let sweep = moment >= self.next_sweep();
        // At most once in notify_interval, however many tasks become due one after the other.
        let became_due = moment >= self.next_run.max(self.notify_from);
        if !sweep && !became_due && *pushed == [0; 4] {
            return Installed::Yes;
        }
        // A sweep repeats notifications of tasks that were due before, for listeners that missed them.
        let since = if sweep { i64::MIN } else { self.due_until };
        let step = self.attempt(FIND_DUE_QUEUES, c"looking for due tasks", || {
            let due = (sweep || became_due).then(|| core::due_queues(since, moment));
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
