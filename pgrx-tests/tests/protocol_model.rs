//! A model of the protocol between sessions, worker and lanes, searched by a machine (the crate stateright).
//!
//! The model is small: a few tasks, two or three clients with a script each, the worker, one queue, one lane, one group.
//! The checker visits every state that any order of their steps leads to, and asks in each whether a promise is broken.
//! It needs no server, and reads none of the extension's code: this table says what stands for what. The same names are
//! in the comments of the model.
//!
//! | In the model | Stands for |
//! | --- | --- |
//! | `rows.rs`: snapshots, row locks, commit | PostgreSQL: READ COMMITTED, REPEATABLE READ, FOR KEY SHARE to FOR UPDATE |
//! | `Push`: `push_predecessor`, `push_look_again` | `add_dependencies`, `outcome_of` |
//! | `push_insert` | `task_arrives`, `tasks_inserted`; natively `verbs/push.rs` |
//! | `Claim`: `begin_claim`, `choose`, `grant`, `base` | `has_capacity`, `claim_from`, `tokens::range` |
//! | `find_slot`, `take_slot` | `free_slots`, `take_slot` |
//! | `NativeClaim`: `native_claim`, `clear_hint` | `verbs/claim.rs`, `verbs/events.rs` |
//! | `ask`, `Lane::add`, `Lane::lower` | `Lane::take`, `Lane::needs`, `Lane::add`, `Lane::lower` |
//! | `read_table`, `refilled` | `refill::run`, `Lane::refilled` |
//! | `lease` | `Grant::grant_one` |
//! | `Complete`, `Discard`, `Release`, `Cancel`, `Purge`: `end_leased`, `cancel`, `end` | `verbs/finish.rs`; `complete`, `fail`, `release`, `cancel`, `purge`; `archive`, `move_to_dead_letters`, `discard`, `requeue` |
//! | `notify` | `on_task_end`, `notify_dependents` |
//! | `PushInto`: `lock_batch`, `insert_member` | `lock_batches`, `join_batch` |
//! | `Seal`, `notify_batch`, `process_batch` | `seal_batch`, `notify_batch`, `process_batch` |
//! | `expire_unstarted` | `expire_unstarted`, `end_unstarted`; `worker/deadlines.rs` |
//! | `Await`: `await_event`, `lock_event` | `await_event`, `lock_event`, `suspend_for` |
//! | `Emit`: `lock_to_emit`, `notify_waiting` | `emit`; for a suspended task `check_dependent` stands for `wake` |
//! | `Retry` | `requeue_dead_letters` |
//! | `events` | `process_each`, `process_event`, `postpone_event` |
//! | `lock_dependent`, `check_dependent`, `delete_dependencies` | `process_dependent`, `unblock`, `delete_dependencies` |
//! | `lock_group`, `count_admitted`, `admit`, `next_admission` | `lock_group`, `admitted_of`, `admit_next`, `next_admission` |
//! | `hand_over` | `hand_over` |
//! | `Sweep` | `sweep_dependencies`, `sweep_awaits`, `sweep_batches`, `sweep_groups`; for lanes `Lane::reread` |
//! | `Round`, `RaiseMark`, `Expire` | `Worker::process_events`; `tokens::raised`; `expiry::end`, `end_expired` |
//! | `commit`, `publish` | `CommitTransaction`; `Pending::publish`, run by the callback after the commit |
//! | `roll_back`, `roll_back_to` | `Pending::roll_back`; and the server's rollback |
//! | `crash` | Shared memory is lost, and of the commits that were not flushed any number |
//!
//! `PROTOCOL_MODEL=deep` searches larger worlds as well. `PROTOCOL_MODEL="a claim"` prints the counterexamples of the
//! mutants whose names begin so.

#[path = "protocol_model/batch.rs"]
mod batch;
#[path = "protocol_model/claim.rs"]
mod claim;
#[path = "protocol_model/deadline.rs"]
mod deadline;
#[path = "protocol_model/events.rs"]
mod events;
#[path = "protocol_model/lane.rs"]
mod lane;
#[path = "protocol_model/memory.rs"]
mod memory;
#[path = "protocol_model/mutants.rs"]
mod mutants;
#[path = "protocol_model/promises.rs"]
mod promises;
#[path = "protocol_model/protocol.rs"]
mod protocol;
#[path = "protocol_model/push.rs"]
mod push;
#[path = "protocol_model/rows.rs"]
mod rows;
#[path = "protocol_model/rules.rs"]
mod rules;
#[path = "protocol_model/scenario.rs"]
mod scenario;
#[path = "protocol_model/suspension.rs"]
mod suspension;
#[path = "protocol_model/sweep.rs"]
mod sweep;
#[path = "protocol_model/transaction.rs"]
mod transaction;
#[path = "protocol_model/worker.rs"]
mod worker;
#[path = "protocol_model/world.rs"]
mod world;
#[path = "protocol_model/worlds.rs"]
mod worlds;

