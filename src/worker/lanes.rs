//! The maintenance of the lanes by the worker.

use super::{MAINTAIN_LANES, Worker, core, microseconds};
use crate::clock::now;
use crate::extension::Installed;
use crate::lanes;
use crate::settings;
use crate::shared::{NEVER, QueueBits};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// After so many lanes failed, the others wait for the next round, because each may have waited for a lock.
const FAILED_LANES: usize = 3;
/// How long a round maintains lanes, without the time of the last one.
const LANES_MOST: Duration = Duration::from_millis(50);

impl Worker {
    /// Wakes the sessions that wait for a task that became due during the last step.
    pub(super) fn wake_due(&self) {
        let moment = now();
        if self.next_lane.min(self.database.next_lane.get()) <= moment {
            lanes::wake_due(moment);
        }
    }

    /// Ends expired leases, wakes the sessions that wait for a task that became due, and refills lanes after changes
    /// that no session could publish.
    pub(super) fn maintain_lanes(&mut self, _pushed: &QueueBits) -> Installed {
        let moment = now();
        self.next_lane = self.next_lane.min(self.database.next_lane.take());
        // With every sweep as well: a queue may have been assigned a lane since, or a refill may be due.
        if moment < self.next_lane.min(self.next_sweep()) {
            return Installed::Yes;
        }
        let (from, sweep_interval) = (self.lane_from, microseconds(settings::sweep_interval()));
        let (mut next, mut installed, mut failed) = (NEVER, Installed::Yes, 0);
        let started = Instant::now();
        let stopped = lanes::maintain(from, moment, sweep_interval, |left| {
            next = next.min(left.next());
            let takes_time = !left.expired().is_empty() || left.reread().is_some();
            if !left.expired().is_empty() {
                let step = self.attempt(MAINTAIN_LANES, c"ending expired leases", || {
                    core::expire(left.lane(), left.expired())
                });
                let expired = step.result.unwrap_or(0);
                self.database.counters.leases_reaped.fetch_add(expired, Ordering::Relaxed);
                if step.installed != Installed::Yes {
                    left.hand_back();
                    // The lane may have been assigned to another queue.
                    self.next_lease = moment;
                    installed = step.installed;
                    failed += 1;
                }
            }
            if let Some(queue) = left.reread() {
                let step = self.attempt(MAINTAIN_LANES, c"reading tasks", || core::reread(&queue));
                if step.installed != Installed::Yes {
                    installed = step.installed;
                    failed += 1;
                }
            }
            // Only then, because it visits all lanes.
            if takes_time {
                lanes::wake_due(now());
            }
            failed < FAILED_LANES && started.elapsed() < LANES_MOST
        });
        // The next round starts with the lanes that this one did not reach.
        self.next_lane = if stopped.is_some() { moment } else { next };
        self.lane_from = stopped.unwrap_or(0);
        installed
    }
}
