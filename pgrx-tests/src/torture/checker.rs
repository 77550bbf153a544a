//! Compares the answers that the clients got with the tables after the drain.
//!
//! Each check is sound: it only reports what no interleaving of correct transactions can produce. An operation took
//! effect somewhere between its begin and its end. One whose outcome is unknown may have taken effect or not.

mod batches;
mod deadlines;
mod endings;
mod leases;
mod links;
mod order;
mod owners;
mod pushes;
mod server;
mod steps;

pub use server::{Log, corruption, damaged_pages, wrong_stats};

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::account::Account;
use super::journal::{Effect, Link, OnFailure, Operation, Outcome, Verb};

/// A broken promise.
#[derive(Debug)]
pub struct Violation {
    /// Which one: I1 and so on, see docs/how-it-is-tested.md.
    pub invariant: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// Counts for the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub operations: u64,
    /// Whose COMMIT returned.
    pub acknowledged: u64,
    pub unknown: u64,
    pub pushes: u64,
    pub claims: u64,
    pub completions: u64,
    /// Statements that were cancelled or timed out.
    pub cut_short: u64,
    /// Leases that an observer saw.
    pub leases_seen: u64,
    /// Tasks whose push had an unknown outcome, and which were found.
    pub recovered: u64,
    /// Acknowledged pushes that were not found.
    pub lost: u64,
    /// Operations that were acknowledged with synchronous_commit = off, and that a crash may have undone.
    pub forgotten: u64,
    /// Tasks that waited for the sweep.
    pub left_to_the_sweep: u64,
}

/// A task as it was found in the end.
#[derive(Clone, Debug)]
pub struct Found {
    pub id: i64,
    pub queue: String,
    pub state: String,
    pub value: String,
    pub token: i64,
    pub attempt: i32,
    pub key: Option<String>,
    pub group: Option<String>,
    /// In microseconds since 1970; a live task has none.
    pub finished: Option<i64>,
    /// Whether it was not started by its deadline.
    pub expired: bool,
    /// For the callback of a batch: how many tasks completed, failed and were cancelled.
    pub counts: Option<serde_json::Value>,
    /// Its steps, and the events that it awaited, by name.
    pub steps: serde_json::Value,
}

/// A lease as the observer saw it: its worker is the name of the operation that claimed it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub id: i64,
    pub token: i64,
    pub worker: String,
}

/// A push, and when.
pub struct Push<'a> {
    pub operation: &'a Operation,
    /// Which effect of the operation it is.
    pub place: usize,
    pub outcome: Outcome,
    pub queue: &'a str,
    pub value: &'a str,
    pub key: Option<&'a str>,
    pub group: Option<&'a str>,
    pub link: &'a Link,
    pub id: Option<i64>,
}

/// A claim of a task.
pub struct Claim<'a> {
    pub operation: &'a Operation,
    pub place: usize,
    pub outcome: Outcome,
    pub token: i64,
    pub queue: &'a str,
    pub value: &'a str,
    pub group: Option<&'a str>,
    pub until: i64,
}

/// An extension of a lease.
pub struct Extension<'a> {
    pub operation: &'a Operation,
    pub outcome: Outcome,
    pub token: i64,
    pub lease: i64,
    pub until: Option<i64>,
}

/// The end of an attempt.
pub struct End<'a> {
    pub operation: &'a Operation,
    pub outcome: Outcome,
    pub verb: Verb,
    pub token: i64,
    pub accepted: bool,
}

/// A step that a client stored, or an event that a task awaited.
pub struct Step<'a> {
    pub operation: &'a Operation,
    pub outcome: Outcome,
    pub token: i64,
    pub name: &'a str,
    pub value: &'a str,
    pub stored: Option<&'a str>,
}

/// A batch that was created.
#[derive(Default)]
pub struct Batch<'a> {
    /// Whether its creation is known to have committed.
    pub sure: bool,
    /// The values of the tasks that were pushed into it, or may have been.
    pub members: Vec<&'a str>,
    /// When a call that sealed it, or may have, began at the earliest.
    pub sealed: Option<i64>,
}

