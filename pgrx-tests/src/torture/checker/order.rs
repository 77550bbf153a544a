//! I8 groups in the order of their pushes, I9 one live task for a key.

use std::collections::HashMap;

use super::{Facts, Outcome, Push, Task};
use crate::torture::load::METERED;

/// A task whose push is known to have committed, and when it was over at the earliest.
struct Life<'a> {
    id: i64,
    push: &'a Push<'a>,
    task: &'a Task<'a>,
    finished: i64,
}

pub fn check(facts: &Facts<'_>, say: &mut impl FnMut(&'static str, String)) {
    let (mut groups, mut keys) = (HashMap::<_, Vec<Life<'_>>>::new(), HashMap::<_, Vec<Life<'_>>>::new());
    for push in facts.pushes.values().flatten().filter(|push| push.outcome == Outcome::Ok) {
        // It may have come after the task that has its value now, and may live beside the one it replaces.
        if push.link.replaces {
            continue;
        }
        let Some((id, task)) = push.id.and_then(|id| Some((id, facts.tasks.get(&id)?))) else { continue };
        let Some(row) = task.found.iter().find(|row| row.value == push.value) else { continue };
        let life = || Life { id, push, task, finished: row.finished.unwrap_or(i64::MAX) };
        // Where several tasks of a group run at once, the second may end first.
        if let Some(group) = push.group.filter(|_| push.queue != METERED) {
            groups.entry((push.queue, group)).or_default().push(life());
        }
        if let Some(key) = push.key {
            keys.entry((push.queue, key)).or_default().push(life());
        }
    }
    // A task pushed after the commit of another push comes after it. Of two concurrent pushes, the first to commit
    // may be admitted first, whatever its id.
    for ((_, group), lives) in groups {
        for later in &lives {
            for claim in &later.task.claims {
                let passed = lives.iter().find(|life| {
                    life.id < later.id
                        && life.push.operation.end < later.push.operation.begin
                        && life.finished > claim.operation.end
                });
                if let Some(life) = passed {
                    let (name, ahead) = (&claim.operation.name, life.id);
                    say("I8", format!("{name} claimed {} of {group} while {ahead} was not over", later.id));
                }
            }
        }
    }
    for ((_, key), lives) in keys {
        for one in &lives {
            let second = lives.iter().find(|life| {
                life.id != one.id
                    && one.push.operation.end < life.push.operation.begin
                    && life.push.operation.end < one.finished
            });
            if let Some(life) = second {
                say("I9", format!("{} was pushed with {key} while {} lived", life.id, one.id));
            }
        }
    }
}
