//! How a transaction begins and ends: commit, publication, rollback, crash.

use super::lane::Lane;
use super::protocol::Protocol;
use super::rows::{Id, Key, Level, Note, Saved, State, Transaction, task};
use super::rules::Rule;
use super::world::{Step, World};

impl Protocol {
    /// Opens the session's transaction, if it has none.
    pub fn begin(&self, world: &mut World, session: usize) {
        if world.sessions[session].transaction.is_some() {
            return;
        }
        let script = self.scenario.clients.get(session);
        let script = script.and_then(|client| client.get(usize::from(world.sessions[session].position.0)));
        let level = script.map_or(Level::ReadCommitted, |script| script.level);
        world.sessions[session].transaction = Some(Transaction {
            level,
            snapshot: (level == Level::RepeatableRead).then(|| world.committed.clone()),
            writes: Default::default(),
            locks: Default::default(),
            notes: Vec::new(),
            candidates: Vec::new(),
            had: world.sessions[session].leases.clone(),
            ends: Vec::new(),
            only_leases: true,
            durable: false,
            raises: None,
            refilled_own: false,
            frees: None,
            saved: None,
        });
    }

    /// SAVEPOINT
    pub fn save(&self, world: &mut World, session: usize) -> bool {
        let leases = world.sessions[session].leases.clone();
        let open = world.transaction(session);
        open.saved = Some(Box::new(Saved { transaction: open.clone(), leases }));
        self.next_statement(world, session)
    }

    /// ROLLBACK TO SAVEPOINT, which stays; those within it are gone. Pending::roll_back
    pub fn roll_back_to(&self, world: &mut World, session: usize, number: u8) -> bool {
        let open = world.transaction(session);
        if let Some(saved) = open.savepoint(number).cloned() {
            let undone = std::mem::replace(open, saved.transaction.clone());
            let taken = open.candidates.len();
            world.sessions[session].leases.clone_from(&saved.leases);
            world.transaction(session).saved = Some(Box::new(saved));
            self.give_back(world, &undone.candidates[taken..], undone.refilled_own);
        }
        self.next_statement(world, session)
    }

    /// RELEASE SAVEPOINT: it is gone, with those within it, and nothing is undone.
    pub fn release_savepoint(&self, world: &mut World, session: usize, number: u8) -> bool {
        let open = world.transaction(session);
        if let Some(around) = open.savepoint(number).map(|saved| saved.transaction.saved.clone()) {
            open.saved = around;
        }
        self.next_statement(world, session)
    }

    /// The candidates of a claim that is rolled back return to the lane, and what was read from an undone table is
    /// forgotten. Pending::roll_back
    fn give_back(&self, world: &mut World, candidates: &[Id], refilled_own: bool) {
        if self.has(Rule::RollbackReturnsCandidates) {
            candidates.iter().for_each(|id| world.lane.add(*id, self.scenario.lane, self.rules));
        }
        if refilled_own && self.has(Rule::UndoneRefillIsForgotten) {
            world.lane.lower(0);
        }
    }

    /// After a transaction, whichever way it ended.
    fn finish(&self, world: &mut World, session: usize) {
        let worker = world.worker();
        let frees = world.sessions[session].transaction.take().and_then(|open| open.frees);
        let done = &mut world.sessions[session];
        done.position = (done.position.0 + u8::from(session != worker), 0);
        let more = session != worker && usize::from(done.position.0) < self.scenario.clients[session].len();
        done.step = match frees {
            Some(slot) => Step::FreeSlot(slot),
            None if session == worker => Step::Idle,
            None if more => Step::Start,
            None => Step::Done,
        };
    }

