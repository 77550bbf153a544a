//! What the clients did and what they were told, in files outside the server's reach.
//!
//! Every line is written before the statement that it announces is sent, so a client that is killed
//! leaves an operation without an end, whose outcome is unknown. The files are synced before they are
//! read: an answer that counts is on disk.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::SplitWhitespace;
use std::time::{SystemTime, UNIX_EPOCH};

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its COMMIT returned.
    Ok,
    /// It was rolled back, or never committed.
    Failed,
    /// The answer to its COMMIT was cut off.
    Unknown,
}

/// What a verb ended, or tried to end, with a token.
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
    Push { queue: String, value: String, key: Option<String>, group: Option<String>, id: Option<i64> },
    /// A claim returned this. Times are microseconds since 1970, by the server's clock.
    Claim { id: i64, token: i64, queue: String, value: String, group: Option<String>, until: i64, lease: i64 },
    /// The lease was to run until then at least, if the answer came.
    Extend { id: i64, token: i64, lease: i64, until: Option<i64> },
    /// An attempt was to end; whether that was accepted.
    End { verb: Verb, id: i64, token: i64, accepted: bool },
    /// A task was to be cancelled by an operator, and was, or its worker was asked to.
    Cancel { id: i64, state: Option<String> },
}

impl Effect {
    /// What a claim returned: id, token, queue, value, group, and the end of its lease.
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
    /// Who, and which of its operations.
    pub name: String,
    /// When it was begun, and when its outcome was known.
    pub begin: i64,
    pub end: i64,
    pub outcome: Outcome,
    /// The effects, and whether each was undone by a rollback to a savepoint.
    pub effects: Vec<(Effect, bool)>,
}

/// The time, in microseconds since 1970. The server is on the same machine and has the same clock.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as i64
}

/// The file of one client.
pub struct Journal {
    file: File,
    client: String,
    operations: u64,
    /// The name of the operation that was begun last.
    operation: String,
    effects: Vec<(Effect, bool)>,
}

/// What the journals say.
#[derive(Default)]
pub struct Account {
    pub operations: Vec<Operation>,
    /// Errors that no client should meet.
    pub errors: Vec<String>,
    /// Statements that were cancelled, or ran out of time.
    pub cut_short: u64,
}

impl Journal {
    /// Begins the journal of a client in a folder.
    pub fn create(folder: &Path, client: &str) -> Self {
        let path = folder.join(format!("{client}.journal"));
        let file = OpenOptions::new().create(true).append(true).open(path).expect("create a journal");
        let (client, operation) = (client.to_owned(), String::new());
        Self { file, client, operations: 0, operation, effects: Vec::new() }
    }

    fn write(&mut self, line: &str) {
        self.file.write_all(format!("{line}\n").as_bytes()).expect("write to the journal");
    }

    /// Begins an operation; returns its name.
    pub fn begin(&mut self) -> String {
        self.operations += 1;
        self.effects.clear();
        self.operation = format!("{}.{}", self.client, self.operations);
        self.write(&format!("begin {} {}", self.operation, now()));
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

    /// Notes what came of an effect.
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

    /// Notes an error that should not be.
    pub fn error(&mut self, error: &str) {
        self.write(&format!("error {}", error.replace('\n', " ")));
    }

    /// Notes that a statement was cancelled, or ran out of time.
    pub fn cut_short(&mut self) {
        self.write("cut");
    }

    /// Notes how a prepared transaction of some client ended after all.
    pub fn resolve(&mut self, name: &str, committed: bool) {
        let word = if committed { "ok" } else { "failed" };
        self.write(&format!("resolve {name} {word} {}", now()));
    }
}

/// Reads the journals of a folder.
pub fn read(folder: &Path) -> Account {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("read the journals")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "journal"))
        .collect();
    files.sort();
    let (mut account, mut resolved) = (Account::default(), HashMap::new());
    for path in files {
        File::open(&path).and_then(|file| file.sync_all()).expect("sync a journal");
        let text = std::fs::read_to_string(&path).expect("read a journal");
        text.lines().for_each(|line| account.read_line(line, &mut resolved));
    }
    for operation in &mut account.operations {
        if let Some((outcome, end)) = resolved.get(&operation.name) {
            (operation.outcome, operation.end) = (*outcome, *end);
        }
    }
    account
}

