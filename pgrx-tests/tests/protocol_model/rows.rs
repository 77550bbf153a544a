//! The database: rows, snapshots, row locks and commits, as far as the protocol depends on them.
//!
//! A step of the model is one SQL statement (or one look at shared memory). It reads one snapshot and takes its row
//! locks at once; a statement that has to wait for a lock is a step that is not possible yet. At READ COMMITTED a
//! statement that waited sees the newest version of the row; at REPEATABLE READ it fails if that has changed.

use super::world::World;
use std::collections::BTreeMap;

pub type Id = u8;
pub type Token = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A row of queue.tasks.
    Task(Id),
    /// A row of queue.history or queue.dead_letters.
    Ended(Id),
    /// A row of queue_internal.dependencies: the predecessor, and the task that waits for it.
    Dependency(Id, Id),
    /// A row of queue_internal.outcomes.
    Outcome(Id),
    /// The row of queue_internal.batches. There is one batch.
    Batch,
    /// A row of queue_internal.awaits: the task is suspended until the event.
    Awaits(Id),
    /// The row of queue_internal.emitted. There is one event.
    Emitted,
    /// A row of queue_internal.steps: the task has got the event.
    Step(Id),
    /// A row of queue_internal.events.
    Event(u8),
    /// The row of queue_internal.locks that is locked to admit tasks of the group. There is one group.
    Group,
    /// A row of queue_internal.slots.
    Slot(u8),
    /// The row of queue_internal.token_mark.
    Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Row {
    Task(Task),
    /// How it ended, and its last token.
    Ended(Outcome, Token),
    /// How the predecessor ended, as soon as that is recorded.
    Dependency(Option<Outcome>),
    /// Whether it is sealed.
    Batch(bool),
    /// The token of the lease with which it was suspended.
    Awaits(Token),
    /// Whether it was.
    Emitted(bool),
    Step,
    Event(Event),
    Group,
    /// Who took the slot last. The version is the pair.
    Slot(Id, Token),
    /// No claim that was lost handed out a larger token.
    Mark(Token),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task {
    pub state: State,
    pub token: Token,
    pub admission: Admission,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    Waiting,
    Queued,
    Running,
}

/// Whether claims may come across the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Admission {
    Open,
    Admitted,
    Blocked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    Completed,
    Failed,
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// A waiting task may be unblocked, or a suspended one may go on.
    Dependent(Id),
    /// The group may have room for its next task.
    Group,
}

pub type Table = BTreeMap<Key, Row>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    ReadCommitted,
    RepeatableRead,
}

/// Row locks, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strength {
    KeyShare,
    NoKeyUpdate,
    Update,
}

impl Strength {
    fn conflicts(self, other: Self) -> bool {
        self.max(other) == Self::Update || self.min(other) == Self::NoKeyUpdate
    }
}

/// What a transaction tells the lane when it has committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Note {
    /// The task can be claimed.
    Claimable(Id),
    /// It was leased, with this token.
    Leased(Id, Token),
    /// It cannot be claimed any more.
    Gone(Id),
    /// There are events.
    Events,
}

/// An open transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transaction {
    pub level: Level,
    pub snapshot: Option<Table>,
    pub writes: BTreeMap<Key, Option<Row>>,
    pub locks: BTreeMap<Key, Strength>,
    pub notes: Vec<Note>,
    /// Candidates that a claim took from the lane.
    pub candidates: Vec<Id>,
    /// What the client had been given before. It has that again if the transaction rolls back.
    pub had: Vec<(Id, Token)>,
    /// The tasks that this transaction ends, and how.
    pub ends: Vec<(Id, Outcome)>,
    /// Whether it wrote nothing but leases.
    pub only_leases: bool,
    /// It handed out a token that must not be lost.
    pub durable: bool,
    /// The base of tokens that counts once it has committed.
    pub raises: Option<Token>,
    /// It refilled the lane from a table in which it had removed tasks.
    pub refilled_own: bool,
    /// Only with a rule off: a slot that is freed after this transaction.
    pub frees: Option<u8>,
    /// As it was at the innermost savepoint, which knows those around it.
    pub saved: Option<Box<Saved>>,
}

/// A savepoint: the transaction, and what the client had been given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Saved {
    pub transaction: Transaction,
    pub leases: Vec<(Id, Token)>,
}

impl Transaction {
    /// The savepoint with so many around it.
    pub fn savepoint(&self, number: u8) -> Option<&Saved> {
        let mut all = Vec::new();
        let mut next = self.saved.as_deref();
        while let Some(saved) = next {
            all.push(saved);
            next = saved.transaction.saved.as_deref();
        }
        all.iter().rev().nth(usize::from(number)).copied()
    }
}

/// What came of trying to lock a row.
pub enum Lock {
    /// It is locked; here is its newest version. Nothing if there is no such row.
    Granted(Option<Row>),
    /// Somebody else has it locked.
    Busy,
    /// It has changed since the transaction's snapshot: 40001.
    Changed,
}

impl World {
    /// The open transaction of a session.
    pub fn transaction(&mut self, session: usize) -> &mut Transaction {
        self.sessions[session].transaction.as_mut().expect("an open transaction")
    }

