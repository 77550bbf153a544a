//! A few seconds of each campaign. `make torture` plays them for as long as one likes.

use std::time::Duration;

use super::play;

fn holds(campaign: &str) {
    let verdict = play(campaign, campaign, Duration::from_millis(2500), Duration::ZERO, "");
    assert!(verdict.violations.is_empty(), "{verdict}");
    assert!(verdict.counts.acknowledged > 100, "the clients did nothing");
}

macro_rules! campaigns {
    ($($name:ident),*) => { $(
        #[test]
        fn $name() {
            holds(stringify!($name));
        }
    )* };
}

campaigns!(crash, stop, backend, worker, cancel, levels, deadlock, savepoints, twophase, upkeep);
