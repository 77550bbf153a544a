//! I4: one completion. I7: no stale token. I12: finished tasks stay finished, and no task ends by itself.

use super::{Facts, Found, OnFailure, Outcome, Task, Verb};

pub fn check(facts: &Facts<'_>, say: &mut impl FnMut(&'static str, String)) {
    for (id, task) in &facts.tasks {
        let completions = task.ends.iter().filter(|end| end.surely(Verb::Complete)).count();
        if completions > 1 {
            say("I4", format!("{completions} completions of task {id} were accepted"));
        }
        if task.found.len() > 1 {
            say("I12", format!("task {id} is in {} places: {:?}", task.found.len(), task.found));
        }
        stale(*id, task, say);
        reappeared(*id, task, say);
        kept(*id, task, say);
        if let Some(row) = task.found.first() {
            explained(facts, row, task, say);
        }
    }
}

/// No call was accepted with a token after a later one was issued, or after its lease was ended.
fn stale(id: i64, task: &Task<'_>, say: &mut impl FnMut(&'static str, String)) {
    for (operation, token) in task.accepted() {
        if let Some(later) = task.claims.iter().find(|c| c.token > token && c.operation.end < operation.begin)
        {
            let text = format!("{} was accepted with token {token} of task {id}", operation.name);
            say("I7", format!("{text}, after {} had got token {}", later.operation.name, later.token));
        }
        let over = |end: &&super::End<'_>| {
            end.is_accepted() && end.token == token && end.operation.end < operation.begin
        };
        if let Some(end) = task.ends.iter().find(over) {
            let text = format!("{} was accepted with token {token} of task {id}", operation.name);
            say("I7", format!("{text}, which {} had ended", end.operation.name));
        }
    }
}

/// No task is claimed after it has finished.
fn reappeared(id: i64, task: &Task<'_>, say: &mut impl FnMut(&'static str, String)) {
    let ended = task.ends.iter().filter(|end| {
        end.is_accepted() && matches!(end.verb, Verb::Complete | Verb::FailForGood | Verb::Cancelled)
    });
    let cancelled = task
        .cancels
        .iter()
        .filter(|(_, outcome, state)| *outcome == Outcome::Ok && *state == Some("cancelled"));
    let over = ended.map(|end| end.operation.end).chain(cancelled.map(|(operation, ..)| operation.end)).min();
    for claim in &task.claims {
        if over.is_some_and(|over| claim.operation.begin > over) {
            say("I12", format!("{} claimed task {id} after it had finished", claim.operation.name));
        }
    }
}

/// The tables contain every accepted operation.
fn kept(id: i64, task: &Task<'_>, say: &mut impl FnMut(&'static str, String)) {
    for end in task.ends.iter().filter(|end| end.is_accepted()) {
        let state = match end.verb {
            Verb::Complete => "completed",
            Verb::Cancelled => "cancelled",
            Verb::FailForGood => "failed",
            Verb::Fail | Verb::Release => continue,
        };
        // Failed for good, a task whose cancelling was asked for is cancelled.
        let fits = |row: &&Found| {
            row.token == end.token && (row.state == state || state == "failed" && row.state == "cancelled")
        };
        if !task.found.iter().any(fits) {
            let text = format!("{} ended task {id} with token {}", end.operation.name, end.token);
            say("I12", format!("{text}: {:?}, but found {:?}", end.verb, task.found));
        }
    }
}

/// Each finished task was ended by a client.
fn explained(facts: &Facts<'_>, row: &Found, task: &Task<'_>, say: &mut impl FnMut(&'static str, String)) {
    // A push may have replaced the running task, or the payload of a queued one: then the origin of the payload is
    // unknown.
    let replaced = row.key.as_deref().is_some_and(|key| facts.replaced.contains(&(row.queue.as_str(), key)));
    let ended = |verb| task.ends.iter().any(|end| end.verb == verb && end.token == row.token && end.maybe());
    let expired = row.expired && facts.deadlines.contains_key(row.value.as_str());
    let fine = match row.state.as_str() {
        "completed" => ended(Verb::Complete),
        "cancelled" => {
            expired
                || replaced
                || facts.by_predecessor(row, OnFailure::Cancel)
                || task.cancels.iter().any(|(_, outcome, _)| *outcome != Outcome::Failed)
        }
        "failed" => {
            expired
                || ended(Verb::FailForGood)
                || row.queue == "frail" && row.attempt >= 2
                || facts.by_predecessor(row, OnFailure::Fail)
                || replaced && row.attempt == 0
        }
        _ => true,
    };
    if !fine {
        say("I4", format!("nobody ended it so: {row:?}"));
    }
}
