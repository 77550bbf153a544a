//! R5: the background worker is killed, terminated, and made to fail, and is back.

use std::time::{Duration, Instant};

use crate::cluster::signal;
use crate::torture::campaign::Campaign;
use crate::torture::scene::Scene;
use crate::{SOON, eventually, stalls};

/// How soon the worker has to be back, once the server answers.
const BACK_WITHIN: Duration = Duration::from_secs(5);

pub const CAMPAIGN: Campaign =
    Campaign { name: "worker", covers: "R5", pause: (50, 500), fault, ..Campaign::PLAIN };

pub fn fault(scene: &mut Scene) {
    let Some(pid) = scene.worker() else { return };
    let mut since = Instant::now();
    if scene.random.chance(50) {
        scene.struck("kill -9 of the worker");
        scene.kill_one(pid);
        since = Instant::now();
    } else {
        scene.struck("SIGTERM to the worker");
        signal(pid, libc::SIGTERM);
    }
    eventually("another worker is there", SOON, || scene.worker().is_some_and(|other| other != pid));
    let late = stalls::since(since);
    if late > BACK_WITHIN {
        scene.complaints.push(format!("the worker was back after {late:?}"));
    }
}