/// Everything that is known of one task.
#[derive(Default)]
pub struct Task<'a> {
    /// Claims that committed, by token.
    pub claims: Vec<Claim<'a>>,
    /// Claims that were seen to commit, and that a crash may have undone.
    pub forgotten: Vec<Claim<'a>>,
    pub extensions: Vec<Extension<'a>>,
    pub ends: Vec<End<'a>>,
    pub steps: Vec<Step<'a>>,
    /// The operations that cancelled it, or may have.
    pub cancels: Vec<(&'a Operation, Outcome, Option<&'a str>)>,
    pub found: Vec<&'a Found>,
}

/// Everything that is known.
pub struct Facts<'a> {
    pub pushes: HashMap<&'a str, Vec<Push<'a>>>,
    pub tasks: HashMap<i64, Task<'a>>,
    pub found: HashMap<&'a str, Vec<&'a Found>>,
    /// The earliest and the latest time of start deadlines, by the values of their tasks.
    pub deadlines: HashMap<&'a str, (i64, i64)>,
    pub batches: HashMap<i64, Batch<'a>>,
    /// The payloads of emissions that committed, or may have, by event.
    pub emitted: HashMap<&'a str, Vec<&'a str>>,
    /// Every claim, committed or not.
    pub seen: Vec<Claim<'a>>,
    /// Keys, by queue, whose holders may have been replaced.
    pub replaced: HashSet<(&'a str, &'a str)>,
}

/// Checks the journals against the tables at the end and the observations in between. `timed` says whether the
/// server's clock can be compared with that of the clients.
pub fn check(
    account: &Account,
    found: &[Found],
    seen: &HashSet<Lease>,
    timed: bool,
) -> (Vec<Violation>, Counts) {
    let facts = Facts::gather(account, found);
    let (cut_short, leases_seen) = (account.cut_short, seen.len() as u64);
    let mut counts = Counts { cut_short, leases_seen, ..Counts::default() };
    for operation in &account.operations {
        counts.operations += 1;
        counts.acknowledged += u64::from(operation.outcome == Outcome::Ok);
        counts.forgotten += u64::from(operation.forgotten);
        counts.unknown += u64::from(operation.outcome == Outcome::Unknown && !operation.forgotten);
    }
    for task in facts.tasks.values() {
        counts.claims += task.claims.len() as u64;
        counts.completions += task.ends.iter().filter(|end| end.surely(Verb::Complete)).count() as u64;
    }
    let mut violations = Vec::new();
    let mut say = |invariant, what| violations.push(Violation { invariant, what });
    pushes::check(&facts, &mut counts, &mut say);
    endings::check(&facts, &mut say);
    leases::check(&facts, timed, &mut say);
    links::check(&facts, timed, &mut say);
    deadlines::check(&facts, timed, &mut say);
    batches::check(&facts, timed, &mut say);
    steps::check(&facts, &mut say);
    if timed {
        order::check(&facts, &mut say);
    }
    owners::check(account, seen.iter(), &mut say);
    account.errors.iter().for_each(|error| say("errors", error.clone()));
    (violations, counts)
}

impl<'a> Facts<'a> {
    fn gather(account: &'a Account, rows: &'a [Found]) -> Self {
        let mut facts = Self {
            pushes: HashMap::new(),
            tasks: HashMap::new(),
            found: HashMap::new(),
            deadlines: HashMap::new(),
            batches: HashMap::new(),
            emitted: HashMap::new(),
            seen: Vec::new(),
            replaced: HashSet::new(),
        };
        for row in rows {
            facts.found.entry(&row.value).or_default().push(row);
            facts.tasks.entry(row.id).or_default().found.push(row);
        }
        for operation in &account.operations {
            for place in 0..operation.effects.len() {
                facts.add(operation, place);
            }
        }
        for task in facts.tasks.values_mut() {
            task.claims.sort_by_key(|claim| (claim.token, claim.operation.begin));
            task.extensions.sort_by_key(|extension| extension.operation.begin);
        }
        facts
    }

