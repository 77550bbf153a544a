//! I18: no task is started for the first time after its start deadline, and only a task that was never started expires,
//! after its deadline.

use super::{Facts, Found, Outcome, Task, Verb};

pub fn check(facts: &Facts<'_>, timed: bool, say: &mut impl FnMut(&'static str, String)) {
    for (id, task) in &facts.tasks {
        let Some(row) = task.found.first() else { continue };
        let deadline = facts.deadlines.get(row.value.as_str());
        if row.expired {
            let early = deadline.is_none_or(|(from, _)| timed && row.finished.is_none_or(|at| at < *from));
            if early || row.token > 0 || !task.claims.is_empty() {
                say("I18", format!("task {id} expired, its deadline is {deadline:?}: {row:?}"));
            }
        } else if let Some((_, to)) = deadline.filter(|_| timed)
            && let Some(claim) = only_start(row, task)
            && claim.operation.begin > *to
        {
            say("I18", format!("{} started task {id}, which expired at {to}", claim.operation.name));
        }
    }
}

/// The claim that started a task, if it was certainly the only one: releases do not count as attempts.
fn only_start<'a, 'b>(row: &Found, task: &'b Task<'a>) -> Option<&'b super::Claim<'a>> {
    let released = task.ends.iter().any(|end| end.verb == Verb::Release && end.outcome != Outcome::Failed);
    let last = task.claims.iter().find(|claim| claim.token == row.token);
    last.filter(|_| row.attempt == 1 && !released)
}
