//! A user's table with a foreign key to the tasks comes and goes: while it exists, calls fall back to SQL, and a
//! session that writes to it locks rows of tasks.

use crate::torture::campaign::Campaign;
use crate::torture::load::Load;
use crate::torture::scene::Scene;

pub const CAMPAIGN: Campaign = Campaign {
    name: "references",
    covers: "foreign keys to the tasks, and locks on their rows",
    load: Load {
        blocks: 50,
        locks: 25,
        references: true,
        // An order of a task that is over; and a table that is altered.
        tolerated: &["23503", "40P01"],
        ..Load::MIXED
    },
    pause: (100, 1000),
    fault,
    ..Campaign::PLAIN
};

fn fault(scene: &mut Scene) {
    let drop = "ALTER TABLE public.orders DROP CONSTRAINT IF EXISTS of_task";
    let add = "ADD CONSTRAINT of_task FOREIGN KEY (task) REFERENCES queue.tasks (id) ON DELETE";
    let (what, rule) = scene.random.weighted(&[
        (1, ("a foreign key, ON DELETE CASCADE", Some("CASCADE"))),
        (1, ("a foreign key, ON DELETE SET NULL", Some("SET NULL"))),
        (1, ("no foreign key", None)),
    ]);
    scene.struck(what);
    let statement = rule.map_or(drop.to_owned(), |rule| format!("{drop}, {add} {rule} NOT VALID"));
    if let Err(error) = scene.cluster.connect().batch_execute(&statement) {
        let deadlock = error.code().is_some_and(|code| code.code() == "40P01");
        if !deadlock {
            scene.complaints.push(format!("{statement}: {error:?}"));
        }
    }
}
