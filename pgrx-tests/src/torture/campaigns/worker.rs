//! R5: the background worker is killed, terminated, and made to fail, and is back.

use std::time::{Duration, Instant};

use crate::cluster::signal;
use crate::eventually;
use crate::torture::campaign::Campaign;
use crate::torture::scene::Scene;

/// Within this the worker has to be back.
const BACK_WITHIN: Duration = Duration::from_secs(5);

pub const CAMPAIGN: Campaign =
    Campaign { name: "worker", covers: "R5", pause: (50, 500), fault, ..Campaign::PLAIN };

pub fn fault(scene: &mut Scene) {
    let Some(pid) = scene.worker() else { return };
    let since = Instant::now();
    if scene.random.chance(50) {
        scene.struck("kill -9 of the worker");
        scene.kill_one(pid);
    } else {
        scene.struck("SIGTERM to the worker");
        signal(pid, libc::SIGTERM);
    }
    eventually("another worker is there", Duration::from_secs(60), || {
        scene.worker().is_some_and(|other| other != pid)
    });
    if since.elapsed() > BACK_WITHIN {
        scene.complaints.push(format!("the worker was back after {:?}", since.elapsed()));
    }
}
