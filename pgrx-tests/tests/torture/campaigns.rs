//! A few seconds of each campaign. `make torture` plays them for as long as one likes.

use std::time::Duration;

use super::{options, play};
use queue_ext_tests::cluster::signal;
use queue_ext_tests::torture::campaign::{Campaign, Options};
use queue_ext_tests::torture::campaigns::named;
use queue_ext_tests::torture::load::Load;
use queue_ext_tests::torture::scene::Scene;
use queue_ext_tests::{SOON, brief, eventually};

fn holds(campaign: &str) {
    let round = if brief() { 1000 } else { 1500 };
    // Longer rounds where the clients do nothing in a short one.
    let done = [1, 4, 16].into_iter().any(|longer| {
        let verdict = play(campaign, campaign, Duration::from_millis(longer * round), Duration::ZERO, "");
        assert!(verdict.violations.is_empty(), "{verdict}");
        verdict.counts.acknowledged > 20
    });
    assert!(done, "the clients did nothing");
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
    crash, durable, stop, backend, zombies, worker, cut, failover, pinned, cancel, levels, deadlock,
    savepoints, twophase, upkeep, chaos, full, clock, crowded, references, forgetful, metered
);

/// A lease that did not survive a crash is noticed where it had to. One client, so that no commit of another makes its
/// claims durable.
#[test]
fn a_lost_lease_is_noticed() {
    if brief() {
        return;
    }
    let durable = named("durable");
    let load = Load { clients: 1, careless: 0, ..durable.load };
    let verdict = Campaign { load, fault: crash_with_a_raised_mark, ..durable }.play(&Options {
        settings: "wal_writer_delay = 10s\nwal_writer_flush_after = 1GB".into(),
        mutant: "ALTER DATABASE postgres SET queue.durable_leases = off".into(),
        ..options("lost-lease", Duration::from_millis(1500), Duration::from_secs(300))
    });
    // It is given to two workers, or it expires although it was claimed.
    let noticed = |invariant| verdict.violations.iter().any(|violation| violation.invariant == invariant);
    assert!(noticed("I5") || noticed("I18"), "{verdict}");
}

/// A crash in which a lease can be lost. Until the worker has raised the mark of the tokens, claims wait for the disk.
fn crash_with_a_raised_mark(scene: &mut Scene) {
    let reached = |scene: &Scene| -> i64 {
        let row = scene.cluster.connect().query_one("SELECT reached FROM queue_internal.token_mark", &[]);
        row.expect("the mark").get(0)
    };
    let before = reached(scene);
    let mut client = scene.cluster.connect();
    eventually("a claim is answered that is not on the disk", SOON, || {
        let query = "SELECT pid FROM pg_stat_activity
                     WHERE application_name LIKE 'torture %' AND state = 'idle' AND query LIKE '%queue.claim(%'
                       AND pg_current_wal_insert_lsn() > pg_current_wal_lsn()";
        let session = client.query_opt(query, &[]).expect("the session");
        // At once, because its next commit would write the claim. The rest of the server follows.
        session.inspect(|row| signal(row.get(0), libc::SIGKILL)).is_some()
    });
    (named("crash").fault)(scene);
    eventually("the mark is raised", SOON, || reached(scene) > before);
}

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
    // Once more where a lag of milliseconds has lost nothing.
    let lost = [4, 8, 16].into_iter().any(|seconds| {
        let verdict = play("asynchronous", "asynchronous", Duration::from_secs(seconds), Duration::ZERO, "");
        assert!(verdict.violations.is_empty(), "{verdict}");
        verdict.counts.lost > 0
    });
    assert!(lost, "nothing was lost");
}
