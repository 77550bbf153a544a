//! A client: one session that pushes, claims and ends tasks at random, and keeps a journal of it.
//!
//! It behaves as a careful program does: a transaction that was not seen to commit has given it nothing,
//! and a push with a key whose outcome is unknown is repeated. Now and then it is a zombie: it uses
//! tokens that it should know to be over.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use postgres::types::ToSql;
use postgres::{NoTls, Row, Statement};

use super::journal::{Effect, Journal, Outcome};
use super::load::Load;
use super::random::Random;

/// How many tokens of the past a client remembers.
const REMEMBERED: usize = 64;
/// How often a push is repeated at most once the load is over. The server is healed by then.
const REPEATS: usize = 50;

/// Where the clients of a round go, and when they stop.
pub struct Target {
    config: RwLock<postgres::Config>,
    stopping: AtomicBool,
    finished: AtomicBool,
}

impl Target {
    /// Clients go here.
    pub fn new(config: postgres::Config) -> Arc<Self> {
        let (stopping, finished) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { config: RwLock::new(config), stopping, finished })
    }

    /// From now on they go there.
    pub fn redirect(&self, config: postgres::Config) {
        *self.config.write().expect("no client panics with the lock") = config;
    }

    /// A new session, if one can be had now.
    pub fn connect(&self) -> Option<postgres::Client> {
        let config = self.config.read().expect("no client panics with the lock").clone();
        config.connect(NoTls).ok()
    }

    /// The clients repeat operations with unknown outcome, and end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// They have.
    pub fn finish(&self) {
        self.finished.store(true, Ordering::Relaxed);
    }

    /// Whether they have ended.
    pub fn finished(&self) -> bool {
        self.finished.load(Ordering::Relaxed)
    }

    /// Whether they shall end.
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// A lease that the client holds, as far as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub id: i64,
    pub token: i64,
}

/// A push with a key whose outcome is unknown.
#[derive(Clone)]
pub struct Unsure {
    pub queue: String,
    pub value: String,
    pub key: String,
}

/// Why a transaction did not go through, and whether it may have committed all the same.
pub struct Broken {
    error: postgres::Error,
    committing: bool,
}

/// A session of the server, with its prepared statements.
pub struct Session {
    client: postgres::Client,
    statements: HashMap<&'static str, Statement>,
}

impl Session {
    /// Runs a statement, prepared at its first use.
    pub fn query(
        &mut self,
        text: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, postgres::Error> {
        let statement = match self.statements.get(text) {
            Some(statement) => statement.clone(),
            None => self.statements.entry(text).or_insert(self.client.prepare(text)?).clone(),
        };
        self.client.query(&statement, parameters)
    }

    pub fn run(&mut self, statements: &str) -> Result<(), postgres::Error> {
        self.client.batch_execute(statements)
    }
}

/// The client.
pub struct Client {
    pub(super) name: String,
    pub(super) load: Load,
    pub(super) random: Random,
    pub(super) journal: Journal,
    target: Arc<Target>,
    session: Option<Session>,
    pub(super) held: Vec<Held>,
    pub(super) past: VecDeque<Held>,
    /// Tasks that it pushed of late, the last one first.
    pub(super) pushed: VecDeque<i64>,
    /// Batches that it has created and not sealed.
    pub(super) batches: VecDeque<i64>,
    unsure: Vec<Unsure>,
    pub(super) values: u64,
    /// The settings of its sessions.
    settings: String,
}

impl Client {
    /// A client of a round. The same name, seed and load make the same decisions as long as the server
    /// answers the same.
    pub fn new(target: Arc<Target>, load: Load, journals: &Path, name: &str, mut random: Random) -> Self {
        let mut journal = Journal::create(journals, name);
        let mut settings = format!("SET application_name = 'torture {name}'");
        if random.chance(load.careless) {
            settings += "; SET synchronous_commit = off";
            journal.is_careless();
        }
        if random.chance(load.by_sql) {
            settings += "; SET queue.fast_path = off";
        }
        Self {
            name: name.to_owned(),
            load,
            random,
            journal,
            target,
            session: None,
            held: Vec::new(),
            past: VecDeque::new(),
            pushed: VecDeque::new(),
            batches: VecDeque::new(),
            unsure: Vec::new(),
            values: 0,
            settings,
        }
    }

