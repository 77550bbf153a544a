//! A lane: which tasks can be claimed, in shared memory, as hints. src/lanes/lane.rs without times and priorities.

use super::rows::Id;
use super::rules::{Rule, Rules};
use std::collections::BTreeSet;

/// Behind every task. A lane that knows everything below it is complete.
pub const END: Id = Id::MAX;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// Every task before this one that can be claimed is among the candidates, or in the hands of a claim.
    pub known_below: Id,
    pub candidates: BTreeSet<Id>,
    /// Candidates that were locked by others. They return when the lock is gone.
    pub postponed: BTreeSet<Id>,
    /// There may be events.
    pub events: bool,
    /// The session that reads the table for the lane.
    pub refiller: Option<usize>,
    /// What was published during the refill, and had no place.
    pub missed: Id,
}

impl Lane {
    /// Knows nothing.
    pub fn new() -> Self {
        Self {
            known_below: 0,
            candidates: BTreeSet::new(),
            postponed: BTreeSet::new(),
            events: true,
            refiller: None,
            missed: END,
        }
    }

    /// A task can be claimed.
    pub fn add(&mut self, id: Id, capacity: usize, rules: Rules) {
        if id >= self.known_below {
            self.missed = self.missed.min(id);
            return;
        }
        self.candidates.insert(id);
        if self.candidates.len() > capacity
            && let Some(last) = self.candidates.pop_last()
            && rules.has(Rule::FullLaneIsIncomplete)
        {
            self.lower(last);
        }
    }

    /// A task cannot be claimed any more.
    pub fn remove(&mut self, id: Id) {
        self.candidates.remove(&id);
        self.postponed.remove(&id);
    }

    /// There may be tasks from this one on that the lane does not know.
    pub fn lower(&mut self, id: Id) {
        self.missed = self.missed.min(id);
        if id < self.known_below {
            self.known_below = id;
            self.candidates.split_off(&id);
        }
    }

    /// Takes in what a refill has read from `from` on.
    pub fn refilled(&mut self, from: Id, found: &[Id], capacity: usize, rules: Rules) {
        self.refiller = None;
        let room = if from == 0 { capacity } else { capacity - self.candidates.len().min(capacity) };
        let read_below = found.get(room).copied().unwrap_or(END);
        let missed = if rules.has(Rule::RefillNotesMissed) { self.missed } else { END };
        if from == 0 {
            self.lower(read_below);
        }
        if from <= self.known_below {
            self.known_below = self.known_below.max(read_below.min(missed));
        }
        found.iter().take(room).for_each(|id| self.add(*id, capacity, rules));
    }

    /// Whether a claim that asks will come to look at the task.
    pub fn offers(&self, id: Id) -> bool {
        id >= self.known_below || self.candidates.contains(&id) || self.postponed.contains(&id)
    }
}
