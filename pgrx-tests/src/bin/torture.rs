//! Plays a campaign: see make torture.
//!
//!   torture CAMPAIGN|all SECONDS [SEED]
//!
//! Without a seed it takes a new one, and says which. The servers run without fsync unless FSYNC=on: a
//! process that is killed leaves what it wrote in the kernel's memory, so that changes nothing but speed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use queue_ext_tests::torture::campaign::Options;
use queue_ext_tests::torture::campaigns::ALL;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (wanted, seconds) = (&arguments[0], arguments[1].parse::<u64>().expect("how many seconds"));
    let fresh = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64;
    let seed = arguments.get(2).and_then(|seed| seed.parse().ok()).unwrap_or_else(fresh);
    let campaigns: Vec<_> =
        ALL.into_iter().filter(|campaign| wanted == "all" || wanted == campaign.name).collect();
    assert!(!campaigns.is_empty(), "no campaign is called {wanted}");
    let length = Duration::from_secs(seconds) / campaigns.len() as u32;
    let mut broken = 0;
    for campaign in &campaigns {
        let verdict = campaign.play(&Options {
            seed,
            length,
            round: Duration::from_secs(8),
            fsync: std::env::var("FSYNC").is_ok_and(|fsync| fsync == "on"),
            folder: format!("torture-{}", campaign.name),
            mutant: String::new(),
        });
        broken += verdict.violations.len();
    }
    assert_eq!(broken, 0, "promises were broken");
}
