//! R13: statements are cut short at any moment: cancelled, terminated, or out of time.

use crate::torture::campaign::{Campaign, LATIN1};
use crate::torture::load::Load;
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign = Campaign {
    name: "cancel",
    covers: "R13",
    initdb: LATIN1,
    load: Load { clients: 16, timeouts: 20, tolerated: &["57014", "55P03", "40P01"], ..Load::MIXED },
    pause: (0, 1),
    fault,
    ..Campaign::PLAIN
};

/// A signal to a session that has just finished its statement has no effect, so the statements are counted whose
/// clients were told that they were cut short.
pub fn fault(scene: &mut Scene) {
    let terminate = scene.random.chance(2);
    let what = if terminate { "pg_terminate_backend" } else { "pg_cancel_backend" };
    let query = format!(
        "SELECT count({what}(pid)) FROM (SELECT pid FROM pg_stat_activity
         WHERE application_name LIKE 'torture %' AND state <> 'idle' ORDER BY random() LIMIT 8) AS s"
    );
    let kept = scene.operator.take().filter(|operator| !operator.is_closed());
    let Some(mut operator) = kept.or_else(|| scene.cluster.try_connect("postgres")) else { return };
    let Ok(row) = operator.query_one(&query, &[]) else { return };
    (0..row.get::<_, i64>(0)).for_each(|_| scene.struck(what));
    scene.operator = Some(operator);
}
