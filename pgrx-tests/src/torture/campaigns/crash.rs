//! R1: kill -9 of the postmaster and everything that it started, in the middle of the work.

use std::time::Instant;

use crate::torture::campaign::Campaign;
use crate::torture::load::Load;
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign = Campaign {
    name: "crash",
    covers: "R1",
    settings: "",
    load: Load::MIXED,
    pause: (100, 900),
    fault,
    before: Campaign::nothing,
    after: Campaign::nothing,
    lossy: false,
};

pub fn fault(scene: &mut Scene) {
    let since = Instant::now();
    scene.struck("kill -9 of the server");
    scene.cluster.kill_all();
    scene.back_up(since);
}
