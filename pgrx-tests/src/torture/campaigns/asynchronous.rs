//! R8, for comparison: an asynchronous standby is promoted that lags behind. What it had not got yet is
//! lost; this measures how much, and shows that the account sees it.

use std::time::{Duration, Instant};

use super::failover::{follow, promote};
use crate::cluster::signal;
use crate::torture::campaign::Campaign;
use crate::torture::load::Load;
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign = Campaign {
    name: "asynchronous",
    covers: "R8, the control group",
    settings: "",
    load: Load { only_push: true, ..Load::MIXED },
    pause: (500, 1500),
    fault,
    before,
    after: Campaign::nothing,
    lossy: true,
};

fn before(scene: &mut Scene) {
    if scene.standby.is_none() {
        follow(scene, false);
    }
}

fn fault(scene: &mut Scene) {
    let standby = scene.standby.as_ref().expect("there is a standby");
    let query = "SELECT pid FROM pg_stat_wal_receiver";
    let receiver = standby.connect().query_opt(query, &[]).expect("look").map(|row| row.get::<_, i32>(0));
    let lag = scene.random.between(0, 100);
    if let Some(pid) = receiver {
        signal(pid, libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(lag));
    }
    scene.struck("the primary was killed");
    let since = Instant::now();
    scene.cluster.kill_all();
    if let Some(pid) = receiver {
        signal(pid, libc::SIGCONT);
    }
    promote(scene, since);
    follow(scene, false);
}
