//! R3: kill -9 of one session in the middle of whatever it does, upon which the server restarts.

use crate::torture::campaign::Campaign;
use crate::torture::load::Load;
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign = Campaign {
    name: "backend",
    covers: "R3",
    settings: "",
    load: Load::MIXED,
    pause: (100, 700),
    fault,
    before: Campaign::nothing,
    after: Campaign::nothing,
    lossy: false,
};

pub fn fault(scene: &mut Scene) {
    if let Some(pid) = scene.any_session() {
        scene.struck("kill -9 of a session");
        scene.kill_one(pid);
    }
}
