//! I20: the first value of a step stays, and what a task got for an event.

use std::collections::HashMap;

use super::{Facts, Outcome};

pub fn check(facts: &Facts<'_>, say: &mut impl FnMut(&'static str, String)) {
    for (id, task) in &facts.tasks {
        let mut stored: HashMap<&str, &str> = HashMap::new();
        for step in task.steps.iter().filter(|step| step.is_returned()) {
            let (name, value) = (step.name, step.stored.unwrap_or_default());
            let operation = &step.operation.name;
            let first = *stored.entry(name).or_insert(value);
            if first != value {
                say("I20", format!("{operation} got {value} for {name} of task {id}, and others {first}"));
            }
            let given = task
                .steps
                .iter()
                .any(|other| other.outcome != Outcome::Failed && (other.name, other.value) == (name, value));
            let emitted = facts.emitted.get(name).is_some_and(|all| all.contains(&value));
            if !given && !emitted {
                say("I20", format!("{operation} got {value} for {name} of task {id}, which was rolled back"));
            }
            let kept = |row: &&super::Found| row.steps[name].as_str() == Some(value);
            if !task.found.iter().all(|row| kept(&row)) {
                say("I20", format!("{name} of task {id} was {value}, and is not kept: {:?}", task.found));
            }
        }
    }
}
