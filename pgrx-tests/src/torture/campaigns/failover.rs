//! R8: the primary is killed and its synchronous standby promoted, repeatedly. Clients get an answer only after the
//! standby has the commit, so nothing may be lost. The old primary returns as the standby of the new one, mostly by
//! pg_rewind, and is promoted next.

use std::time::{Duration, Instant};

use crate::torture::campaign::Campaign;
use crate::torture::scene::Scene;
use crate::{Cluster, eventually};

const SOON: Duration = Duration::from_secs(60);

pub const CAMPAIGN: Campaign = Campaign {
    name: "failover",
    covers: "R8",
    // pg_rewind needs the write-ahead log since the last common checkpoint.
    settings: "wal_keep_size = 512MB",
    pause: (100, 600),
    fault,
    before,
    ..Campaign::PLAIN
};

fn before(scene: &mut Scene) {
    if scene.standby.is_none() {
        scene.standby = Some(scene.cluster.standby(&sibling(&scene.cluster)));
        make_synchronous(scene);
    }
}

fn fault(scene: &mut Scene) {
    scene.crash(|scene| scene.cluster.kill_all());
    let old = promote(scene, Instant::now());
    rejoin(scene, old);
    make_synchronous(scene);
}

/// The name of the folder for the other one of two servers.
pub fn sibling(cluster: &Cluster) -> String {
    let name = cluster.folder().file_name().and_then(|name| name.to_str()).expect("a plain name");
    name.strip_suffix(".standby").map_or_else(|| format!("{name}.standby"), str::to_owned)
}

/// The standby takes over. Returns the old primary.
pub fn promote(scene: &mut Scene, since: Instant) -> Cluster {
    let standby = scene.standby.take().expect("there is a standby");
    standby.promote();
    let old = std::mem::replace(&mut scene.cluster, standby);
    scene.target.redirect(scene.cluster.config("postgres"));
    scene.await_claim(since);
    eventually("the worker is there", SOON, || scene.worker().is_some());
    old
}

/// The old primary comes back as a standby: rewound, or as a new copy.
pub fn rejoin(scene: &mut Scene, mut old: Cluster) {
    if scene.random.chance(80) {
        scene.struck("the primary was killed, and rewound");
        old.rewind(&scene.cluster);
        scene.standby = Some(old);
    } else {
        scene.struck("the primary was killed, and copied anew");
        drop(old);
        scene.standby = Some(scene.cluster.standby(&sibling(&scene.cluster)));
    }
}

/// From now on commits wait for the standby, which can be read and nothing else.
fn make_synchronous(scene: &mut Scene) {
    let mut client = scene.cluster.connect();
    let level = scene.random.weighted(&[(50, "on"), (50, "remote_apply")]);
    for statement in [
        "ALTER SYSTEM SET synchronous_standby_names = '*'",
        &format!("ALTER SYSTEM SET synchronous_commit = {level}"),
        "SELECT pg_reload_conf()",
    ] {
        client.batch_execute(statement).expect("make it synchronous");
    }
    eventually("the standby is synchronous", SOON, || {
        let query = "SELECT FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'";
        client.query(query, &[]).is_ok_and(|rows| rows.len() == 1)
    });
    let mut standby = scene.standby.as_ref().expect("there is a standby").connect();
    standby.query("SELECT count(*) FROM queue.tasks", &[]).expect("read from the standby");
    let refused = standby.execute("SELECT queue.push('plain')", &[]).expect_err("a standby took a push");
    if refused.code().is_none_or(|code| code.code() != "25006") {
        scene.complaints.push(format!("the standby refused a push with {refused:?}"));
    }
}
