//! R13: statements are cut short at any moment: cancelled, terminated, or out of time.

use crate::torture::campaign::Campaign;
use crate::torture::load::Load;
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign = Campaign {
    name: "cancel",
    covers: "R13",
    settings: "",
    load: Load { clients: 16, timeouts: 20, tolerated: &["57014", "40P01"], ..Load::MIXED },
    pause: (1, 30),
    fault,
    before: Campaign::nothing,
    after: Campaign::nothing,
    lossy: false,
};

pub fn fault(scene: &mut Scene) {
    let terminate = scene.random.chance(10);
    let what = if terminate { "pg_terminate_backend" } else { "pg_cancel_backend" };
    let query = format!(
        "SELECT count({what}(pid)) FROM (SELECT pid FROM pg_stat_activity
         WHERE application_name LIKE 'torture %' AND state <> 'idle' ORDER BY random() LIMIT 2) AS s"
    );
    let hit: i64 = scene.cluster.connect().query_one(&query, &[]).expect("cut it short").get(0);
    (0..hit).for_each(|_| scene.struck(what));
}
