//! I21: no lease reaches beyond the timeout of its attempt. An attempt whose lease ended there has timed out, and one whose
//! lease ended before has not. Once the end of an attempt is recorded, its worker is refused.

use super::facts::{Claim, Task};
use super::{Facts, Outcome};
use crate::torture::journal::Operation;

pub fn check(facts: &Facts<'_>, say: &mut impl FnMut(&'static str, String)) {
    for (id, task) in &facts.tasks {
        for claim in &task.claims {
            let (name, token) = (&claim.operation.name, claim.token);
            let start = facts.start_of(claim);
            let timeout = facts.timeout_of(claim.queue, claim.value);
            if timeout.is_some() && !(claim.operation.begin..=claim.operation.end).contains(&start) {
                say("I21", format!("{name} got a lease on task {id} that is not as long as it should be"));
            }
            let over = timeout.map_or(i64::MAX, |timeout| start + timeout);
            for extension in task.extensions.iter().filter(|extension| extension.token == token) {
                let late = extension.operation.begin.max(extension.until.unwrap_or_default()) > over;
                if late && extension.outcome == Outcome::Ok && extension.until.is_some() {
                    let name = &extension.operation.name;
                    say("I21", format!("{name} extended token {token} of task {id} beyond its timeout"));
                }
            }
            for (at, error) in ends_of(task, claim) {
                let until = last_lease(task, claim);
                let expected = if until == Some(over) { "timed out" } else { "lease expired" };
                if until.is_some() && error != expected || error == "timed out" && at < over {
                    let text = format!("the attempt of {name} at task {id} ended at {at} with \"{error}\"");
                    say("I21", format!("{text}; its lease ended at {until:?}, its timeout at {over}"));
                }
                let late = |(operation, of): &(&Operation, i64)| *of == token && operation.begin > at;
                if let Some((operation, _)) = task.accepted().find(late) {
                    let text = format!("{} was accepted with token {token} of task {id}", operation.name);
                    say("I21", format!("{text}, whose attempt had ended with \"{error}\""));
                }
            }
        }
    }
}

/// When and how the attempt of a claim ended without its worker. An error names the worker, which is the operation that
/// claimed the task; one that claimed it twice is left out.
fn ends_of<'a>(task: &'a Task<'_>, claim: &'a Claim<'_>) -> impl Iterator<Item = (i64, &'a str)> {
    let name = &claim.operation.name;
    let once = task.claims.iter().filter(|other| other.operation.name == *name).count() == 1;
    let errors = task.found.iter().filter(move |_| once).flat_map(|row| &row.expiries);
    errors.filter(move |expiry| expiry.0.as_ref() == Some(name)).map(|(_, at, error)| (*at, error.as_str()))
}

/// Until when the last lease of a claim was to run, if that is known.
fn last_lease(task: &Task<'_>, claim: &Claim<'_>) -> Option<i64> {
    let extensions = task.extensions.iter().filter(|extension| extension.token == claim.token);
    extensions.fold(Some(claim.until), |until, extension| match extension.outcome {
        Outcome::Ok => extension.until.or(until),
        Outcome::Failed => until,
        Outcome::Unknown => None,
    })
}
