//! What a small world consists of.

use super::lane::Lane;
use super::memory::{Memory, Past};
use super::rows::{Admission, Event, Id, Key, Level, Outcome, Row, State, Table, Task, Token};
use super::world::{Faults, Session, Step, World};

/// What a client does in a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statement {
    /// Any SELECT: takes the snapshot of a REPEATABLE READ transaction.
    Look,
    /// push, with predecessors.
    Push(Id, &'static [Id]),
    /// claim in SQL.
    Claim,
    /// claim, on the native fast path.
    NativeClaim,
    /// complete, for the first task that this client has leased.
    Complete,
    /// fail(permanent => true), for the same.
    Discard,
    /// release, for the same: the task goes back to its queue.
    Release,
    /// cancel, of a task that does not run.
    Cancel(Id),
    /// purge, of all tasks that do not run, and of the dead letters.
    Purge,
    /// retry, of a dead letter.
    Retry(Id),
    /// push, of a member of the batch.
    PushInto(Id),
    /// seal_batch.
    Seal,
    /// await_event, for the first task that this client has leased.
    Await,
    /// emit.
    Emit,
    /// SAVEPOINT, not as the first statement at REPEATABLE READ.
    Save,
    /// ROLLBACK TO SAVEPOINT, for the one with so many around it.
    RollBackTo(u8),
    /// RELEASE SAVEPOINT, for the same.
    ReleaseSavepoint(u8),
}

/// A transaction of a client.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    pub level: Level,
    pub statements: &'static [Statement],
    /// Whether the session lets its commits be lost in a crash.
    pub asynchronous: bool,
}

/// A transaction at READ COMMITTED.
pub const fn committed(statements: &'static [Statement]) -> Script {
    Script { level: Level::ReadCommitted, statements, asynchronous: false }
}

/// A transaction at REPEATABLE READ.
pub const fn repeatable(statements: &'static [Statement]) -> Script {
    Script { level: Level::RepeatableRead, statements, asynchronous: false }
}

/// A transaction whose commit does not wait for the disk.
pub const fn asynchronous(statements: &'static [Statement]) -> Script {
    Script { level: Level::ReadCommitted, statements, asynchronous: true }
}

/// A task that is there from the beginning.
#[derive(Clone, Copy, Debug)]
pub enum Initial {
    Absent,
    Queued,
    /// Queued and not yet admitted, with the event that its push wrote.
    Blocked,
    /// Queued and admitted.
    Admitted,
    /// Waiting for these.
    Waiting(&'static [Id]),
    /// The callback of the batch; and a member of it, which is queued.
    Callback,
    Member,
    Dead,
}

/// A small world. There is one queue, and tasks are claimed in the order of their ids.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub tasks: &'static [Initial],
    pub clients: &'static [&'static [Script]],
    /// The callback of the one batch.
    pub batch: Option<Id>,
    /// The tasks with a start deadline, which may pass.
    pub deadlines: &'static [Id],
    /// The tasks of the one group.
    pub group: &'static [Id],
    pub group_limit: usize,
    /// 0: no limit.
    pub max_running: u8,
    pub keep_history: bool,
    /// How many candidates the lane has room for; 0: the fast path is off.
    pub lane: usize,
    /// Whether there is a worker.
    pub worker: bool,
    /// Whether the worker's rounds begin at any moment, or only when no client has anything to do.
    pub eager: bool,
    /// Whether the worker sweeps when it has nothing else to do.
    pub sweep: bool,
    /// Nobody publishes a base of tokens, so that all claims commit synchronously, as in the SQL-only edition.
    pub durable_claims: bool,
    /// How many tokens beyond the base may be handed out by claims that can be lost.
    pub reserve: Token,
    pub faults: Faults,
}

