//! R15: batches in any order, over tasks that others hold, against reaping and queues that are dropped.
//! No transaction here has more than one statement, so no deadlock is the client's own doing.

use crate::torture::campaign::Campaign;
use crate::torture::load::Load;
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign = Campaign {
    name: "deadlock",
    covers: "R15",
    settings: "",
    load: Load { clients: 16, blocks: 0, batches: 25, tolerated: &[], ..Load::MIXED },
    pause: (1, 50),
    fault,
    before: Campaign::nothing,
    after: Campaign::nothing,
    lossy: false,
};

fn fault(scene: &mut Scene) {
    let what = scene.random.weighted(&[
        (40, "SELECT queue.reap()"),
        (20, "CALL queue.maintain()"),
        (20, "CALL queue.reprioritise_where('{\"queue\": \"plain\"}', 1)"),
        (20, "SELECT queue.create('brief', '{\"max_running\": 3}')"),
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
        run("SELECT queue.push_many('brief', array_fill('{}'::jsonb, ARRAY[20]), group_key => 'g')");
        run("SELECT count(*) FROM queue.claim('1 s', 'brief', 2)");
        run("SELECT queue.drop('brief', true)");
    }
}
