//! A few seconds of each campaign. `make torture` plays them for as long as one likes.

use std::time::Duration;

use super::play;
use queue_ext_tests::brief;

fn holds(campaign: &str) {
    let round = Duration::from_millis(if brief() { 1000 } else { 1500 });
    let verdict = play(campaign, campaign, round, Duration::ZERO, "");
    assert!(verdict.violations.is_empty(), "{verdict}");
    assert!(verdict.counts.acknowledged > 20, "the clients did nothing");
}

macro_rules! campaigns {
    ($($name:ident),*) => { $(
        #[test]
        fn $name() {
            holds(stringify!($name));
        }
    )* };
}

campaigns!(
    crash, stop, backend, zombies, worker, cut, failover, pinned, cancel, levels, deadlock, savepoints,
    twophase, upkeep, chaos, full, clock, crowded, references, forgetful
);

/// Nothing grows: a round to warm up, and two to compare with it.
#[test]
fn soak() {
    let (round, length) = (Duration::from_millis(1000), Duration::from_millis(4000));
    let verdict = play("soak", "soak", round, if brief() { Duration::ZERO } else { length }, "");
    assert!(verdict.violations.is_empty(), "{verdict}");
}

/// Losses with an asynchronous standby that lags are reported, and nothing else is wrong.
#[test]
fn asynchronous() {
    let verdict = play("asynchronous", "asynchronous", Duration::from_secs(4), Duration::ZERO, "");
    assert!(verdict.violations.is_empty(), "{verdict}");
    let struck = verdict.faults.values().sum::<u64>() > 0;
    assert!(!struck || verdict.counts.lost > 0, "a lag of milliseconds has lost nothing: {verdict}");
}
