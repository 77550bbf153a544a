//! The scan for expired leases that are not cached in a lane: a piece of queue.tasks in each round.

use super::{LEASE_SCAN_EVERY, REAP, Worker, core, microseconds};
use crate::clock::now;
use crate::extension::Installed;
use crate::shared::{AT_ONCE, NEVER, QueueBits};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A scan reads the whole of queue.tasks. The time between two scans is so many times that of the last one.
const LEASE_SCAN_SHARE: i64 = 8;
/// A scan that takes less, in microseconds, is repeated as if it had taken that long.
const LEASE_SCAN_LEAST: i64 = 5_000;
/// How many attempts one transaction ends. Each costs as much as reading hundreds of tasks.
const LEASE_BATCH: i32 = 500;
/// The number of tasks in a piece of the scan, and how long a step reads one piece after the other.
const LEASE_PIECE: i32 = 4_000;
const LEASE_STEP: Duration = Duration::from_millis(50);

/// The state of a scan for expired leases.
#[derive(Clone, Copy)]
pub(super) struct LeaseScan {
    /// The id after which it continues.
    after: i64,
    /// The earliest expiry so far.
    next: i64,
    /// How long it has read so far, in microseconds.
    cost: i64,
}

impl Worker {
    /// Requeues tasks whose lease has expired, in some pieces of the table. So the other steps run in time however many
    /// tasks there are.
    pub(super) fn reap(&mut self, _pushed: &QueueBits) -> Installed {
        let started = Instant::now();
        loop {
            let installed = self.reap_piece();
            let is_unfinished = installed == Installed::Yes && self.lease_scan.is_some();
            if !is_unfinished || started.elapsed() >= LEASE_STEP {
                return installed;
            }
        }
    }

    fn reap_piece(&mut self) -> Installed {
        if self.lease_scan_due() > now() {
            return Installed::Yes;
        }
        let scan = self.lease_scan.unwrap_or_else(|| {
            // Before the first snapshot of the scan, which finds all leases up to now. Leases that are announced from
            // now on need another scan.
            self.database.next_lease.take();
            self.next_lease = NEVER;
            LeaseScan { after: i64::MIN, next: NEVER, cost: 0 }
        });
        self.lease_scan = Some(scan);
        // Monotonic, because the clock may be set meanwhile.
        let started = Instant::now();
        let step = self
            .attempt(REAP, c"reaping expired leases", || core::reap(LEASE_BATCH, scan.after, LEASE_PIECE));
        let Some(piece) = step.result else { return step.installed };
        self.database.counters.leases_reaped.fetch_add(piece.reaped, Ordering::Relaxed);
        let scan = LeaseScan {
            after: piece.last.unwrap_or(i64::MAX),
            // Unless the piece is read again.
            next: if piece.last == Some(scan.after) { scan.next } else { scan.next.min(piece.next_expiry) },
            cost: scan.cost + piece.reading.min(microseconds(started.elapsed())),
        };
        if piece.last.is_some() {
            self.lease_scan = Some(scan);
            return Installed::Yes;
        }
        self.lease_scan = None;
        self.next_lease = self.next_lease.min(scan.next);
        let ended = now();
        // At most doubled, because on a busy machine a single scan may take unusually long.
        let twice = 2 * self.lease_scan_cost.max(LEASE_SCAN_LEAST);
        self.lease_scan_cost = scan.cost.min(twice);
        self.lease_scan_from = ended + LEASE_SCAN_SHARE * self.lease_scan_cost;
        self.lease_scan_by = ended + LEASE_SCAN_EVERY;
        Installed::Yes
    }

    /// When the scan for expired leases starts or continues.
    pub(super) fn lease_scan_due(&self) -> i64 {
        if self.lease_scan.is_some() {
            return AT_ONCE;
        }
        let expiry = self.next_lease.min(self.database.next_lease.get());
        expiry.min(self.lease_scan_by).max(self.lease_scan_from)
    }
}
