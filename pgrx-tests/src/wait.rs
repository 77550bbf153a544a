//! Waiting for a condition instead of sleeping and hoping.

use std::time::{Duration, Instant};

/// Polls until `condition` holds, and returns how long that took. Panics with `what` if it does not hold within
/// `limit`.
pub fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    started.elapsed()
}
