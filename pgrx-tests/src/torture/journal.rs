//! The journals: statements and answers of the clients, in files outside the server's reach.
//!
//! Each line is written before its statement is sent, so a killed client leaves an operation without an end, whose
//! outcome is unknown. The files are synced before they are read, so that every answer that counts is on disk.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::words::encode;

/// The outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its COMMIT returned.
    Ok,
    /// It was rolled back, or never committed.
    Failed,
    /// The answer to its COMMIT was cut off.
    Unknown,
}

/// What happens to a task when one of its predecessors does not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    Cancel,
    Fail,
    Continue,
}

/// What a push names besides its own task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub after: Vec<i64>,
    pub on_failure: OnFailure,
    /// It changes the task that has its key.
    pub replaces: bool,
}

impl Link {
    pub const NONE: Self = Self { after: Vec::new(), on_failure: OnFailure::Cancel, replaces: false };
}

/// The task that a call ended, or tried to end, with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Complete,
    Fail,
    FailForGood,
    Release,
    Cancelled,
}

/// A part of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A task with a value of its own was pushed. The answer is an id: its own, or that of the task with
    /// the same key.
    Push {
        queue: String,
        value: String,
        key: Option<String>,
        group: Option<String>,
        link: Link,
        id: Option<i64>,
    },
    /// A claim returned this. Times are microseconds since 1970, by the server's clock.
    Claim { id: i64, token: i64, queue: String, value: String, group: Option<String>, until: i64, lease: i64 },
    /// The lease was to run until then at least, if the answer came.
    Extend { id: i64, token: i64, lease: i64, until: Option<i64> },
    /// An attempt was to end; whether that was accepted.
    End { verb: Verb, id: i64, token: i64, accepted: bool },
    /// A task was to be cancelled by an operator, and was, or its worker was asked to.
    Cancel { id: i64, state: Option<String> },
    /// The task pushed with this value has a start deadline, which lies between these times.
    Deadline { value: String, from: i64, to: i64 },
    /// The task pushed with this value has a timeout of its own, in microseconds.
    Timeout { value: String, timeout: i64 },
    /// The task pushed with this value weighs as much.
    Weight { value: String, weight: i64 },
    /// A task was to sleep, until a time or, under a name, for a time in microseconds; and whether that was over.
    Sleep { id: i64, token: i64, named: bool, time: i64, over: Option<bool> },
    /// A batch was created.
    Open { batch: i64 },
    /// The task pushed with this value belongs to a batch.
    Join { batch: i64, value: String },
    /// A batch was to be sealed.
    Seal { batch: i64 },
    /// An event was to be emitted.
    Emit { event: String, value: String },
    /// A step was to be stored, or an event to be awaited, and this was returned as its value.
    Step { id: i64, token: i64, name: String, value: String, stored: Option<String> },
}

impl Effect {
    /// A claimed task: id, token, queue, value, group, and the end of its lease.
    pub fn claimed(row: &postgres::Row, lease: i64) -> Self {
        Self::Claim {
            id: row.get(0),
            token: row.get(1),
            queue: row.get(2),
            value: row.get(3),
            group: row.get(4),
            until: row.get(5),
            lease,
        }
    }
}

/// A transaction of a client.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The client, and the number of its operation.
    pub name: String,
    /// When it was begun, and when its outcome was known.
    pub begin: i64,
    pub end: i64,
    pub outcome: Outcome,
    /// Whether its session had synchronous_commit = off.
    pub careless: bool,
    /// Whether it was seen to commit, and a crash may have undone that.
    pub forgotten: bool,
    /// The effects, and whether each was undone by a rollback to a savepoint.
    pub effects: Vec<(Effect, bool)>,
    /// The rollbacks to savepoints: which effects each undid, from the first one up to the end at that time.
    pub undos: Vec<(usize, usize)>,
}

impl Operation {
    /// Whether an effect was still there when another one was noted.
    pub fn there_at(&self, effect: usize, other: usize) -> bool {
        effect < other && !self.undos.iter().any(|(from, to)| *from <= effect && effect < *to && *to <= other)
    }