    /// Works until it has to stop and every push with a key has an answer.
    pub fn run(&mut self) {
        let mut repeats = 0;
        while !self.target.stopping() || !self.unsure.is_empty() && repeats < REPEATS {
            repeats += usize::from(self.target.stopping());
            let Some(mut session) = self.session.take().or_else(|| self.open()) else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            let name = self.journal.begin();
            let repeated = self.repeats();
            let result = match &repeated {
                Some(push) => self.push_again(&mut session, push).map_err(Broken::by_statement),
                None => self.transaction(&mut session, &name),
            };
            let outcome = self.outcome(result, &mut session);
            self.journal.end(outcome);
            self.learn(outcome, repeated);
            if !session.client.is_closed() {
                self.session = Some(session);
            }
        }
    }

    fn open(&self) -> Option<Session> {
        let mut client = self.target.connect()?;
        client.batch_execute(&self.settings).ok()?;
        Some(Session { client, statements: HashMap::new() })
    }

    fn repeats(&mut self) -> Option<Unsure> {
        let now = self.target.stopping() || self.random.chance(50);
        if now { self.unsure.last().cloned() } else { None }
    }

    fn transaction(&mut self, session: &mut Session, name: &str) -> Result<Outcome, Broken> {
        let limited = self.random.chance(self.load.timeouts);
        if limited {
            let which = self.random.weighted(&[(80, "statement_timeout"), (20, "lock_timeout")]);
            let limit = format!("SET {which} = {}", self.random.between(1, 50));
            session.run(&limit).map_err(Broken::before)?;
        }
        let result = if self.random.chance(self.load.blocks) {
            self.block(session, name)
        } else {
            self.act(session).map(|()| Outcome::Ok).map_err(Broken::by_statement)
        };
        if limited && !session.client.is_closed() {
            // Should that fail, the next statements are hurried too.
            let _ = session.run("RESET statement_timeout; RESET lock_timeout");
        }
        result
    }

    fn block(&mut self, session: &mut Session, name: &str) -> Result<Outcome, Broken> {
        let begin = match self.random.chance(self.load.strict) {
            true if self.random.chance(50) => "BEGIN ISOLATION LEVEL REPEATABLE READ",
            true => "BEGIN ISOLATION LEVEL SERIALIZABLE",
            false => "BEGIN",
        };
        session.run(begin).map_err(Broken::before)?;
        let result = self.parts(session).and_then(|()| self.end_block(session, name));
        // That may be cancelled, too.
        let mut over = result.is_ok();
        while !over && !session.client.is_closed() {
            over = session.run("ROLLBACK").is_ok();
        }
        result
    }

    fn end_block(&mut self, session: &mut Session, name: &str) -> Result<Outcome, Broken> {
        if self.random.chance(self.load.rollbacks) {
            return session.run("ROLLBACK").map(|()| Outcome::Failed).map_err(Broken::before);
        } else if self.random.chance(self.load.two_phase) {
            return self.in_two_phases(session, name);
        }
        session.run("COMMIT").map(|()| Outcome::Ok).map_err(Broken::at_commit)
    }

    fn parts(&mut self, session: &mut Session) -> Result<(), Broken> {
        for _ in 0..self.random.between(1, self.load.parts) {
            if !self.random.chance(self.load.savepoints) {
                self.part(session).map_err(Broken::before)?;
                continue;
            }
            session.run("SAVEPOINT s").map_err(Broken::before)?;
            let from = self.journal.effects().len();
            let done = self.part(session);
            if session.client.is_closed() {
                return done.map_err(Broken::before);
            }
            if let Err(error) = &done {
                self.note(error);
            }
            if done.is_err() || self.random.chance(40) {
                session.run("ROLLBACK TO s").map_err(Broken::before)?;
                self.journal.undo(from);
            } else {
                session.run("RELEASE s").map_err(Broken::before)?;
            }
        }
        Ok(())
    }

