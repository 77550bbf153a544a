//! R11: the server's clock is set by an hour and by ten years, forward and back, and runs at double and half the
//! speed, while leases are open. Times cannot be compared then; the tokens must still be right. Before the drain the
//! clock is set beyond all leases.

use crate::clock::Speed;
use crate::torture::campaign::Campaign;
use crate::torture::load::Load;
use crate::torture::scene::Scene;

const HOUR: i64 = 3600;
const TEN_YEARS: i64 = 3653 * 24 * HOUR;

pub const CAMPAIGN: Campaign = Campaign {
    name: "clock",
    covers: "R11",
    // Dead letters are kept for the checks, however old. The sweep bounds how long the worker acts on what it planned
    // before the clock was set back.
    settings: "queue.sweep_interval = '1s'\nqueue.dead_letter_retention = -1",
    load: Load { tolerated: &["40P01", "57014"], ..Load::MIXED },
    pause: (50, 500),
    fault,
    before,
    after,
    ..Campaign::PLAIN
};

fn before(scene: &mut Scene) {
    if scene.clock.is_none() {
        scene.cluster.stop("fast");
        scene.clock = Some(scene.cluster.with_fake_clock());
        scene.cluster.launch();
    }
}

fn fault(scene: &mut Scene) {
    let Some(clock) = &scene.clock else { return };
    let (what, step, speed) = scene.random.weighted(&[
        (20, ("an hour forward", HOUR, Speed::Real)),
        (20, ("an hour back", -HOUR, Speed::Real)),
        (20, ("ten years forward", TEN_YEARS, Speed::Real)),
        (20, ("ten years back", -TEN_YEARS, Speed::Real)),
        (10, ("twice as fast", 0, Speed::Double)),
        (10, ("half as fast", 0, Speed::Half)),
    ]);
    // Not before PostgreSQL's own epoch is left behind by far.
    scene.ahead = (scene.ahead + step).max(-2 * TEN_YEARS);
    scene.furthest = scene.furthest.max(scene.ahead);
    clock.set(scene.ahead, speed);
    scene.struck(what);
    end_waits(scene);
}

fn after(scene: &mut Scene) {
    // Beyond every lease, and beyond the faster clock.
    scene.ahead = scene.furthest + HOUR;
    scene.furthest = scene.ahead;
    scene.clock.iter().for_each(|clock| clock.set(scene.ahead, Speed::Real));
    end_waits(scene);
}

/// The server's timeouts go by its clock: deadlock_timeout and lock_timeout of a wait that began before the clock was put
/// back are over as much later.
fn end_waits(scene: &Scene) {
    let query = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
                 WHERE application_name LIKE 'torture %' AND wait_event_type = 'Lock'";
    scene.cluster.connect().batch_execute(query).expect("end the waits for locks");
}
