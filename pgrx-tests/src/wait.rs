//! Waiting for a condition instead of sleeping and hoping, on a machine that may be busy with other things.

use std::time::{Duration, Instant};

use crate::stalls;

/// Longer than anything takes on a busy machine: what takes longer hangs.
pub const SOON: Duration = Duration::from_secs(40);

/// Half of the default `queue.sweep_interval`: what was noticed so soon was announced, and not found by a sweep.
pub const WOKEN: Duration = Duration::from_secs(5);

/// Polls until `condition` holds, and returns how long that took. Panics with `what` if it does not hold within
/// `limit`. The time in which the machine stood still does not count.
pub fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !condition() {
        assert!(stalls::since(started) < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    stalls::since(started)
}

/// The best of up to twenty measurements, the last of which is the first within `limit`: whatever else the machine does
/// can only make them longer.
pub fn at_best(limit: Duration, mut measure: impl FnMut() -> Duration) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..20 {
        best = best.min(measure());
        if best < limit {
            break;
        }
    }
    best
}
