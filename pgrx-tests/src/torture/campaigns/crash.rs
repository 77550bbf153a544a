//! R1: kill -9 of the postmaster and everything that it started, in the middle of the work.

use std::time::Instant;

use crate::torture::campaign::Campaign;
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign =
    Campaign { name: "crash", covers: "R1", pause: (100, 900), fault, ..Campaign::PLAIN };

pub fn fault(scene: &mut Scene) {
    let since = Instant::now();
    scene.struck("kill -9 of the server");
    scene.crash(|scene| scene.cluster.kill_all());
    scene.back_up(since);
}
