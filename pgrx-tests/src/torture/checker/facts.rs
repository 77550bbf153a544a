//! The operations of the journals, by task, and the tasks as they were found.

use std::collections::{HashMap, HashSet};

use super::Found;
use crate::torture::account::Account;
use crate::torture::journal::{Effect, Link, OnFailure, Operation, Outcome, Verb};
use crate::torture::load::{TIMED, TIMEOUT};

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
    /// How long it asked for, in microseconds.
    pub lease: i64,
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

/// A call of queue.sleep, and whether it returned that the time was over.
pub struct Sleep<'a> {
    pub operation: &'a Operation,
    pub outcome: Outcome,
    pub token: i64,
    pub named: bool,
    pub time: i64,
    pub over: Option<bool>,
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
    pub sleeps: Vec<Sleep<'a>>,
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
    /// The timeouts of their own, and the weights, by the values of their tasks.
    pub timeouts: HashMap<&'a str, i64>,
    pub weights: HashMap<&'a str, i64>,
    pub batches: HashMap<i64, Batch<'a>>,
    /// The payloads of emissions that committed, or may have, by event.
    pub emitted: HashMap<&'a str, Vec<&'a str>>,
    /// Every claim, committed or not.
    pub seen: Vec<Claim<'a>>,
    /// Keys, by queue, whose holders may have been replaced.
    pub replaced: HashSet<(&'a str, &'a str)>,
}

impl<'a> Facts<'a> {
    pub fn gather(account: &'a Account, rows: &'a [Found]) -> Self {
        let mut facts = Self {
            pushes: HashMap::new(),
            tasks: HashMap::new(),
            found: HashMap::new(),
            deadlines: HashMap::new(),
            timeouts: HashMap::new(),
            weights: HashMap::new(),
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
            Effect::Claim { id, token, queue, value, group, until, lease } => {
                let claim = || {
                    let (token, until, lease, group) = (*token, *until, *lease, group.as_deref());
                    Claim { operation, place, outcome, token, queue, value, group, until, lease }
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
            Effect::Timeout { value, timeout } => {
                self.timeouts.insert(value, *timeout);
            }
            Effect::Weight { value, weight } => {
                self.weights.insert(value, *weight);
            }
            Effect::Sleep { id, token, named, time, over } => {
                let (token, named, time, over) = (*token, *named, *time, *over);
                let sleep = Sleep { operation, outcome, token, named, time, over };
                self.tasks.entry(*id).or_default().sleeps.push(sleep);
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

    /// How long an attempt at the task with this value may take, in microseconds.
    pub fn timeout_of(&self, queue: &str, value: &str) -> Option<i64> {
        self.timeouts.get(value).copied().or_else(|| (queue == TIMED).then_some(TIMEOUT))
    }

    /// When a claim started an attempt, by the server's clock.
    pub fn start_of(&self, claim: &Claim<'_>) -> i64 {
        let timeout = self.timeout_of(claim.queue, claim.value).unwrap_or(i64::MAX);
        claim.until - claim.lease.min(timeout)
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

impl<'a> Task<'a> {
    /// The operations that a token was good for, and that token.
    pub fn accepted(&self) -> impl Iterator<Item = (&'a Operation, i64)> {
        let ends = self.ends.iter().filter(|end| end.is_accepted()).map(|end| (end.operation, end.token));
        let extensions = self
            .extensions
            .iter()
            .filter(|extension| extension.outcome == Outcome::Ok && extension.until.is_some())
            .map(|extension| (extension.operation, extension.token));
        let steps = self.steps.iter().filter(|step| step.is_returned());
        ends.chain(extensions).chain(steps.map(|step| (step.operation, step.token)))
    }

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
