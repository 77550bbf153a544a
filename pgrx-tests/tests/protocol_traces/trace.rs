//! The recording of a small case: the statements and answers of its clients, and the commits of its transactions.

use super::rows::{Id, Key, Level, Row, Table, Token};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The policies of a world's queue.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    /// For queue.create.
    pub options: &'static str,
    pub grouped: bool,
    pub group_limit: usize,
    pub max_running: u8,
    pub keep_history: bool,
}

/// A world, from its first push until nothing is left of it.
#[derive(Debug)]
pub struct Trace {
    pub number: u64,
    pub shape: &'static Shape,
    pub clients: Vec<Vec<Played>>,
    /// When each statement began and ended, in the order of the clock that all clients share.
    pub marks: Vec<Mark>,
    /// The tasks that were pushed, whether or not that was committed.
    pub ids: Vec<i64>,
    /// Whether nothing was left in the end.
    pub drained: bool,
    pub commits: Vec<Commit>,
    /// The subject of a postponed event: a task, or the group.
    pub postponed: Vec<Option<i64>>,
    /// Whether a sweep had something to find: a dependency whose predecessor has ended without telling, or whose task does
    /// not wait any more.
    pub leftovers: bool,
    /// When each lease ends.
    pub leases: HashMap<(Id, Token), Time>,
    /// The smallest token at the beginning.
    pub base: i64,
    pub worker: bool,
    pub crash: Option<Crash>,
}

/// The server was killed with all its processes, and started again.
#[derive(Clone, Debug)]
pub struct Crash {
    /// So many marks were recorded before.
    pub mark: usize,
    /// When it started.
    pub at: Time,
    /// The transactions of the log from before that.
    pub survived: HashSet<u32>,
    /// The smallest token from then on.
    pub base: i64,
}

/// How many tokens the model keeps for claims that a crash undoes.
pub const RESERVE: Token = 30;

/// As the server writes it, with all digits: the order of texts is that of times.
pub type Time = String;

/// A transaction of a client.
#[derive(Debug)]
pub struct Played {
    pub level: Level,
    pub native: bool,
    /// With synchronous_commit = off.
    pub asynchronous: bool,
    pub calls: Vec<Call>,
    pub end: End,
    /// Nothing if it wrote nothing.
    pub xid: Option<u32>,
    /// Whether it began after the crash.
    pub afterwards: bool,
}

impl Played {
    /// The statements that were not rolled back to a savepoint.
    pub fn kept(&self) -> Vec<&Call> {
        let (mut kept, mut saved) = (Vec::new(), Vec::new());
        for call in &self.calls {
            match call.asked {
                Asked::Save(_) => saved.push(kept.len()),
                Asked::RollBackTo(number) => {
                    saved.truncate(usize::from(number) + 1);
                    kept.truncate(saved.last().copied().unwrap_or(0));
                }
                Asked::ReleaseSavepoint(number) => saved.truncate(number.into()),
                _ => kept.push(call),
            }
        }
        kept
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Commit,
    Rollback,
    /// Its last statement was refused.
    Failed,
    /// The server was killed before the client knew that it had committed, and it had not.
    Crashed,
}

#[derive(Debug)]
pub struct Call {
    pub asked: Asked,
    pub told: Told,
}

#[derive(Clone, Debug)]
pub enum Asked {
    Look,
    Push {
        grouped: bool,
        after: Vec<i64>,
    },
    /// With a lease of a few milliseconds, or of an hour.
    Claim {
        short: bool,
    },
    Complete(i64, i64),
    Discard(i64, i64),
    Release(i64, i64),
    Cancel(i64),
    Retry(i64),
    Purge,
    /// Savepoints are numbered by how many are around them.
    Save(u8),
    RollBackTo(u8),
    ReleaseSavepoint(u8),
}

impl Asked {
    /// The lease that it is about.
    pub fn lease(&self) -> Option<(i64, i64)> {
        match self {
            Self::Complete(id, token) | Self::Discard(id, token) | Self::Release(id, token) => {
                Some((*id, *token))
            }
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Done,
    Pushed(i64),
    Claimed(Option<(i64, i64)>),
    /// It was asked to cancel a task that runs.
    Running,
    /// The SQLSTATE.
    Refused(String),
}

/// A statement of a client's transaction begins or ends. The one after the last is COMMIT or ROLLBACK.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pub client: usize,
    pub statement: (u8, u8),
    pub begins: bool,
}

/// A transaction that changed rows of the world, in the order of the write-ahead log.
#[derive(Debug)]
pub struct Commit {
    /// Which client's, and which of its transactions; nothing if it was the worker.
    pub by: Option<(usize, u8)>,
    pub at: Time,
    /// Whether the crash was before it.
    pub afterwards: bool,
    /// How many rows it changed, and the meaning for the model.
    pub rows: usize,
    pub changes: Changes,
}

/// Rows with their new versions; nothing for one that is gone.
pub type Changes = BTreeMap<Key, Option<Row>>;

/// The differences of the second one.
pub fn changes(before: &Table, after: &Table) -> Changes {
    let gone = before.keys().filter(|key| !after.contains_key(key)).map(|key| (*key, None));
    let new =
        after.iter().filter(|(key, row)| before.get(key) != Some(row)).map(|(key, row)| (*key, Some(*row)));
    gone.chain(new).collect()
}

impl Trace {
    /// How many events were recorded.
    pub fn events(&self) -> usize {
        self.marks.len() + self.commits.iter().map(|commit| commit.rows).sum::<usize>()
    }

    /// Whether a client's transaction from before the crash is not in the log, though its session may have committed it.
    pub fn is_lost(&self, (client, transaction): (usize, u8)) -> bool {
        let before = self.crash.is_some() && !self.clients[client][usize::from(transaction)].afterwards;
        before && !self.commits.iter().any(|commit| commit.by == Some((client, transaction)))
    }

    /// The log does not have the leases of claims that a crash has undone. The short ones are over at that time.
    pub fn end_lost_leases(&mut self) {
        let Some(at) = self.crash.as_ref().map(|crash| crash.at.clone()) else { return };
        let calls = self.clients.iter().flatten().flat_map(|played| &played.calls);
        let short: Vec<_> = calls
            .filter_map(|call| match (&call.asked, &call.told) {
                (Asked::Claim { short: true }, Told::Claimed(lease)) => *lease,
                _ => None,
            })
            .collect();
        for (id, token) in short {
            let lease = (self.number_of(id).unwrap_or(Id::MAX), self.modelled_token(token));
            self.leases.entry(lease).or_insert_with(|| at.clone());
        }
    }

    /// Whether the crash may have undone a commit that others saw. The log does not have what it wrote.
    pub fn loses(&self) -> bool {
        (0..self.clients.len()).any(|client| {
            (0..).zip(&self.clients[client]).any(|(transaction, played)| {
                played.asynchronous
                    && matches!(played.end, End::Commit | End::Crashed)
                    && self.is_lost((client, transaction))
            })
        })
    }

    /// The number of a task in the model. They are in the order of ids.
    pub fn number_of(&self, id: i64) -> Option<u8> {
        self.ids.binary_search(&id).ok().map(|place| place as u8)
    }

    /// A token as the model counts, which begins at 1, and after a crash behind its reserve.
    pub fn modelled_token(&self, token: i64) -> Token {
        let (real, modelled) = match &self.crash {
            Some(crash) if token >= crash.base => (crash.base, i64::from(RESERVE) + 2),
            _ => (self.base, 1),
        };
        if token == 0 { 0 } else { (token - real + modelled).clamp(0, 255) as Token }
    }
}
