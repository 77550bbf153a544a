//! R3: kill -9 of one session in the middle of whatever it does, upon which the server restarts.

use crate::torture::campaign::{Campaign, LATIN1};
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign =
    Campaign { name: "backend", covers: "R3", initdb: LATIN1, pause: (100, 700), fault, ..Campaign::PLAIN };

pub fn fault(scene: &mut Scene) {
    if let Some(pid) = scene.any_session() {
        scene.struck("kill -9 of a session");
        scene.kill_one(pid);
    }
}
