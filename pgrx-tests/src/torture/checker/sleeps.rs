//! I22: a task that sleeps is not claimed before the time for which it asked, and a call that begins after that time does not
//! suspend it again. The time of a named sleep is counted from its first call.

use super::facts::Sleep;
use super::{Facts, Outcome};

pub fn check(facts: &Facts<'_>, say: &mut impl FnMut(&'static str, String)) {
    for (id, task) in &facts.tasks {
        // A push may reschedule a task with a key, and an attempt that has timed out is retried after its backoff.
        let steady = task
            .found
            .first()
            .is_some_and(|row| row.key.is_none() && facts.timeout_of(&row.queue, &row.value).is_none());
        let named = || task.sleeps.iter().filter(|sleep| sleep.named && sleep.outcome != Outcome::Failed);
        let earliest = named().map(|sleep| sleep.operation.begin + sleep.time).min();
        let latest = named().filter(returned).map(|sleep| sleep.operation.end + sleep.time).min();
        for sleep in task.sleeps.iter().filter(returned) {
            let (from, to) = match (earliest, latest) {
                (Some(earliest), Some(latest)) if sleep.named => (earliest, latest),
                _ => (sleep.time, sleep.time),
            };
            let (name, suspended) = (&sleep.operation.name, sleep.over == Some(false));
            if !suspended && sleep.operation.end < from {
                say("I22", format!("{name} had slept enough for task {id}, which was to sleep until {from}"));
            }
            if suspended && sleep.operation.begin > to {
                say("I22", format!("{name} suspended task {id}, which was to sleep until {to}"));
            }
            let early = |claim: &&super::Claim<'_>| claim.token > sleep.token && facts.start_of(claim) < from;
            if let Some(claim) = task.claims.iter().find(early).filter(|_| suspended && steady) {
                let early = &claim.operation.name;
                say("I22", format!("{early} claimed task {id}, which {name} had sent to sleep until {from}"));
            }
        }
    }
}

fn returned(sleep: &&Sleep<'_>) -> bool {
    sleep.outcome == Outcome::Ok && sleep.over.is_some()
}