impl Scenario {
    /// A world without policies, without a lane and without faults.
    pub const PLAIN: Self = Self {
        name: "",
        tasks: &[],
        clients: &[],
        batch: None,
        deadlines: &[],
        group: &[],
        group_limit: 1,
        max_running: 0,
        keep_history: true,
        lane: 0,
        worker: true,
        eager: true,
        sweep: false,
        durable_claims: false,
        reserve: 1,
        faults: Faults {
            expiries: 0,
            crashes: 0,
            losses: 0,
            deletions: 0,
            rollbacks: 0,
            sweeps: 0,
            deadlines: 0,
        },
    };

    /// How the world is at first.
    pub fn begin(&self) -> World {
        let mut table = Table::new();
        let mut memory = Memory { tasks: vec![Past::default(); self.tasks.len()], broken: 0 };
        for (id, initial) in (0..).zip(self.tasks) {
            let (state, admission) = match initial {
                Initial::Absent => continue,
                Initial::Dead => {
                    memory.tasks[usize::from(id)].outcome = Some(Outcome::Failed);
                    table.insert(Key::Ended(id), Row::Ended(Outcome::Failed, 0));
                    continue;
                }
                Initial::Queued => (State::Queued, Admission::Open),
                Initial::Callback => {
                    table.insert(Key::Batch, Row::Batch(false));
                    (State::Waiting, Admission::Blocked)
                }
                Initial::Member => {
                    let callback = self.batch.expect("a batch");
                    table.insert(Key::Dependency(id, callback), Row::Dependency(None));
                    (State::Queued, Admission::Open)
                }
                Initial::Blocked => {
                    table.insert(Key::Event(id + 1), Row::Event(Event::Group));
                    (State::Queued, Admission::Blocked)
                }
                Initial::Admitted => (State::Queued, Admission::Admitted),
                Initial::Waiting(predecessors) => {
                    for predecessor in *predecessors {
                        table.insert(Key::Dependency(*predecessor, id), Row::Dependency(None));
                    }
                    (State::Waiting, Admission::Blocked)
                }
            };
            table.insert(Key::Task(id), Row::Task(Task { state, token: 0, admission }));
        }
        let mut statements = self.clients.iter().copied().flatten().flat_map(|script| script.statements);
        if statements.any(|statement| matches!(statement, Statement::Await)) {
            table.insert(Key::Emitted, Row::Emitted(false));
        }
        if !self.group.is_empty() {
            table.insert(Key::Group, Row::Group);
        }
        for slot in 0..self.max_running {
            table.insert(Key::Slot(slot), Row::Slot(0, 0));
        }
        // As after the worker's first round.
        let base = (!self.durable_claims).then_some(1);
        table.insert(Key::Mark, Row::Mark(base.map_or(0, |base| base + self.reserve)));
        let session =
            |step| Session { position: (0, 0), step, transaction: None, leases: Vec::new(), same_hint: true };
        let mut sessions: Vec<_> = self.clients.iter().map(|_| session(Step::Start)).collect();
        sessions.push(session(Step::Idle));
        World {
            committed: table,
            unflushed: Vec::new(),
            sessions,
            lane: Lane::new(),
            base,
            expired: Vec::new(),
            overdue: Vec::new(),
            swept: false,
            faults: self.faults,
            memory,
        }
    }

    /// Whether the task is one of the group.
    pub fn grouped(&self, id: Id) -> bool {
        self.group.contains(&id)
    }

    /// Whether the task is a member of the batch.
    pub fn is_member(&self, id: Id) -> bool {
        let scripts = self.clients.iter().copied().flatten();
        let pushed = |script: &Script| script.statements.contains(&Statement::PushInto(id));
        matches!(self.tasks[usize::from(id)], Initial::Member) || scripts.into_iter().any(pushed)
    }

    /// The predecessors that a task was pushed with.
    pub fn predecessors(&self, id: Id) -> &'static [Id] {
        if let Initial::Waiting(predecessors) = self.tasks[usize::from(id)] {
            return predecessors;
        }
        let mut statements =
            self.clients.iter().flat_map(|client| client.iter()).flat_map(|script| script.statements);
        let found = statements.find_map(|statement| match statement {
            Statement::Push(task, predecessors) if *task == id => Some(*predecessors),
            _ => None,
        });
        found.unwrap_or(&[])
    }
}
