//! R12: old snapshots hold back vacuum while the clients work: one for the whole round, others for a while.

use crate::torture::campaign::Campaign;
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign = Campaign {
    name: "pinned",
    covers: "R12",
    settings: "autovacuum_naptime = 1",
    pause: (1, 1),
    fault,
    ..Campaign::PLAIN
};

/// Holds a snapshot for up to two seconds, again and again.
fn fault(scene: &mut Scene) {
    scene.struck("an old snapshot");
    let mut pin = scene.cluster.connect();
    pin.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queue.tasks")
        .expect("pin");
    std::thread::sleep(std::time::Duration::from_millis(scene.random.between(500, 2000)));
    pin.batch_execute("COMMIT").expect("let go");
}
