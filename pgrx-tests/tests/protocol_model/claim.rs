//! claim: as the SQL implementation does it, and on the native fast path, which asks the lane first.

use super::deadline::is_overdue;
use super::lane::END;
use super::memory::Broken;
use super::protocol::Protocol;
use super::rows::{
    Admission, Event, Id, Key, Level, Lock, Note, Outcome, Row, State, Strength, Table, Task, Token, task,
    tasks,
};
use super::rules::Rule;
use super::world::{Step, Then, World};

impl Protocol {
    /// A claim in SQL: nothing if all slots are taken; else events come first. has_capacity, claim_from
    pub fn begin_claim(&self, world: &mut World, session: usize) -> bool {
        if self.scenario.max_running > 0 && self.free_slot(&world.view(session)).is_none() {
            return self.next_statement(world, session);
        }
        world.sessions[session].step = Step::Events(0);
        true
    }

    /// The first task of the order that nobody has locked. claim_from
    pub fn choose(&self, world: &mut World, session: usize) -> bool {
        let found = self.claimable(world, session);
        self.choose_from(world, session, &found)
    }

    /// The tasks that a claim finds in the table.
    pub fn claimable(&self, world: &World, session: usize) -> Vec<Id> {
        tasks(&world.view(session)).filter(open).map(|row| row.0).collect()
    }

    /// The same, after others have gone on since the statement's snapshot.
    pub fn choose_from(&self, world: &mut World, session: usize, found: &[Id]) -> bool {
        for id in found.iter().copied().filter(|id| self.wanted.is_none_or(|wanted| wanted == *id)) {
            match world.lock(session, Key::Task(id), Strength::NoKeyUpdate) {
                Lock::Granted(Some(Row::Task(row))) if open(&(id, row)) => {
                    let end = (id, Outcome::Failed);
                    if self.has(Rule::ClaimChecksDeadline) && is_overdue(world, &world.view(session), id) {
                        // end_unstarted, which does not wait for a push after it
                        if matches!(world.lock(session, Key::Task(id), Strength::Update), Lock::Granted(_)) {
                            return self.end_locked(world, session, end, Then::Claim);
                        }
                        continue;
                    }
                    if self.scenario.max_running > 0 {
                        world.sessions[session].step = Step::FindSlot(id);
                        return true;
                    }
                    self.grant(world, session, id, row);
                    return self.next_statement(world, session);
                }
                Lock::Changed => {
                    self.roll_back(world, session);
                    return true;
                }
                _ => {}
            }
        }
        self.next_statement(world, session)
    }

    /// A slot whose last task does not run any more with the token that is written there. free_slots
    pub fn find_slot(&self, world: &mut World, session: usize, id: Id) -> bool {
        let Some((slot, version)) = self.free_slot(&world.view(session)) else {
            return self.next_statement(world, session);
        };
        world.sessions[session].step = Step::TakeSlot(id, slot, version);
        true
    }

    /// take_slot
    pub fn take_slot(
        &self,
        world: &mut World,
        session: usize,
        id: Id,
        (slot, version): (u8, (Id, Token)),
    ) -> bool {
        let taken = match world.lock(session, Key::Slot(slot), Strength::Update) {
            Lock::Granted(Some(Row::Slot(holder, token))) => {
                (holder, token) == version || !self.has(Rule::SlotVersionChecked)
            }
            _ => false,
        };
        let Some(row) = task(&world.view(session), id).filter(|_| taken) else {
            return self.next_statement(world, session);
        };
        // Time has passed since the task was chosen.
        if self.has(Rule::DeadlineIsCheckedAgain) && is_overdue(world, &world.view(session), id) {
            world.sessions[session].step = Step::Choose;
            return true;
        }
        let token = self.grant(world, session, id, row);
        world.write(session, Key::Slot(slot), Row::Slot(id, token));
        world.transaction(session).only_leases = false;
        self.next_statement(world, session)
    }

    fn free_slot(&self, view: &Table) -> Option<(u8, (Id, Token))> {
        view.iter().find_map(|(key, row)| match (key, row) {
            (Key::Slot(slot), Row::Slot(id, token)) => {
                let holds =
                    task(view, *id).is_some_and(|row| row.state == State::Running && row.token == *token);
                (!holds).then_some((*slot, (*id, *token)))
            }
            _ => None,
        })
    }

    /// The smallest token that no lost claim can have handed out: as published, or by the mark. tokens::range
    pub fn base(&self, world: &World) -> Token {
        match (world.base, world.committed.get(&Key::Mark)) {
            (Some(base), _) => base,
            (None, Some(Row::Mark(reached))) => reached + 1,
            _ => 1,
        }
    }

    /// Writes the lease. The caller has the row locked.
    fn grant(&self, world: &mut World, session: usize, id: Id, row: Task) -> Token {
        if is_overdue(world, &world.view(session), id) {
            world.broke(Broken::StartedLate);
        }
        // Tokens up to this one may be lost in a crash.
        let lost = world.base.map_or(0, |base| base + self.scenario.reserve);
        let base = if self.has(Rule::TokensHaveBase) { self.base(world) } else { 0 };
        let token = (row.token + 1).max(base);
        world.transaction(session).durable |= token > lost && self.has(Rule::OtherClaimsAreDurable);
        world.write(session, Key::Task(id), Row::Task(Task { state: State::Running, token, ..row }));
        let open = world.transaction(session);
        open.notes.push(Note::Leased(id, token));
        // Also where the lane did not offer it: a rollback makes it a candidate.
        if !open.candidates.contains(&id) {
            open.candidates.push(id);
        }
        let earlier =
            |other: Id, row: Task| other < id && row.state != State::Waiting && self.scenario.grouped(other);
        // What this transaction has ended or claimed itself is not before it.
        let view = world.fresh_view(session);
        let pending =
            world.committed.values().chain(view.values()).any(|row| *row == Row::Event(Event::Group));
        if self.scenario.grouped(id)
            && self.scenario.group_limit == 1
            && !pending
            && tasks(&view).any(|(other, row)| earlier(other, row))
        {
            world.broke(Broken::OutOfOrder);
        }
        token
    }

