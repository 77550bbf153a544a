//! R31: tables and indexes are rewritten and vacuumed under load.

use crate::torture::campaign::Campaign;
use crate::torture::load::Load;
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign = Campaign {
    name: "upkeep",
    covers: "R31",
    settings: "autovacuum = off",
    // Rewriting a table takes locks that conflict with every call.
    load: Load { tolerated: &["40P01"], ..Load::MIXED },
    pause: (50, 500),
    fault,
    ..Campaign::PLAIN
};

pub fn fault(scene: &mut Scene) {
    let what = scene.random.weighted(&[
        (1, "VACUUM FULL queue.tasks"),
        (2, "VACUUM queue.tasks"),
        (1, "REINDEX TABLE CONCURRENTLY queue.tasks"),
        (1, "REINDEX TABLE queue.tasks"),
        (1, "CLUSTER queue.tasks USING tasks_pkey"),
        (1, "VACUUM FULL queue_internal.keys"),
        (1, "REINDEX TABLE CONCURRENTLY queue_internal.events"),
        (1, "ANALYZE"),
    ]);
    scene.struck(what);
    let mut client = scene.cluster.connect();
    if let Err(error) = client.batch_execute(what) {
        let deadlock = error.code().is_some_and(|code| code.code() == "40P01");
        if !deadlock {
            scene.complaints.push(format!("{what}: {error:?}"));
        }
    }
}
