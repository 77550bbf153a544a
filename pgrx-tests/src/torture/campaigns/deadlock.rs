//! R15: batches in any order, over tasks that others hold, against everything that operators do, queues
//! that are dropped among it. No transaction here has more than one statement, so no deadlock is the
//! client's own doing.

use crate::torture::campaign::Campaign;
use crate::torture::load::Load;
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign = Campaign {
    name: "deadlock",
    covers: "R15",
    load: Load { clients: 16, blocks: 0, batches: 25, tolerated: &[], ..Load::MIXED },
    pause: (1, 20),
    fault,
    ..Campaign::PLAIN
};

fn fault(scene: &mut Scene) {
    let what = scene.random.weighted(&[
        (30, "SELECT queue.reap()"),
        (15, "CALL queue.maintain()"),
        (10, "CALL queue.reprioritise_where('{\"queue\": \"plain\"}', (random() * 3)::int)"),
        (10, "CALL queue.run_now_where('{\"queue\": \"hot\"}')"),
        (10, "SELECT queue.configure('limited', '{\"max_running\": 5}')"),
        (10, "SELECT queue.pause('plain'), queue.resume('plain')"),
        (25, "SELECT queue.create('brief', '{\"max_running\": 3}')"),
    ]);
    let clear = scene.random.weighted(&[
        (20, "SELECT queue.purge('brief')"),
        (20, "CALL queue.cancel_where('{\"queue\": \"brief\", \"state\": \"queued\"}')"),
        (60, "CALL queue.reprioritise_where('{\"queue\": \"brief\"}', 7)"),
    ]);
    scene.struck(what);
    let mut client = scene.cluster.connect();
    let mut run = |statement: &str| {
        if let Err(error) = client.batch_execute(statement) {
            scene.complaints.push(format!("{statement}: {error:?}"));
        }
    };
    run(what);
    if what.contains("brief") {
        // The checks ignore the tasks of this queue. Batches contain them.
        run("SELECT queue.push_many('brief', array_fill('{}'::jsonb, ARRAY[20]), group_key => 'g')");
        run("SELECT queue.fail(id, token, 'no', NULL, true) FROM queue.claim('1 minute', 'brief', 2)");
        run("SELECT queue.redrive('brief')");
        run("CALL queue.run_now_where('{\"queue\": \"brief\"}')");
        run("SELECT count(*) FROM queue.claim('1 s', 'brief', 2)");
        run(clear);
        run("SELECT queue.drop('brief', true)");
    }
}
