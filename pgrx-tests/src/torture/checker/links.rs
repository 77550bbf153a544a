//! I16: a task runs only when all of its predecessors are over, and as they ended.

use super::{Facts, OnFailure};

pub fn check(facts: &Facts<'_>, timed: bool, say: &mut impl FnMut(&'static str, String)) {
    for push in facts.pushes.values().flatten() {
        // One that replaces may have changed a task that waits for others, or for nothing.
        if push.link.after.is_empty() || push.link.replaces {
            continue;
        }
        let rows = facts.found.get(push.value).map_or(&[][..], Vec::as_slice);
        for row in rows {
            let task = &facts.tasks[&row.id];
            // The last claim comes latest; the first one must be late enough.
            let Some(claim) = task.claims.iter().min_by_key(|claim| claim.operation.end) else { continue };
            for id in &push.link.after {
                let Some(end) = facts.end_of(*id) else { continue };
                let name = &claim.operation.name;
                if end.finished.is_none_or(|finished| timed && finished > claim.operation.end) {
                    say(
                        "I16",
                        format!("{name} claimed {} while {id}, which comes before it, was not over", row.id),
                    );
                }
                if end.state != "completed" && push.link.on_failure != OnFailure::Continue {
                    say("I16", format!("{name} claimed {} although {id} {}", row.id, end.state));
                }
            }
        }
    }
}
