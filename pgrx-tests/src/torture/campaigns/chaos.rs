//! Everything that can befall one server, in any order, under a load of everything.

use super::{backend, cancel, crash, stop, upkeep, worker};
use crate::torture::campaign::{Campaign, LATIN1};
use crate::torture::load::Load;
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign = Campaign {
    name: "chaos",
    covers: "R1, R2, R3, R5, R13, R14, R16, R17, R31",
    initdb: LATIN1,
    settings: "autovacuum_naptime = 1\nqueue.lanes = 4",
    load: Load {
        clients: 12,
        blocks: 40,
        two_phase: 10,
        strict: 10,
        timeouts: 5,
        tolerated: &["40P01", "40001", "57014", "55P03"],
        ..Load::MIXED
    },
    pause: (20, 600),
    fault,
    ..Campaign::PLAIN
};

fn fault(scene: &mut Scene) {
    let fault: fn(&mut Scene) = scene.random.weighted(&[
        (10, crash::fault as fn(&mut Scene)),
        (8, stop::fault),
        (10, backend::fault),
        (10, worker::fault),
        (40, cancel::fault),
        (20, upkeep::fault),
    ]);
    fault(scene);
}
