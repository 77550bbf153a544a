//! I1 lost, I2 unexpected, I3 recovered, I11 rolled back and yet seen; and no push twice.

use super::{Counts, Facts, Outcome};

pub fn check(facts: &Facts<'_>, counts: &mut Counts, say: &mut impl FnMut(&'static str, String)) {
    for (value, pushes) in &facts.pushes {
        let found = facts.found.get(value).map_or(&[][..], Vec::as_slice);
        counts.pushes += pushes.iter().filter(|push| push.outcome == Outcome::Ok).count() as u64;
        // A dead letter has no key, so that a push that is repeated after it adds another task.
        let newest = found.iter().map(|row| row.id).max();
        let keeps = found.iter().any(|row| Some(row.id) != newest && row.state != "failed");
        let sent = pushes.iter().filter(|push| push.outcome != Outcome::Failed).count();
        if keeps || found.len() > sent.max(1) {
            say("I1", format!("{value} was pushed once and is there {} times: {found:?}", found.len()));
        }
        let sure = pushes.iter().find(|push| push.outcome == Outcome::Ok);
        if let Some(push) = sure {
            let id = push.id.unwrap_or_default();
            let own = found.iter().any(|row| row.id == id);
            // Another task had the key; that one has to be there.
            let anothers = push.key.is_some()
                && facts.tasks.get(&id).is_some_and(|task| {
                    task.found.iter().any(|row| row.key.as_deref() == push.key && row.queue == push.queue)
                });
            if !(own || found.is_empty() && anothers) {
                counts.lost += 1;
                let operation = &push.operation.name;
                say("I1", format!("{operation} was told that {value} is task {id}: found {found:?}"));
            }
        }
        let possible = pushes.iter().any(|push| push.outcome != Outcome::Failed);
        for row in found {
            if !possible {
                say("I11", format!("{value} was rolled back, and is there: {row:?}"));
            }
            let push = &pushes[0];
            // A replacement keeps the group.
            let group = if push.link.replaces { row.group.as_deref() } else { push.group };
            if (row.queue.as_str(), row.key.as_deref(), row.group.as_deref()) != (push.queue, push.key, group)
            {
                say("I2", format!("{value} is not what was pushed: {row:?}"));
            }
        }
        counts.recovered += u64::from(sure.is_none() && possible && !found.is_empty());
    }
    for (value, found) in &facts.found {
        if !facts.pushes.contains_key(value) {
            say("I2", format!("{value} was never pushed, and is there: {:?}", found[0]));
        }
    }
    for claim in &facts.seen {
        let Some(pushes) = facts.pushes.get(claim.value) else {
            say("I2", format!("{} claimed {}, which was never pushed", claim.operation.name, claim.value));
            continue;
        };
        // A transaction may claim tasks that it pushed itself, and roll both back.
        let own = |push: &super::Push<'_>| {
            push.operation.name == claim.operation.name && push.operation.there_at(push.place, claim.place)
        };
        if pushes.iter().all(|push| push.outcome == Outcome::Failed && !own(push)) {
            say("I11", format!("{} claimed {}, which was rolled back", claim.operation.name, claim.value));
        }
    }
}