    fn add(&mut self, operation: &'a Operation, place: usize) {
        let (effect, undone) = &operation.effects[place];
        let outcome = if *undone { Outcome::Failed } else { operation.outcome };
        match effect {
            Effect::Push { queue, value, key, group, link, id } => {
                let (key, group, id) = (key.as_deref(), group.as_deref(), *id);
                if let Some(key) = key.filter(|_| link.replaces && outcome != Outcome::Failed) {
                    self.replaced.insert((queue, key));
                }
                let push = Push { operation, place, outcome, queue, value, key, group, link, id };
                self.pushes.entry(value).or_default().push(push);
            }
            Effect::Claim { id, token, queue, value, group, until, .. } => {
                let claim = || {
                    let (token, until, group) = (*token, *until, group.as_deref());
                    Claim { operation, place, outcome, token, queue, value, group, until }
                };
                self.seen.push(claim());
                if outcome == Outcome::Ok {
                    self.tasks.entry(*id).or_default().claims.push(claim());
                } else if operation.forgotten && !undone {
                    self.tasks.entry(*id).or_default().forgotten.push(claim());
                }
            }
            Effect::Extend { id, token, lease, until } => {
                let extension = Extension { operation, outcome, token: *token, lease: *lease, until: *until };
                self.tasks.entry(*id).or_default().extensions.push(extension);
            }
            Effect::End { verb, id, token, accepted } => {
                let end = End { operation, outcome, verb: *verb, token: *token, accepted: *accepted };
                self.tasks.entry(*id).or_default().ends.push(end);
            }
            Effect::Cancel { id, state } => {
                self.tasks.entry(*id).or_default().cancels.push((operation, outcome, state.as_deref()));
            }
            Effect::Deadline { value, from, to } => {
                self.deadlines.insert(value, (*from, *to));
            }
            Effect::Open { batch } => {
                self.batches.entry(*batch).or_default().sure |= outcome == Outcome::Ok;
            }
            Effect::Join { batch, value } if outcome != Outcome::Failed => {
                self.batches.entry(*batch).or_default().members.push(value);
            }
            Effect::Seal { batch } if outcome != Outcome::Failed => {
                let sealed = &mut self.batches.entry(*batch).or_default().sealed;
                *sealed = Some(sealed.map_or(operation.begin, |other| other.min(operation.begin)));
            }
            Effect::Emit { event, value } if outcome != Outcome::Failed => {
                self.emitted.entry(event).or_default().push(value);
            }
            Effect::Join { .. } | Effect::Seal { .. } | Effect::Emit { .. } => {}
            Effect::Step { id, token, name, value, stored } => {
                let (token, stored) = (*token, stored.as_deref());
                let step = Step { operation, outcome, token, name, value, stored };
                self.tasks.entry(*id).or_default().steps.push(step);
            }
        }
    }
}

impl<'a> Facts<'a> {
    /// Whether one of the predecessors of a task may have ended it, or may have kept it from being done.
    pub fn by_predecessor(&self, row: &Found, rule: OnFailure) -> bool {
        let pushes = self.pushes.get(row.value.as_str()).map_or(&[][..], Vec::as_slice);
        pushes.iter().filter(|push| push.link.on_failure == rule).any(|push| {
            push.link.after.iter().any(|id| self.end_of(*id).is_none_or(|end| end.state != "completed"))
        })
    }

    /// How a task ended.
    pub fn end_of(&self, id: i64) -> Option<&'a Found> {
        self.tasks.get(&id).and_then(|task| task.found.first()).copied()
    }
}

impl End<'_> {
    /// Whether it is known to have been accepted.
    pub fn surely(&self, verb: Verb) -> bool {
        self.verb == verb && self.is_accepted()
    }

    pub fn is_accepted(&self) -> bool {
        self.outcome == Outcome::Ok && self.accepted
    }

    /// Whether it may have been accepted.
    pub fn maybe(&self) -> bool {
        self.is_accepted() || self.outcome == Outcome::Unknown
    }
}

impl Step<'_> {
    /// Whether it is known to have returned what is stored.
    pub fn is_returned(&self) -> bool {
        self.outcome == Outcome::Ok && self.stored.is_some()
    }
}

impl Task<'_> {
    /// Until when the lease of a claim was valid at least: the first moment at which it may have ended.
    pub fn held_until(&self, claim: &Claim<'_>) -> i64 {
        let mut until = claim.until;
        for extension in self.extensions.iter().filter(|extension| extension.token == claim.token) {
            match (extension.outcome, extension.until) {
                (Outcome::Ok, Some(extended)) => until = extended,
                // It may have shortened the lease.
                (Outcome::Unknown, _) => until = until.min(extension.operation.begin + extension.lease),
                _ => {}
            }
        }
        let ends = self.ends.iter().filter(|end| end.token == claim.token && end.maybe());
        ends.map(|end| end.operation.begin).fold(until, i64::min)
    }
}
