//! The partitions of the history, and retention.

use super::{BATCH, HISTORY_EVERY, KEEP_HISTORY, RETIRE, Worker, core};
use crate::clock::now;
use crate::extension::Installed;
use crate::shared::QueueBits;

/// The parts of retention. Each returns whether there may be more to delete.
const RETENTION: [fn(i32) -> bool; 4] =
    [core::retire_history, core::retire_dead_letters, core::retire_keys, core::retire_group_starts];

impl Worker {
    /// Creates the partitions of the coming days, and starts to apply retention.
    pub(super) fn keep_history(&mut self, pushed: &QueueBits) -> Installed {
        let moment = now();
        let first_use = self.awaits_first_task && *pushed != [0; 4];
        if moment < self.next_partitions && !first_use {
            return Installed::Yes;
        }
        let step = self.attempt(KEEP_HISTORY, c"creating history partitions", core::extend_history);
        if step.installed == Installed::Yes {
            self.next_partitions = moment + HISTORY_EVERY;
            self.awaits_first_task = step.result.is_some_and(|ready| ready.is_none());
        }
        // Even if partitions cannot be created.
        if step.installed == Installed::Yes || moment >= self.next_retention {
            self.next_retention = moment + HISTORY_EVERY;
            self.to_retire = RETENTION.to_vec();
        }
        step.installed
    }

    /// Deletes a batch of each part that is past its retention.
    pub(super) fn retire(&mut self, _pushed: &QueueBits) -> Installed {
        let mut installed = Installed::Yes;
        for task in std::mem::take(&mut self.to_retire) {
            let step = self.attempt(RETIRE, c"applying retention", || task(BATCH));
            if step.installed != Installed::Yes {
                installed = step.installed;
            }
            if step.result.unwrap_or(true) {
                self.to_retire.push(task);
            }
        }
        installed
    }
}