    fn open(&self, session: usize) -> &Transaction {
        self.sessions[session].transaction.as_ref().expect("an open transaction")
    }

    /// What a statement of the session sees.
    pub fn view(&self, session: usize) -> Table {
        let open = self.open(session);
        overlaid(open.snapshot.as_ref().unwrap_or(&self.committed), &open.writes)
    }

    /// What a look with a fresh snapshot sees, whatever the transaction's isolation level.
    pub fn fresh_view(&self, session: usize) -> Table {
        overlaid(&self.committed, &self.open(session).writes)
    }

    /// Whether another session has a conflicting lock on the row.
    pub fn is_locked(&self, session: usize, key: Key, strength: Strength) -> bool {
        self.sessions.iter().enumerate().any(|(other, open)| {
            let held = open.transaction.as_ref().and_then(|open| open.locks.get(&key));
            other != session && held.is_some_and(|held| held.conflicts(strength))
        })
    }

    /// Locks a row. A statement that gets `Busy` waits, or leaves the row out (SKIP LOCKED).
    pub fn lock(&mut self, session: usize, key: Key, strength: Strength) -> Lock {
        let open = self.open(session);
        if !open.writes.contains_key(&key)
            && let Some(snapshot) = &open.snapshot
        {
            match snapshot.get(&key) {
                None if key != Key::Group => return Lock::Granted(None),
                // A change that leaves the key alone is in nobody's way who locks the key.
                Some(_) if strength == Strength::KeyShare && self.committed.contains_key(&key) => {}
                row if row != self.committed.get(&key) => return Lock::Changed,
                _ => {}
            }
        }
        if !open.writes.contains_key(&key) && !self.committed.contains_key(&key) {
            // Not even if another transaction has inserted it and has not committed yet.
            return Lock::Granted(None);
        }
        if self.is_locked(session, key, strength) {
            return Lock::Busy;
        }
        let open = self.open(session);
        let newest = open.writes.get(&key).copied().unwrap_or_else(|| self.committed.get(&key).copied());
        if newest.is_some() {
            let held = self.transaction(session).locks.entry(key).or_insert(strength);
            *held = strength.max(*held);
        }
        Lock::Granted(newest)
    }

    /// Writes a row that the session has locked, or a new one.
    pub fn write(&mut self, session: usize, key: Key, row: Row) {
        let open = self.transaction(session);
        open.writes.insert(key, Some(row));
        open.locks.entry(key).or_insert(Strength::NoKeyUpdate);
    }

    /// Deletes a row that the session has locked.
    pub fn delete(&mut self, session: usize, key: Key) {
        let open = self.transaction(session);
        open.writes.insert(key, None);
        open.locks.insert(key, Strength::Update);
        open.only_leases = false;
    }

    /// Writes an event.
    pub fn write_event(&mut self, session: usize, event: Event) {
        let written = self.sessions.iter().filter_map(|open| open.transaction.as_ref());
        let keys = written.flat_map(|open| open.writes.keys()).chain(self.committed.keys());
        let used = keys.filter_map(|key| if let Key::Event(number) = key { Some(*number) } else { None });
        let number = used.max().map_or(1, |last| last + 1);
        self.write(session, Key::Event(number), Row::Event(event));
        let open = self.transaction(session);
        open.only_leases = false;
        if !open.notes.contains(&Note::Events) {
            open.notes.push(Note::Events);
        }
    }
}

/// A table with what a transaction has written.
pub fn overlaid(table: &Table, writes: &BTreeMap<Key, Option<Row>>) -> Table {
    let mut seen = table.clone();
    for (key, row) in writes {
        match row {
            Some(row) => seen.insert(*key, *row),
            None => seen.remove(key),
        };
    }
    seen
}

/// The tasks in a table, in the order of their ids.
pub fn tasks(table: &Table) -> impl Iterator<Item = (Id, Task)> {
    table.iter().filter_map(|(key, row)| match (key, row) {
        (Key::Task(id), Row::Task(task)) => Some((*id, *task)),
        _ => None,
    })
}

/// A task, if it is there.
pub fn task(table: &Table, id: Id) -> Option<Task> {
    match table.get(&Key::Task(id)) {
        Some(Row::Task(task)) => Some(*task),
        _ => None,
    }
}

/// How a task ended, as far as it left a trace. outcome_of
pub fn outcome_of(table: &Table, id: Id) -> Option<Outcome> {
    match table.get(&Key::Ended(id)).or_else(|| table.get(&Key::Outcome(id))) {
        Some(Row::Ended(outcome, _)) => Some(*outcome),
        _ => None,
    }
}

/// The dependencies in a table: predecessor, task and recorded outcome.
pub fn dependencies(table: &Table) -> impl Iterator<Item = (Id, Id, Option<Outcome>)> {
    table.iter().filter_map(|(key, row)| match (key, row) {
        (Key::Dependency(predecessor, task), Row::Dependency(outcome)) => {
            Some((*predecessor, *task, *outcome))
        }
        _ => None,
    })
}
