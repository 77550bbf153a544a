//! I23: in no span of a period, wherever it begins, does more weight start than the queue and each of its groups allow.

use std::collections::HashMap;

use super::Facts;
use crate::torture::load::{GROUP_RATE, METERED, PERIOD, RATE};

pub fn check(facts: &Facts<'_>, say: &mut impl FnMut(&'static str, String)) {
    // When attempts started, by the server's clock, and their weights.
    let mut starts: HashMap<Option<&str>, Vec<(i64, i64)>> = HashMap::new();
    for claim in facts.tasks.values().flat_map(|task| &task.claims).filter(|claim| claim.queue == METERED) {
        let start = (facts.start_of(claim), facts.weights.get(claim.value).copied().unwrap_or(1));
        starts.entry(None).or_default().push(start);
        if claim.group.is_some() {
            starts.entry(claim.group).or_default().push(start);
        }
    }
    for (group, mut starts) in starts {
        let limit = if group.is_some() { GROUP_RATE } else { RATE };
        starts.sort_unstable();
        let (mut first, mut weight) = (0, 0);
        for (at, more) in &starts {
            weight += more;
            while starts[first].0 <= at - PERIOD {
                weight -= starts[first].1;
                first += 1;
            }
            if weight > limit {
                let whose = group.map_or(METERED.to_owned(), |group| format!("{group} of {METERED}"));
                say("I23", format!("a weight of {weight} of {whose} started in the period up to {at}"));
            }
        }
    }
}
