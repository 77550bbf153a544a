//! Short rounds of the fault campaigns, and mutants: each breaks one promise on purpose, and the checks must report
//! it.

#[path = "torture/campaigns.rs"]
mod campaigns;
#[path = "torture/mutants.rs"]
mod mutants;

use std::time::Duration;

use queue_ext_tests::torture::campaign::{Options, Verdict};
use queue_ext_tests::torture::campaigns::named;

/// One round of a campaign; more, up to this length, as long as nothing is broken.
fn play(campaign: &str, name: &str, round: Duration, length: Duration, mutant: &str) -> Verdict {
    play_with(campaign, name, round, length, mutant, String::new())
}

/// The same with more lines for postgresql.conf.
fn play_with(
    campaign: &str,
    name: &str,
    round: Duration,
    length: Duration,
    mutant: &str,
    settings: String,
) -> Verdict {
    named(campaign).play(&Options {
        seed: std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1),
        length,
        round,
        fsync: false,
        folder: format!("torture-test-{name}"),
        program: env!("CARGO_BIN_EXE_torture").into(),
        settings,
        mutant: mutant.to_owned(),
    })
}