    /// The rows become visible to others. CommitTransaction, ProcArrayEndTransaction
    pub fn commit(&self, world: &mut World, session: usize) -> bool {
        let late = world.sessions[session].step == Step::CommitLate;
        if !late && !self.has(Rule::PublishAfterCommit) {
            self.publish_notes(world, session);
            world.sessions[session].step = Step::CommitLate;
            return true;
        }
        let open = world.transaction(session).clone();
        if !open.writes.is_empty() {
            let may_be_lost = (open.only_leases || self.is_asynchronous(world, session)) && !open.durable;
            let asynchronous = may_be_lost || !self.has(Rule::OnlyLeasesCommitAsynchronously);
            if self.scenario.faults.crashes > 0 && asynchronous {
                world.unflushed.push(world.committed.clone());
            } else {
                world.unflushed.clear();
            }
        }
        for (key, row) in &open.writes {
            let before = world.committed.get(key).copied();
            match row {
                Some(row) => world.committed.insert(*key, *row),
                None => world.committed.remove(key),
            };
            if let Key::Task(id) = key {
                self.remember(world, session, *id, (before, *row), &open);
            }
        }
        self.check_limits(world);
        world.swept &= open.writes.is_empty();
        let open = world.transaction(session);
        (open.writes, open.locks, open.saved) = Default::default();
        if late || self.scenario.lane == 0 && open.raises.is_none() {
            self.finish(world, session);
        } else {
            world.sessions[session].step = Step::Publish;
        }
        true
    }

    /// Whether the session's commits do not wait for the disk.
    pub fn is_asynchronous(&self, world: &World, session: usize) -> bool {
        let (script, _) = world.sessions[session].position;
        let client = self.scenario.clients.get(session);
        client.and_then(|client| client.get(usize::from(script))).is_some_and(|script| script.asynchronous)
    }

    /// The callback after the commit. Pending::publish
    pub fn publish(&self, world: &mut World, session: usize) -> bool {
        world.base = world.transaction(session).raises.or(world.base);
        self.publish_notes(world, session);
        self.finish(world, session);
        true
    }

    fn publish_notes(&self, world: &mut World, session: usize) {
        let notes = std::mem::take(&mut world.transaction(session).notes);
        for note in notes {
            match note {
                Note::Claimable(id) => world.lane.add(id, self.scenario.lane, self.rules),
                Note::Leased(id, token) => {
                    world.lane.remove(id);
                    // Another transaction may have ended this lease already, and published that first.
                    if world.past(id).lease != Some(token) && self.has(Rule::LateLeaseLowersLane) {
                        world.lane.lower(id);
                    }
                }
                Note::Gone(id) => world.lane.remove(id),
                Note::Events => {
                    world.lane.events = true;
                    world.sessions.iter_mut().for_each(|other| other.same_hint = false);
                }
            }
        }
    }

    /// The transaction rolls back. Pending::roll_back
    pub fn roll_back(&self, world: &mut World, session: usize) {
        if let Some(open) = world.sessions[session].transaction.take() {
            world.sessions[session].leases = open.had;
            self.give_back(world, &open.candidates, open.refilled_own);
        }
        if world.lane.refiller == Some(session) {
            world.lane.refiller = None;
        }
        world.sessions[session].step = Step::Start;
        self.finish(world, session);
    }

    /// Shared memory is lost, and with it the last commits that were not flushed. Clients still know what they
    /// were told.
    pub fn crash(&self, world: &mut World, survive: usize) {
        world.faults.crashes -= 1;
        if let Some(table) = world.unflushed.get(survive) {
            world.committed = table.clone();
        }
        world.unflushed.clear();
        for session in 0..world.sessions.len() {
            if let Some(open) = &world.sessions[session].transaction {
                // What a client was given by a transaction that has committed, it was given.
                if world.sessions[session].step != Step::Publish {
                    world.sessions[session].leases = open.had.clone();
                }
                world.sessions[session].step = Step::Start;
                self.finish(world, session);
            }
            world.sessions[session].same_hint = false;
        }
        let known_below = world.lane.known_below;
        world.lane = Lane::new();
        if !self.has(Rule::CrashClearsLane) {
            (world.lane.known_below, world.lane.events) = (known_below, false);
        }
        world.base = None;
        world.swept = false;
        for id in 0..self.scenario.tasks.len() as Id {
            let row = task(&world.committed, id);
            let past = world.past(id);
            // A lease that the crash has undone is no longer valid.
            past.lease = past
                .lease
                .filter(|token| row.is_some_and(|row| row.state == State::Running && row.token == *token));
            if row.is_some() {
                past.outcome = None;
                if past.may_be_undone {
                    (past.completions, past.may_be_undone) = (0, false);
                }
            }
        }
        let table = &world.committed;
        world.expired.retain(|id| task(table, *id).is_some_and(|row| row.state == State::Running));
    }
}