    /// Prepared transactions that are left are ended after the fault.
    fn in_two_phases(&mut self, session: &mut Session, name: &str) -> Result<Outcome, Broken> {
        session.run(&format!("PREPARE TRANSACTION '{name}'")).map_err(Broken::at_commit)?;
        let commits = self.random.weighted(&[(50, Some(true)), (25, Some(false)), (25, None)]);
        let (statement, outcome) = match commits {
            Some(true) => ("COMMIT", Outcome::Ok),
            Some(false) => ("ROLLBACK", Outcome::Failed),
            None => return Ok(Outcome::Unknown),
        };
        match session.run(&format!("{statement} PREPARED '{name}'")) {
            Ok(()) => Ok(outcome),
            Err(_) => Ok(Outcome::Unknown),
        }
    }

    /// The known outcome of the transaction. An ERROR rolls back. If the session was cut off at its COMMIT, the
    /// outcome is unknown.
    fn outcome(&mut self, result: Result<Outcome, Broken>, session: &mut Session) -> Outcome {
        let Broken { error, committing } = match result {
            Ok(outcome) => return outcome,
            Err(broken) => broken,
        };
        self.note(&error);
        let error = error.as_db_error().is_some_and(|answer| answer.severity() == "ERROR");
        let answered = error && !session.client.is_closed();
        if committing && !answered { Outcome::Unknown } else { Outcome::Failed }
    }

    /// Records an unexpected error, and drops a lease that was reported as lost.
    fn note(&mut self, error: &postgres::Error) {
        let Some(answer) = error.as_db_error() else { return };
        let code = answer.code().code();
        if ["57014", "55P03"].contains(&code) {
            self.journal.cut_short();
        }
        if ["QX001", "QX003"].contains(&code) {
            self.give_up();
        } else if !self.load.tolerates(code) {
            let context = answer.where_().unwrap_or_default();
            self.journal.error(&format!("{code} {}: {context}", answer.message()));
        }
    }

    /// Draws the conclusions from the operation that has just ended.
    fn learn(&mut self, outcome: Outcome, repeated: Option<Unsure>) {
        let effects: Vec<Effect> =
            self.journal.effects().iter().filter(|(_, undone)| !undone).map(|(e, _)| e.clone()).collect();
        if repeated.is_some() && outcome == Outcome::Ok {
            self.unsure.pop();
        }
        for effect in effects {
            match (effect, outcome) {
                (Effect::Claim { id, token, .. }, Outcome::Ok) => self.held.push(Held { id, token }),
                (Effect::End { id, token, accepted, .. }, outcome) => {
                    let ended = match outcome {
                        Outcome::Ok => accepted,
                        Outcome::Failed => false,
                        Outcome::Unknown => true,
                    };
                    if ended {
                        self.forget(Held { id, token });
                    }
                }
                (Effect::Push { id: Some(id), .. }, Outcome::Ok) => {
                    self.pushed.push_front(id);
                    self.pushed.truncate(REMEMBERED);
                }
                (Effect::Open { batch }, Outcome::Ok) => self.batches.push_back(batch),
                (Effect::Push { queue, value, key: Some(key), .. }, Outcome::Unknown)
                    if repeated.is_none() && key == value =>
                {
                    self.unsure.push(Unsure { queue, value, key });
                }
                _ => {}
            }
        }
    }

    /// The last call was refused because its lease is lost.
    fn give_up(&mut self) {
        if let Some((
            Effect::End { id, token, .. } | Effect::Extend { id, token, .. } | Effect::Step { id, token, .. },
            _,
        )) = self.journal.effects().last()
        {
            self.forget(Held { id: *id, token: *token });
        }
    }

    /// A lease is over. The client may try its token again, and must be refused.
    pub(super) fn forget(&mut self, held: Held) {
        self.held.retain(|other| *other != held);
        self.past.push_front(held);
        self.past.truncate(REMEMBERED);
    }
}

impl Broken {
    /// A statement that was a transaction of its own.
    fn by_statement(error: postgres::Error) -> Self {
        Self { error, committing: true }
    }

    /// COMMIT itself.
    fn at_commit(error: postgres::Error) -> Self {
        Self { error, committing: true }
    }

    /// Before COMMIT was sent.
    fn before(error: postgres::Error) -> Self {
        Self { error, committing: false }
    }
}