use protocol::{Action, Protocol};
use rules::Rules;
use scenario::Scenario;
use stateright::{Checker, Expectation, HasDiscoveries, Model};
use std::time::Instant;
use world::World;

/// The promise that is broken, and the way there.
type Counterexample = (&'static str, Vec<(World, Option<Action>)>);

/// Searches a world to the end, or until this promise is broken; any promise, if none is named. Returns how many states
/// there were.
fn search(
    scenario: Scenario,
    rules: Rules,
    promise: Option<&'static str>,
) -> (usize, Option<Counterexample>) {
    let until =
        promise.map_or(HasDiscoveries::AnyFailures, |promise| HasDiscoveries::AllOf([promise].into()));
    let protocol = Protocol { scenario, rules, wanted: None };
    let checker = protocol.checker().finish_when(until).spawn_bfs().join();
    let mut found = checker.discoveries();
    let broken =
        protocol.properties().into_iter().filter(|property| property.expectation == Expectation::Always);
    let broken = broken
        .map(|property| property.name)
        .find(|name| promise.is_none_or(|promise| promise == *name) && found.contains_key(name));
    let broken = broken.and_then(|name| Some((name, found.remove(name)?.into_vec())));
    assert!(broken.is_some() || found.contains_key(promises::REST), "{} never comes to rest", scenario.name);
    (checker.unique_state_count(), broken)
}

/// A counterexample as a person reads it: the steps, and the state at their end.
fn describe(scenario: &Scenario, (promise, path): &Counterexample) -> String {
    let step = |(world, action): &(World, Option<Action>)| match action {
        Some(Action::Step(session)) => format!("  session {session}: {:?}\n", world.sessions[*session].step),
        Some(action) => format!("  {action:?}\n"),
        None => format!("  {world:?}\n"),
    };
    let steps: String = path.iter().map(step).collect();
    format!("{}: broken: {promise}\n{steps}", scenario.name)
}

/// What PROTOCOL_MODEL asks for.
fn wanted() -> String {
    std::env::var("PROTOCOL_MODEL").unwrap_or_default()
}

#[test]
fn every_promise_holds_in_every_small_case() {
    let begun = Instant::now();
    let deep = wanted() == "deep";
    let mut total = 0;
    for scenario in worlds::STANDARD.iter().chain(worlds::DEEP.iter().filter(|_| deep)) {
        let started = Instant::now();
        let (states, broken) = search(*scenario, Rules::ALL, None);
        println!("{:45} {states:9} states {:7.2} s", scenario.name, started.elapsed().as_secs_f64());
        total += states;
        if let Some(broken) = broken {
            panic!("{}", describe(scenario, &broken));
        }
    }
    println!("{total} states in {:.1} s", begun.elapsed().as_secs_f64());
}

#[test]
fn every_rule_is_needed() {
    let begun = Instant::now();
    let mut missing: Vec<_> =
        (0..rules::COUNT).filter(|rule| !mutants::cover(*rule)).map(|rule| format!("rule {rule}")).collect();
    for mutant in mutants::MUTANTS {
        let (states, broken) = search(mutant.world, Rules::without(mutant.off), Some(mutant.breaks));
        let Some(broken) = broken else {
            missing.push(mutant.name.to_owned());
            continue;
        };
        println!("{:62} {:3} steps, {states:6} states: {}", mutant.name, broken.1.len() - 1, mutant.breaks);
        if !wanted().is_empty() && mutant.name.starts_with(&wanted()) {
            println!("{}", describe(&mutant.world, &broken));
        }
    }
    println!("{} counterexamples in {:.1} s", mutants::MUTANTS.len(), begun.elapsed().as_secs_f64());
    assert!(missing.is_empty(), "no counterexample: {missing:#?}");
}
