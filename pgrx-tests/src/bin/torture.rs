//! Runs a campaign: see make torture.
//!
//!   torture CAMPAIGN|all SECONDS [SEED]
//!   torture client CAMPAIGN SERVER JOURNALS NAME SEED STREAM     (started by the campaign zombies)
//!
//! Without a seed it chooses one and prints it. SIGINT ends it early; what was done until then is checked. The
//! servers run without fsync unless FSYNC=on: what a killed process has written stays in the kernel's memory, so that
//! only changes the speed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use queue_ext_tests::torture::campaign::{Options, end_gracefully, interrupted, run_client};
use queue_ext_tests::torture::campaigns::{ALL, named};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["client", campaign, server, journals, name, seed, stream] => {
            let numbers = [seed, stream].map(|number| number.parse().expect("a number"));
            run_client(&named(campaign), server.as_ref(), journals.as_ref(), name, numbers);
        }
        [campaign, seconds] => play(campaign, seconds, fresh_seed()),
        [campaign, seconds, seed] => play(campaign, seconds, seed.parse().expect("a seed")),
        _ => panic!("say make torture"),
    }
}

fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64
}

fn play(wanted: &str, seconds: &str, seed: u64) {
    let campaigns = if wanted == "all" { ALL.to_vec() } else { vec![named(wanted)] };
    let seconds = Duration::from_secs(seconds.parse().expect("how many seconds"));
    end_gracefully();
    let mut broken = 0;
    for campaign in campaigns.iter().take_while(|_| !interrupted()) {
        let verdict = campaign.play(&Options {
            seed,
            length: seconds / campaigns.len() as u32,
            round: Duration::from_secs(15),
            fsync: std::env::var("FSYNC").is_ok_and(|fsync| fsync == "on"),
            folder: format!("torture-{}", campaign.name),
            program: std::env::current_exe().expect("this program"),
            settings: String::new(),
            mutant: String::new(),
        });
        broken += verdict.violations.len();
    }
    assert_eq!(broken, 0, "promises were broken");
}
