//! The partitions of the history, and what is past its retention.

use super::installed::Installed;
use super::{BATCH, KEEP_HISTORY, RETIRE, UPKEEP_EVERY, Worker, core};
use crate::clock::now;
use crate::shared::QueueBits;

/// What may be past its retention. Each returns whether there may be more.
const RETENTION: [fn(i32) -> bool; 3] = [core::retire_history, core::retire_dead_letters, core::retire_keys];

impl Worker {
    /// Makes partitions for the coming days, and begins to apply retention.
    pub(super) fn keep_history(&mut self, pushed: &QueueBits) -> Installed {
        let moment = now();
        let first_use = self.history_awaited && *pushed != [0; 4];
        if moment < self.next_upkeep && !first_use {
            return Installed::Yes;
        }
        let step = self.attempt(KEEP_HISTORY, c"making history partitions", core::extend_history);
        if step.installed == Installed::Yes {
            self.next_upkeep = moment + UPKEEP_EVERY;
            self.history_awaited = step.result.is_some_and(|ready| ready.is_none());
        }
        // Whether or not the partitions could be made.
        if step.installed == Installed::Yes || moment >= self.next_retirement {
            self.next_retirement = moment + UPKEEP_EVERY;
            self.to_retire = RETENTION.to_vec();
        }
        step.installed
    }

    /// Drops what is past its retention.
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
