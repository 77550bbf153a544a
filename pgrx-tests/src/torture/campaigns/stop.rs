//! R2: the server is stopped in each of the three modes while its clients work.

use std::time::{Duration, Instant};

use crate::stalls;
use crate::torture::campaign::Campaign;
use crate::torture::scene::Scene;

/// Within this a fast stop has to be done.
const FAST: Duration = Duration::from_secs(10);

pub const CAMPAIGN: Campaign =
    Campaign { name: "stop", covers: "R2", pause: (100, 900), fault, ..Campaign::PLAIN };

pub fn fault(scene: &mut Scene) {
    let mode = scene.random.weighted(&[(45, "immediate"), (45, "fast"), (10, "smart")]);
    scene.struck(mode);
    let mut since = Instant::now();
    if mode == "smart" {
        // A smart stop waits for the clients, which continue, so a faster one follows.
        scene.cluster.begin_smart_stop();
        std::thread::sleep(Duration::from_millis(scene.random.between(50, 500)));
        since = Instant::now();
        scene.cluster.stop("fast");
    } else if mode == "fast" {
        scene.cluster.stop(mode);
    } else {
        scene.crash(|scene| scene.cluster.stop(mode));
    }
    let took = stalls::since(since);
    if took > FAST {
        scene.complaints.push(format!("a stop took {took:?}"));
    }
    scene.back_up(since);
}