    /// The native claim: whether there are events, which are left to the SQL implementation. look_for_signals
    pub fn native_claim(&self, world: &mut World, session: usize) -> bool {
        if self.scenario.max_running > 0 {
            return self.begin_claim(world, session);
        }
        let open = world.transaction(session);
        let own = open.notes.iter().any(|note| matches!(note, Note::Claimable(_) | Note::Events));
        let level = open.level == Level::ReadCommitted || !self.has(Rule::NativeAtReadCommitted);
        world.sessions[session].step = Step::Ask;
        if own || !level {
            world.sessions[session].step = Step::Events(0);
        } else if world.lane.events {
            // The hint is read first, and then the table.
            world.sessions[session].same_hint = true;
            let some = world.view(session).keys().any(|key| matches!(key, Key::Event(_)));
            world.sessions[session].step = if some { Step::Events(0) } else { Step::ClearHint };
        }
        true
    }

    /// There are none: the lane forgets that there might be, unless that was published again meanwhile.
    pub fn clear_hint(&self, world: &mut World, session: usize) -> bool {
        let has_written = !world.transaction(session).writes.is_empty();
        if !has_written && (world.sessions[session].same_hint || !self.has(Rule::HintIsCompared)) {
            world.lane.events = false;
        }
        world.sessions[session].step = Step::Ask;
        true
    }

    /// Takes a candidate, or begins to refill the lane. Lane::take, Lane::needs
    pub fn ask(&self, world: &mut World, session: usize) -> bool {
        let free: Vec<_> = world
            .lane
            .postponed
            .iter()
            .copied()
            .filter(|id| !world.is_locked(session, Key::Task(*id), Strength::NoKeyUpdate))
            .collect();
        for id in free {
            world.lane.postponed.remove(&id);
            world.lane.add(id, self.scenario.lane, self.rules);
        }
        let wanted = self.wanted.filter(|id| world.lane.candidates.remove(id));
        if let Some(id) = wanted.or_else(|| world.lane.candidates.pop_first()) {
            world.transaction(session).candidates.push(id);
            world.sessions[session].step = Step::Lease(id);
        } else if world.lane.known_below == END {
            return self.next_statement(world, session);
        } else if world.lane.refiller.is_some() {
            return false;
        } else {
            (world.lane.refiller, world.lane.missed) = (Some(session), END);
            world.sessions[session].step = Step::ReadTable(world.lane.known_below);
        }
        true
    }

    /// A refill reads the table. refill::run
    pub fn read_table(&self, world: &mut World, session: usize, from: Id) -> bool {
        let due = |(id, row): &(Id, Task)| {
            *id >= from && row.state == State::Queued && row.admission != Admission::Blocked
        };
        let found = tasks(&world.view(session)).filter(due).map(|row| row.0).collect();
        let open = world.transaction(session);
        // A task that this transaction has deleted or blocked is missing from what it reads.
        open.refilled_own |= open.writes.iter().any(|(key, row)| match (key, row) {
            (Key::Task(_), Some(Row::Task(row))) => row.admission == Admission::Blocked,
            (Key::Task(_), row) => row.is_none(),
            _ => false,
        });
        world.sessions[session].step = Step::Refilled(from, found);
        true
    }

    /// And tells the lane. Lane::refilled
    pub fn refilled(&self, world: &mut World, session: usize, from: Id, found: &[Id]) -> bool {
        world.lane.refilled(from, found, self.scenario.lane, self.rules);
        world.sessions[session].step = if session == world.worker() { Step::Commit } else { Step::Ask };
        true
    }

    /// Leases a candidate, if its row says that it can be. Grant::grant_one
    pub fn lease(&self, world: &mut World, session: usize, id: Id) -> bool {
        world.sessions[session].step = Step::Ask;
        let Some(seen) = task(&world.view(session), id).filter(|row| {
            let overdue = is_overdue(world, &world.view(session), id);
            (!self.has(Rule::ClaimChecksRow)
                || row.state == State::Queued && row.admission != Admission::Blocked)
                && !(overdue && self.has(Rule::ClaimChecksDeadline))
        }) else {
            return true;
        };
        match world.lock(session, Key::Task(id), Strength::NoKeyUpdate) {
            Lock::Granted(Some(Row::Task(row))) if row == seen => {
                self.grant(world, session, id, row);
                return self.next_statement(world, session);
            }
            Lock::Granted(_) => {}
            Lock::Busy => {
                if id < world.lane.known_below {
                    world.lane.postponed.insert(id);
                }
            }
            Lock::Changed => self.roll_back(world, session),
        }
        true
    }
}

/// Whether a claim can take the task.
fn open((_, row): &(Id, Task)) -> bool {
    row.state == State::Queued && row.admission != Admission::Blocked
}
