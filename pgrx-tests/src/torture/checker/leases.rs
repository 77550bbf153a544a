//! I5 no two leases at once, I6 growing tokens, and the limits on how many run.

use std::collections::HashMap;

use super::{Claim, Facts, Task};
use crate::torture::load::{LIMITED, METERED, MOST_OF_GROUP, MOST_RUNNING};

pub fn check(facts: &Facts<'_>, timed: bool, say: &mut impl FnMut(&'static str, String)) {
    // When leases certainly began and ended, by key, group or limit.
    let mut running: HashMap<(String, i64), Vec<(i64, i64)>> = HashMap::new();
    for (id, task) in &facts.tasks {
        for pair in task.claims.windows(2) {
            let [one, next] = pair else { continue };
            if one.token == next.token {
                let (a, b) = (&one.operation.name, &next.operation.name);
                say("I6", format!("{a} and {b} both got token {} of task {id}", one.token));
            } else if next.operation.end < one.operation.begin {
                say("I6", format!("task {id} had token {} before token {}", next.token, one.token));
            }
        }
        forgotten(*id, task, say);
        for (number, claim) in task.claims.iter().enumerate().filter(|_| timed) {
            let held_until = task.held_until(claim);
            for next in &task.claims[number + 1..] {
                if next.operation.end < held_until && next.token != claim.token {
                    let (a, b) = (&claim.operation.name, &next.operation.name);
                    let early = held_until - next.operation.end;
                    say("I5", format!("{b} got task {id} {early} us before the lease of {a} was over"));
                }
            }
            let span = (claim.operation.end, held_until);
            let group = claim.group.map(|group| {
                let most = if claim.queue == METERED { MOST_OF_GROUP } else { 1 };
                (format!("group {group} of {}", claim.queue), most)
            });
            let limit = LIMITED.contains(&claim.queue).then(|| (claim.queue.to_owned(), MOST_RUNNING));
            for name in group.into_iter().chain(limit) {
                running.entry(name).or_default().push(span);
            }
        }
    }
    for ((name, limit), spans) in running {
        let most = most_at_once(&spans);
        if most > limit {
            say(
                if limit == MOST_RUNNING { "limits" } else { "I8" },
                format!("{most} tasks of {name} ran at once"),
            );
        }
    }
}

/// A token that was handed out is never handed out again, nor a smaller one, though a crash may have undone
/// the claim that got it.
fn forgotten(id: i64, task: &Task<'_>, say: &mut impl FnMut(&'static str, String)) {
    for (number, lost) in task.forgotten.iter().enumerate() {
        // Each pair once.
        for other in task.claims.iter().chain(&task.forgotten[number + 1..]) {
            let (a, b) = (&lost.operation.name, &other.operation.name);
            if other.token == lost.token {
                say("I6", format!("{a} and {b} both got token {} of task {id}", lost.token));
            }
            let order = |first: &Claim<'_>, second: &Claim<'_>| {
                first.operation.end < second.operation.begin && first.token > second.token
            };
            if order(lost, other) || order(other, lost) {
                let (one, two) = (lost.token, other.token);
                say("I6", format!("tokens {one} of {a} and {two} of {b} for task {id} do not grow"));
            }
        }
    }
}

/// How many of the spans share an instant at most.
fn most_at_once(spans: &[(i64, i64)]) -> i64 {
    let mut steps: Vec<(i64, i64)> =
        spans.iter().filter(|(from, to)| from < to).flat_map(|(from, to)| [(*from, 1), (*to, -1)]).collect();
    steps.sort_unstable();
    let mut now = 0;
    steps
        .iter()
        .map(|(_, step)| {
            now += step;
            now
        })
        .max()
        .unwrap_or(0)
}