    /// Whether it did nothing but claim, so that its commit need not wait for the disk.
    pub fn only_claims(&self) -> bool {
        // A rollback to a savepoint writes something, too.
        self.effects.iter().all(|(effect, undone)| !*undone && matches!(effect, Effect::Claim { .. }))
    }

    /// Whether its commit waited for the disk, which made durable what had committed before.
    pub fn flushed(&self) -> bool {
        let wrote = |effect: &(Effect, bool)| {
            !effect.1
                && matches!(
                    effect.0,
                    Effect::Push { id: Some(_), .. }
                        | Effect::End { accepted: true, .. }
                        | Effect::Extend { until: Some(_), .. }
                )
        };
        !self.careless && self.outcome == Outcome::Ok && self.effects.iter().any(wrote)
    }
}

/// The time, in microseconds since 1970. The server is on the same machine and has the same clock.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as i64
}

/// The file of one client.
pub struct Journal {
    file: File,
    client: String,
    /// Whether its session has synchronous_commit = off.
    careless: bool,
    operations: u64,
    /// The name of the operation that was begun last.
    operation: String,
    effects: Vec<(Effect, bool)>,
}

impl Journal {
    /// Begins the journal of a client in a folder.
    pub fn create(folder: &Path, client: &str) -> Self {
        let path = folder.join(format!("{client}.journal"));
        let file = OpenOptions::new().create(true).append(true).open(path).expect("create a journal");
        let (client, operation) = (client.to_owned(), String::new());
        Self { file, client, careless: false, operations: 0, operation, effects: Vec::new() }
    }

    /// From now on a crash may undo operations that were acknowledged to this session.
    pub fn is_careless(&mut self) {
        self.careless = true;
    }

    fn write(&mut self, line: &str) {
        self.file.write_all(format!("{line}\n").as_bytes()).expect("write to the journal");
    }

    /// Begins an operation; returns its name.
    pub fn begin(&mut self) -> String {
        self.operations += 1;
        self.effects.clear();
        self.operation = format!("{}.{}", self.client, self.operations);
        self.write(&format!("begin {} {} {}", self.operation, now(), u8::from(self.careless)));
        self.operation.clone()
    }

    /// The name of this operation.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// Notes an effect before it is asked for, or as it is found; returns its number.
    pub fn effect(&mut self, effect: Effect) -> usize {
        self.write(&format!("effect {}", encode(&effect)));
        self.effects.push((effect, false));
        self.effects.len() - 1
    }

    /// Records the outcome of an effect.
    pub fn settle(&mut self, number: usize, effect: Effect) {
        self.write(&format!("settle {number} {}", encode(&effect)));
        self.effects[number].0 = effect;
    }

    /// The effects of this operation so far, and whether each was undone.
    pub fn effects(&self) -> &[(Effect, bool)] {
        &self.effects
    }

    /// The effects from this one on are undone.
    pub fn undo(&mut self, from: usize) {
        let to = self.effects.len();
        self.write(&format!("undo {from} {to}"));
        self.effects[from..].iter_mut().for_each(|(_, undone)| *undone = true);
    }

    /// Ends the operation.
    pub fn end(&mut self, outcome: Outcome) {
        let word = match outcome {
            Outcome::Ok => "ok",
            Outcome::Failed => "failed",
            Outcome::Unknown => "unknown",
        };
        self.write(&format!("end {word} {}", now()));
    }

    /// Records an unexpected error, and drops a lease that was reported as lost.
    pub fn error(&mut self, error: &str) {
        self.write(&format!("error {}", error.replace('\n', " ")));
    }

    /// Records that a statement was cancelled or timed out.
    pub fn cut_short(&mut self) {
        self.write("cut");
    }

    /// Notes how a prepared transaction of some client ended after all.
    pub fn resolve(&mut self, name: &str, committed: bool) {
        let word = if committed { "ok" } else { "failed" };
        self.write(&format!("resolve {name} {word} {}", now()));
    }
}
