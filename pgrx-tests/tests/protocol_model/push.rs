//! push, retry, and the ends: complete, fail, release, cancel, purge.

use super::memory::Broken;
use super::protocol::Protocol;
use super::rows::{
    Admission, Event, Id, Key, Level, Lock, Note, Outcome, Row, State, Strength, Task, dependencies,
    outcome_of, task, tasks,
};
use super::rules::Rule;
use super::scenario::Statement;
use super::world::{Step, Then, World};

/// What came of asking for a lease.
pub enum Lease {
    /// The client has none.
    None,
    /// The task is locked.
    Waits,
    /// It is no longer held, and the transaction was rolled back.
    Lost,
    Held(Id, Task),
}

impl Protocol {
    /// push: locks one predecessor after the other. lock_before_push
    pub fn push_predecessor(&self, world: &mut World, session: usize, number: u8, all_live: bool) -> bool {
        let Some(Statement::Push(id, predecessors)) = self.statement(world, session) else { return false };
        let Some(predecessor) = predecessors.get(usize::from(number)).copied() else {
            world.sessions[session].step =
                if all_live { Step::PushInsert(true) } else { Step::PushLookAgain };
            return true;
        };
        let live = if self.has(Rule::PushLocksPredecessors) {
            match world.lock(session, Key::Task(predecessor), Strength::KeyShare) {
                Lock::Granted(row) => row.is_some(),
                Lock::Busy => return false,
                Lock::Changed => {
                    self.roll_back(world, session);
                    return true;
                }
            }
        } else {
            task(&world.view(session), predecessor).is_some()
        };
        world.write(session, Key::Dependency(predecessor, id), Row::Dependency(None));
        world.sessions[session].step = Step::PushPredecessor(number + 1, all_live && live);
        true
    }

    /// The predecessors that are gone: how they ended, says a look after the locks were granted. add_dependencies
    pub fn push_look_again(&self, world: &mut World, session: usize) -> bool {
        let Some(Statement::Push(id, predecessors)) = self.statement(world, session) else { return false };
        for predecessor in predecessors.iter().copied() {
            let view = world.view(session);
            if task(&view, predecessor).is_some() {
                // It may be a dead letter that was put back meanwhile.
                if matches!(world.lock(session, Key::Task(predecessor), Strength::KeyShare), Lock::Busy) {
                    return false;
                }
            } else if let Some(outcome) = outcome_of(&view, predecessor) {
                self.check_outcome(world, session, predecessor, outcome);
                world.write(session, Key::Dependency(predecessor, id), Row::Dependency(Some(outcome)));
            } else {
                // QX003: there is no such task.
                self.roll_back(world, session);
                return true;
            }
        }
        world.sessions[session].step = Step::PushInsert(false);
        true
    }

    /// The INSERT, with its trigger. tasks_inserted, task_arrives
    pub fn push_insert(&self, world: &mut World, session: usize, all_live: bool) -> bool {
        let Some(Statement::Push(id, predecessors)) = self.statement(world, session) else { return false };
        let grouped = self.scenario.grouped(id);
        let state = if predecessors.is_empty() { State::Queued } else { State::Waiting };
        let admission = if grouped || state == State::Waiting { Admission::Blocked } else { Admission::Open };
        world.write(session, Key::Task(id), Row::Task(Task { state, token: 0, admission }));
        world.transaction(session).only_leases = false;
        // Also for a task that waits: it may be the first of its group.
        if grouped {
            world.write_event(session, Event::Group);
        }
        // As it was: the event was all that could unblock the task.
        if state == State::Waiting && (!all_live || !self.has(Rule::PushLocksPredecessors)) {
            world.write_event(session, Event::Dependent(id));
        }
        if admission == Admission::Open {
            world.transaction(session).notes.push(Note::Claimable(id));
        }
        self.next_statement(world, session)
    }

    /// Locks the first task that the client was given, if it still has the lease. leased_task
    pub fn leased_task(&self, world: &mut World, session: usize, strength: Strength) -> Lease {
        let Some((id, token)) = world.sessions[session].leases.first().copied() else { return Lease::None };
        let checked = self.has(Rule::CompletionChecksToken);
        let leased = |row: &Task| row.state == State::Running && (row.token == token || !checked);
        // One that the snapshot shows otherwise is not locked.
        let seen = task(&world.view(session), id).filter(leased);
        match seen.map(|_| world.lock(session, Key::Task(id), strength)) {
            Some(Lock::Busy) => return Lease::Waits,
            Some(Lock::Granted(Some(Row::Task(row)))) if leased(&row) => {
                if row.token != token {
                    world.broke(Broken::StaleAccepted);
                }
                return Lease::Held(id, row);
            }
            // 40001: a client tries that again.
            Some(Lock::Changed) => {}
            // QX001: it does not try that again.
            _ => world.transaction(session).had.retain(|lease| *lease != (id, token)),
        }
        self.roll_back(world, session);
        Lease::Lost
    }

