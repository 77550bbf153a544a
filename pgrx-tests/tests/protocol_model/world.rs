//! The state of the model: the database, the sessions, the lane, and what the checker remembers for the promises.

use super::lane::Lane;
use super::memory::Memory;
use super::rows::{Id, Outcome, Strength, Table, Token, Transaction};

/// The whole state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub committed: Table,
    /// What was committed before each commit that is not flushed yet, the oldest first.
    pub unflushed: Vec<Table>,
    /// The clients, and then the worker.
    pub sessions: Vec<Session>,
    pub lane: Lane,
    /// The base of tokens, once the worker has published it.
    pub base: Option<Token>,
    /// Running tasks whose lease is over.
    pub expired: Vec<Id>,
    /// Tasks whose start deadline has passed.
    pub overdue: Vec<Id>,
    /// Nothing was committed since the last sweep began.
    pub swept: bool,
    /// What may still break.
    pub faults: Faults,
    pub memory: Memory,
}

/// How often each fault may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Leases that end before their tasks.
    pub expiries: u8,
    /// Crashes of the server.
    pub crashes: u8,
    /// All events are deleted.
    pub losses: u8,
    /// Rows of tasks are deleted by hand.
    pub deletions: u8,
    /// Transactions that roll back.
    pub rollbacks: u8,
    /// Sweeps at a moment when they are not needed.
    pub sweeps: u8,
    /// Start deadlines that pass.
    pub deadlines: u8,
}

/// A client, or the worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    /// Which of the transactions in its script, and which statement of it.
    pub position: (u8, u8),
    pub step: Step,
    pub transaction: Option<Transaction>,
    /// What a client was told: tasks with their tokens.
    pub leases: Vec<(Id, Token)>,
    /// The hint that there may be events is the one that this session has seen.
    pub same_hint: bool,
}

/// Where a session is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The worker has nothing to do.
    Idle,
    /// The next statement.
    Start,
    /// push: lock the predecessor of this number; look again, since some are gone; insert. Whether all were live so far.
    PushPredecessor(u8, bool),
    PushLookAgain,
    PushInsert(bool),
    /// Process the events behind this number.
    Events(u8),
    /// An event: lock the dependent and check it; or lock the group, count, and admit.
    LockDependent(u8, Id),
    CheckDependent(u8, Id),
    LockGroup(u8, Option<usize>),
    CountAdmitted(u8),
    Admit(u8, usize),
    /// The end of a task that waited and is locked.
    End(Id, Outcome, Then),
    /// The end of a task: record its outcome for those that wait for it.
    Notify(Id, Outcome, Then),
    /// cancel: lock the task, so strongly.
    Cancel(Id, Strength),
    /// push of a member: lock the batch; insert.
    LockBatch(Id),
    InsertMember(Id),
    /// await_event: lock the event's row.
    LockEvent(Id),
    /// emit: lock the row; notify the tasks that wait, which with a rule off were found before the lock.
    LockToEmit(Option<u32>),
    NotifyWaiting(Option<u32>),
    /// purge: find the tasks; lock and end the first of these, a bit each.
    Purge(Option<u32>),
    /// A sweep, behind this dependency.
    Sweep(Option<(Id, Id)>),
    /// claim in SQL: choose and lock; find a slot; take it and write the lease.
    Choose,
    /// Only in recorded worlds: lock what the snapshot of the statement shows.
    #[allow(dead_code)]
    ChooseFrom(Vec<Id>),
    FindSlot(Id),
    TakeSlot(Id, u8, (Id, Token)),
    /// The native claim: clear the hint; ask the lane; write the lease; refill.
    ClearHint,
    Ask,
    Lease(Id),
    ReadTable(Id),
    Refilled(Id, Vec<Id>),
    /// The worker raises the mark of tokens.
    RaiseMark,
    /// The worker ends this task, because its start deadline has passed.
    ExpireUnstarted(Id),
    /// The worker ends the attempt of this task. With a rule off, it frees this slot later.
    Expire(Id),
    FreeSlot(u8),
    Commit,
    Publish,
    /// Only with a rule off: publish first.
    CommitLate,
    Done,
}

/// What a session does after the end of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Then {
    /// Its statement is over.
    Statement,
    /// It was processing this event.
    Event(u8),
    /// It purges these as well, a bit each.
    Purge(u32),
    /// It was looking for a task to claim.
    Claim,
}

impl World {
    /// The worker's number.
    pub fn worker(&self) -> usize {
        self.sessions.len() - 1
    }

    /// Whether every client has come to the end of its script.
    pub fn clients_done(&self) -> bool {
        self.sessions[..self.worker()].iter().all(|client| client.step == Step::Done)
    }

    /// Whether the worker has nothing to do at this moment.
    pub fn worker_idle(&self) -> bool {
        self.sessions[self.worker()].step == Step::Idle
    }
}
