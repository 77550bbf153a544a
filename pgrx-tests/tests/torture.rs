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
    named(campaign).play(&Options { mutant: mutant.to_owned(), ..options(name, round, length) })
}

fn options(name: &str, round: Duration, length: Duration) -> Options {
    Options {
        seed: std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1),
        length,
        round,
        fsync: false,
        folder: format!("torture-test-{name}"),
        program: env!("CARGO_BIN_EXE_torture").into(),
        settings: String::new(),
        mutant: String::new(),
    }
}