    /// complete, fail and release of that task.
    pub fn end_leased(&self, world: &mut World, session: usize, outcome: Option<Outcome>) -> bool {
        // Only an end conflicts with a push after the task.
        let strength = if outcome.is_some() { Strength::Update } else { Strength::NoKeyUpdate };
        let (id, row) = match self.leased_task(world, session, strength) {
            Lease::Held(id, row) => (id, row),
            Lease::None => return self.next_statement(world, session),
            Lease::Waits => return false,
            Lease::Lost => return true,
        };
        world.sessions[session].leases.remove(0);
        match outcome {
            Some(outcome) => self.end(world, session, (id, outcome), Then::Statement),
            None => {
                let back = Task { state: State::Queued, ..row };
                world.write(session, Key::Task(id), Row::Task(back));
                let open = world.transaction(session);
                open.only_leases = false;
                open.notes.push(Note::Claimable(id));
                if self.scenario.grouped(id) {
                    world.write_event(session, Event::Group);
                }
                self.next_statement(world, session)
            }
        }
    }

    /// cancel: by what the statement sees, the task runs and is only asked to stop, or is locked to end.
    pub fn cancel(&self, world: &mut World, session: usize, id: Id) -> bool {
        let runs = task(&world.view(session), id).is_some_and(|row| row.state == State::Running);
        // Only an end conflicts with a push after the task.
        let strength = if runs { Strength::NoKeyUpdate } else { Strength::Update };
        world.sessions[session].step = Step::Cancel(id, strength);
        true
    }

    /// The lock on the task.
    pub fn lock_to_cancel(&self, world: &mut World, session: usize, id: Id, strength: Strength) -> bool {
        match world.lock(session, Key::Task(id), strength) {
            Lock::Busy => return false,
            Lock::Changed => self.roll_back(world, session),
            Lock::Granted(Some(Row::Task(row))) if row.state != State::Running => {
                if strength == Strength::Update {
                    return self.end_locked(world, session, (id, Outcome::Cancelled), Then::Statement);
                }
                // It ran when the statement began to wait. The weaker lock stays.
                world.sessions[session].step = Step::Cancel(id, Strength::Update);
            }
            Lock::Granted(_) => return self.next_statement(world, session),
        }
        true
    }

    /// purge: the dead letters that nobody has locked. purge
    pub fn purge_dead(&self, world: &mut World, session: usize) -> bool {
        let view = world.view(session);
        let dead = view.iter().filter(|(_, row)| matches!(row, Row::Ended(Outcome::Failed, _)));
        for key in dead.map(|(key, _)| *key).filter(|key| matches!(key, Key::Ended(_))) {
            match world.lock(session, key, Strength::Update) {
                Lock::Granted(Some(_)) => world.delete(session, key),
                Lock::Changed => {
                    self.roll_back(world, session);
                    return true;
                }
                _ => {}
            }
        }
        world.sessions[session].step = Step::Purge(None);
        true
    }

    /// And then the tasks, one after the other. purge, discard
    pub fn purge_tasks(&self, world: &mut World, session: usize, left: Option<u32>) -> bool {
        let Some(left) = left else {
            let view = world.view(session);
            let found = tasks(&view).filter(|(_, row)| row.state != State::Running);
            world.sessions[session].step = Step::Purge(Some(found.fold(0, |found, (id, _)| found | 1 << id)));
            return true;
        };
        if left == 0 {
            return self.next_statement(world, session);
        }
        let (id, rest) = (left.trailing_zeros() as Id, left & (left - 1));
        world.sessions[session].step = Step::Purge(Some(rest));
        match world.lock(session, Key::Task(id), Strength::Update) {
            Lock::Granted(Some(Row::Task(row))) if row.state != State::Running => {
                self.end_locked(world, session, (id, Outcome::Cancelled), Then::Purge(rest))
            }
            Lock::Changed => {
                self.roll_back(world, session);
                true
            }
            _ => true,
        }
    }

