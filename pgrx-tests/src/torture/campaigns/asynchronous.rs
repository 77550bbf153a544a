//! R8, as a control: an asynchronous standby that lags is promoted. The commits that it had not received are lost;
//! this measures how many, and shows that the checks report them.

use std::time::{Duration, Instant};

use super::failover::{promote, rejoin, sibling};
use crate::cluster::signal;
use crate::torture::campaign::Campaign;
use crate::torture::load::Load;
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign = Campaign {
    name: "asynchronous",
    covers: "R8, the control group",
    settings: "wal_keep_size = 512MB",
    load: Load { only_push: true, ..Load::MIXED },
    pause: (500, 1500),
    fault,
    before,
    lossy: true,
    ..Campaign::PLAIN
};

fn before(scene: &mut Scene) {
    if scene.standby.is_none() {
        scene.standby = Some(scene.cluster.standby(&sibling(&scene.cluster)));
    }
}

fn fault(scene: &mut Scene) {
    // Whatever is committed from now on does not get out.
    let query = "SELECT pid FROM pg_stat_replication";
    let senders = scene.cluster.connect().query(query, &[]).expect("look for the sender");
    senders.iter().for_each(|row| signal(row.get(0), libc::SIGSTOP));
    std::thread::sleep(Duration::from_millis(scene.random.between(20, 100)));
    scene.crash(|scene| scene.cluster.kill_all());
    let old = promote(scene, Instant::now());
    rejoin(scene, old);
}