impl Account {
    fn read_line(&mut self, line: &str, resolved: &mut HashMap<String, (Outcome, i64)>) {
        let mut words = line.split_whitespace();
        let first = word(&mut words);
        match first {
            "begin" => {
                let name = word(&mut words).to_owned();
                let begin = number(&mut words);
                // Until its end is read: a client that was killed never writes it.
                let (end, outcome) = (i64::MAX, Outcome::Unknown);
                self.operations.push(Operation { name, begin, end, outcome, effects: vec![] });
                return;
            }
            "resolve" => {
                let name = word(&mut words).to_owned();
                resolved.insert(name, (outcome(&mut words), number(&mut words)));
                return;
            }
            "error" => return self.errors.push(line.to_owned()),
            "cut" => {
                self.cut_short += 1;
                return;
            }
            _ => {}
        }
        let operation = self.operations.last_mut().expect("an operation begins first");
        match first {
            "effect" => operation.effects.push((decode(&mut words), false)),
            "settle" => {
                let place = number(&mut words) as usize;
                operation.effects[place].0 = decode(&mut words);
            }
            "undo" => {
                let (from, to) = (number(&mut words) as usize, number(&mut words) as usize);
                operation.effects[from..to].iter_mut().for_each(|(_, undone)| *undone = true);
            }
            "end" => {
                operation.outcome = outcome(&mut words);
                operation.end = number(&mut words);
            }
            other => panic!("no such line: {other}"),
        }
    }
}

fn word<'a>(words: &mut SplitWhitespace<'a>) -> &'a str {
    words.next().expect("a word")
}

fn number(words: &mut SplitWhitespace<'_>) -> i64 {
    word(words).parse().expect("a number")
}

fn maybe(words: &mut SplitWhitespace<'_>) -> Option<String> {
    Some(word(words)).filter(|word| *word != "-").map(str::to_owned)
}

fn outcome(words: &mut SplitWhitespace<'_>) -> Outcome {
    match word(words) {
        "ok" => Outcome::Ok,
        "failed" => Outcome::Failed,
        _ => Outcome::Unknown,
    }
}

fn or_dash<T: ToString>(value: Option<&T>) -> String {
    value.map_or("-".to_owned(), T::to_string)
}

fn encode(effect: &Effect) -> String {
    match effect {
        Effect::Push { queue, value, key, group, id } => {
            let (key, group, id) = (or_dash(key.as_ref()), or_dash(group.as_ref()), or_dash(id.as_ref()));
            format!("push {queue} {value} {key} {group} {id}")
        }
        Effect::Claim { id, token, queue, value, group, until, lease } => {
            format!("claim {id} {token} {queue} {value} {} {until} {lease}", or_dash(group.as_ref()))
        }
        Effect::Extend { id, token, lease, until } => {
            format!("extend {id} {token} {lease} {}", or_dash(until.as_ref()))
        }
        Effect::End { verb, id, token, accepted } => format!("{verb:?} {id} {token} {}", u8::from(*accepted)),
        Effect::Cancel { id, state } => format!("cancel {id} {}", or_dash(state.as_ref())),
    }
}

fn decode(words: &mut SplitWhitespace<'_>) -> Effect {
    let kind = word(words);
    let verb = match kind {
        "push" => {
            let (queue, value) = (word(words).to_owned(), word(words).to_owned());
            let (key, group) = (maybe(words), maybe(words));
            let id = maybe(words).map(|id| id.parse().expect("an id"));
            return Effect::Push { queue, value, key, group, id };
        }
        "claim" => {
            let (id, token) = (number(words), number(words));
            let (queue, value, group) = (word(words).to_owned(), word(words).to_owned(), maybe(words));
            return Effect::Claim {
                id,
                token,
                queue,
                value,
                group,
                until: number(words),
                lease: number(words),
            };
        }
        "extend" => {
            let (id, token, lease) = (number(words), number(words), number(words));
            let until = maybe(words).map(|until| until.parse().expect("a time"));
            return Effect::Extend { id, token, lease, until };
        }
        "cancel" => return Effect::Cancel { id: number(words), state: maybe(words) },
        "Complete" => Verb::Complete,
        "Fail" => Verb::Fail,
        "FailForGood" => Verb::FailForGood,
        "Release" => Verb::Release,
        "Cancelled" => Verb::Cancelled,
        other => panic!("no such effect: {other}"),
    };
    Effect::End { verb, id: number(words), token: number(words), accepted: number(words) == 1 }
}