    /// A task that waits has dependencies, which are deleted in a statement after the one that locked it.
    pub fn end_locked(&self, world: &mut World, session: usize, end: (Id, Outcome), then: Then) -> bool {
        if task(&world.fresh_view(session), end.0).is_some_and(|row| row.state == State::Waiting) {
            world.sessions[session].step = Step::End(end.0, end.1, then);
            return true;
        }
        self.end(world, session, end, then)
    }

    /// Deletes a locked task and keeps how it ended. archive, move_to_dead_letters, discard
    pub fn end(&self, world: &mut World, session: usize, (id, outcome): (Id, Outcome), then: Then) -> bool {
        let row = task(&world.fresh_view(session), id);
        let token = row.map_or(0, |row| row.token);
        world.delete(session, Key::Task(id));
        let purged = matches!(then, Then::Purge(_));
        if outcome == Outcome::Failed || self.scenario.keep_history && !purged {
            world.write(session, Key::Ended(id), Row::Ended(outcome, token));
        }
        if row.is_some_and(|row| row.state == State::Waiting) {
            self.delete_dependencies(world, session, id);
            if self.scenario.batch == Some(id) {
                world.delete(session, Key::Batch);
            }
        }
        let open = world.transaction(session);
        open.ends.push((id, outcome));
        open.notes.push(Note::Gone(id));
        world.sessions[session].step = Step::Notify(id, outcome, then);
        true
    }

    /// In a statement after the one that deleted the task: what its end means to others. on_task_end, notify_dependents
    pub fn notify(
        &self,
        world: &mut World,
        session: usize,
        (id, outcome): (Id, Outcome),
        then: Then,
    ) -> bool {
        let ran = outcome != Outcome::Cancelled && !matches!(then, Then::Purge(_));
        if self.scenario.grouped(id) && !(ran && self.hand_over(world, session)) {
            world.write_event(session, Event::Group);
        }
        let view = world.view(session);
        let mut missed = world.transaction(session).level == Level::RepeatableRead;
        for (_, dependent, recorded) in dependencies(&view).filter(|row| row.0 == id) {
            let key = Key::Dependency(id, dependent);
            let sees = recorded.is_none() && self.has(Rule::EndSeesDependents);
            if !sees || !matches!(world.lock(session, key, Strength::NoKeyUpdate), Lock::Granted(Some(_))) {
                missed |= recorded.is_none() && sees;
                continue;
            }
            if self.has(Rule::EndRecordsOutcome) {
                world.write(session, key, Row::Dependency(Some(outcome)));
            }
            // One that was cancelled may leave its dependency.
            let told = Event::Dependent(dependent);
            if task(&view, dependent).is_none() {
                continue;
            }
            if self.scenario.batch == Some(dependent) {
                self.notify_batch(world, session, dependent);
                continue;
            }
            if self.has(Rule::EndWritesOwnEvent) || !view.values().any(|row| *row == Row::Event(told)) {
                world.write_event(session, told);
            }
        }
        // Somebody who is not seen, or who is locked, may wait for it.
        if missed && self.has(Rule::EndKeepsOutcome) {
            world.write(session, Key::Outcome(id), Row::Ended(outcome, 0));
        }
        match then {
            Then::Statement => self.next_statement(world, session),
            Then::Event(event) => self.next_item(world, session, event),
            Then::Purge(left) => {
                world.sessions[session].step = Step::Purge(Some(left));
                true
            }
            Then::Claim => {
                world.sessions[session].step = Step::Choose;
                true
            }
        }
    }

    /// retry: the task comes back, perhaps before younger ones of its group that were admitted meanwhile. requeue_dead_letters
    pub fn retry(&self, world: &mut World, session: usize, id: Id) -> bool {
        let token = match world.lock(session, Key::Ended(id), Strength::Update) {
            Lock::Busy => return false,
            Lock::Granted(Some(Row::Ended(Outcome::Failed, token))) => token,
            _ => {
                self.roll_back(world, session);
                return true;
            }
        };
        world.delete(session, Key::Ended(id));
        if self.has(Rule::RetryForgetsOutcome) && world.view(session).contains_key(&Key::Outcome(id)) {
            world.delete(session, Key::Outcome(id));
        }
        let admission = if self.scenario.grouped(id) { Admission::Blocked } else { Admission::Open };
        world.write(session, Key::Task(id), Row::Task(Task { state: State::Queued, token, admission }));
        if admission == Admission::Blocked {
            world.write_event(session, Event::Group);
        } else {
            world.transaction(session).notes.push(Note::Claimable(id));
        }
        self.next_statement(world, session)
    }
}
