//! R8: the primary is killed and its synchronous standby promoted, again and again. Clients wait for the
//! standby before they are told that something is committed, so nothing may be lost.

use std::time::{Duration, Instant};

use crate::eventually;
use crate::torture::campaign::Campaign;
use crate::torture::load::Load;
use crate::torture::scene::Scene;

const SOON: Duration = Duration::from_secs(60);

pub const CAMPAIGN: Campaign = Campaign {
    name: "failover",
    covers: "R8",
    settings: "",
    load: Load::MIXED,
    pause: (300, 1500),
    fault,
    before,
    after: Campaign::nothing,
    lossy: false,
};

fn before(scene: &mut Scene) {
    if scene.standby.is_none() {
        follow(scene, true);
    }
}

/// A new standby; with `synchronous`, commits wait for it from now on.
pub fn follow(scene: &mut Scene, synchronous: bool) {
    let number = scene.faults.values().sum::<u64>();
    let name = scene.cluster.folder().file_name().and_then(|name| name.to_str()).expect("a plain name");
    let base = name.split(".").next().expect("a first part");
    scene.standby = Some(scene.cluster.standby(&format!("{base}.standby{}", number % 2)));
    if !synchronous {
        return;
    }
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
}

fn fault(scene: &mut Scene) {
    scene.struck("the primary was killed");
    let since = Instant::now();
    scene.cluster.kill_all();
    promote(scene, since);
    follow(scene, true);
}

/// The standby takes over.
pub fn promote(scene: &mut Scene, since: Instant) {
    let standby = scene.standby.take().expect("there is a standby");
    standby.connect().batch_execute("SELECT pg_promote()").expect("promote");
    scene.cluster = standby;
    scene.target.redirect(scene.cluster.config("postgres"));
    scene.await_claim(since);
    eventually("the worker is there", Duration::from_secs(5), || scene.worker().is_some());
}
