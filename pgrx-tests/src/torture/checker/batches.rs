//! I19: the callback of a batch is claimed only after the batch was sealed and all of its tasks have ended, and its headers
//! count them.

use serde_json::json;

use super::{Facts, Found};

pub fn check(facts: &Facts<'_>, timed: bool, say: &mut impl FnMut(&'static str, String)) {
    for (id, batch) in facts.batches.iter().filter(|(_, batch)| batch.sure) {
        let Some(task) = facts.tasks.get(id) else { continue };
        // If there were several, each but the first came later.
        let Some(claim) = task.claims.iter().min_by_key(|claim| claim.operation.end) else { continue };
        let name = &claim.operation.name;
        if batch.sealed.is_none_or(|sealed| timed && sealed > claim.operation.end) {
            say("I19", format!("{name} claimed the callback {id} of a batch that was not sealed"));
        }
        let members: Vec<&Found> =
            batch.members.iter().filter_map(|value| facts.found.get(value)).flatten().copied().collect();
        for member in &members {
            if member.finished.is_none_or(|finished| timed && finished > claim.operation.end) {
                let member = member.id;
                say(
                    "I19",
                    format!("{name} claimed the callback {id} while {member} of its batch was not over"),
                );
            }
        }
        let count = |state| members.iter().filter(|member| member.state == state).count();
        let counts = json!({
            "completed": count("completed"), "failed": count("failed"), "cancelled": count("cancelled")
        });
        for row in task.found.iter().filter(|row| row.counts.as_ref() != Some(&counts)) {
            say("I19", format!("the batch {id} has {counts}, and its callback says {:?}", row.counts));
        }
    }
}
