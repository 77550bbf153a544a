//! Leases that ran out, and that no lane knows: they are looked for in the table, a piece of it in each round.

use super::installed::Installed;
use super::{LEASE_SCAN_EVERY, REAP, Worker, core, microseconds};
use crate::clock::now;
use crate::shared::{AT_ONCE, NEVER, QueueBits};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Looking for expired leases reads the whole of queue.tasks. Between two looks is so many times what one took.
const LEASE_SCAN_SHARE: i64 = 8;
/// What a look may take without being rarer for it, in microseconds.
const LEASE_SCAN_LEAST: i64 = 5_000;
/// How many attempts are ended at a time: each of them costs as much as reading hundreds of tasks.
const LEASE_BATCH: i32 = 500;
/// How many tasks a piece of a look has, and for how long a step goes on with one piece after the other.
const LEASE_PIECE: i32 = 4_000;
const LEASE_STEP: Duration = Duration::from_millis(50);

/// How far a look for expired leases has come.
#[derive(Clone, Copy)]
pub(super) struct LeaseLook {
    /// The id behind which it goes on.
    after: i64,
    /// The earliest expiry so far.
    next: i64,
    /// How long it has read so far, in microseconds.
    cost: i64,
}

impl Worker {
    /// Puts back tasks whose lease ran out: some pieces of the table, so that the rest of the round is in time however
    /// many tasks there are.
    pub(super) fn reap(&mut self, _pushed: &QueueBits) -> Installed {
        let started = Instant::now();
        loop {
            let installed = self.reap_piece();
            let goes_on = installed == Installed::Yes && self.lease_look.is_some();
            if !goes_on || started.elapsed() >= LEASE_STEP {
                return installed;
            }
        }
    }

    fn reap_piece(&mut self) -> Installed {
        if self.lease_scan_due() > now() {
            return Installed::Yes;
        }
        let look = self.lease_look.unwrap_or_else(|| {
            // Before the first snapshot of the look, which finds them all: what is told from now on is a reason for another.
            self.database.next_lease.take();
            self.next_lease = NEVER;
            LeaseLook { after: i64::MIN, next: NEVER, cost: 0 }
        });
        self.lease_look = Some(look);
        // Not by the server's clock alone, which may be put forward by years meanwhile.
        let started = Instant::now();
        let step = self
            .attempt(REAP, c"reaping expired leases", || core::reap(LEASE_BATCH, look.after, LEASE_PIECE));
        let Some(piece) = step.result else { return step.installed };
        self.database.counters.leases_reaped.fetch_add(piece.reaped, Ordering::Relaxed);
        let look = LeaseLook {
            after: piece.last.unwrap_or(i64::MAX),
            // Unless the piece is read once more.
            next: if piece.last == Some(look.after) { look.next } else { look.next.min(piece.next_expiry) },
            cost: look.cost + piece.reading.min(microseconds(started.elapsed())),
        };
        if piece.last.is_some() {
            self.lease_look = Some(look);
            return Installed::Yes;
        }
        self.lease_look = None;
        self.next_lease = self.next_lease.min(look.next);
        let ended = now();
        // A busy machine can make one of them take long, but not several in a row.
        let twice = 2 * self.lease_scan_cost.max(LEASE_SCAN_LEAST);
        self.lease_scan_cost = look.cost.min(twice);
        self.lease_scan_from = ended + LEASE_SCAN_SHARE * self.lease_scan_cost;
        self.lease_scan_by = ended + LEASE_SCAN_EVERY;
        Installed::Yes
    }

    /// When the next look for expired leases begins, or goes on.
    pub(super) fn lease_scan_due(&self) -> i64 {
        if self.lease_look.is_some() {
            return AT_ONCE;
        }
        let expiry = self.next_lease.min(self.database.next_lease.get());
        expiry.min(self.lease_scan_by).max(self.lease_scan_from)
    }
}
