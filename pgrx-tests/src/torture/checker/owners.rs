//! I11 for claims: each lease that was visible belongs to a claim that committed and returned it.

use std::collections::HashMap;

use super::{Account, Effect, Lease, Outcome};

pub fn check<'a>(
    account: &Account,
    leases: impl Iterator<Item = &'a Lease>,
    say: &mut impl FnMut(&'static str, String),
) {
    let by_name = account.operations.iter().map(|operation| (operation.name.as_str(), operation));
    let operations: HashMap<_, _> = by_name.collect();
    for Lease { id, token, worker } in leases {
        let Some(operation) = operations.get(worker.as_str()) else {
            say("I11", format!("task {id} is leased to {worker}, which does not exist"));
            continue;
        };
        let told = operation.effects.iter().any(|(effect, undone)| {
            !undone && matches!(effect, Effect::Claim { id: i, token: t, .. } if (i, t) == (id, token))
        });
        // The outcome of an operation that was cut off is unknown.
        if operation.outcome == Outcome::Failed || operation.outcome == Outcome::Ok && !told {
            let outcome = operation.outcome;
            say(
                "I11",
                format!("{worker} ({outcome:?}) was not given token {token} of task {id}, and has it"),
            );
        }
    }
}
