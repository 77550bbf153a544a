//! Processing events: unblocking dependents, and admitting tasks of a group. sql/internal/events.sql, dependencies.sql,
//! groups.sql

use super::protocol::Protocol;
use super::rows::{
    Admission, Event, Id, Key, Level, Lock, Note, Outcome, Row, State, Strength, Table, Task, dependencies,
    outcome_of, task, tasks,
};
use super::rules::Rule;
use super::suspension::{is_emitted, is_suspended};
use super::world::{Step, Then, World};

impl Protocol {
    /// Takes the next event that nobody else has locked; goes on if there is none. settle
    pub fn events(&self, world: &mut World, session: usize, from: u8) -> bool {
        if world.transaction(session).level != Level::ReadCommitted && self.has(Rule::EventsAtReadCommitted) {
            return self.after_events(world, session);
        }
        let view = world.view(session);
        let events = view.iter().filter_map(|(key, row)| match (key, row) {
            (Key::Event(number), Row::Event(event)) if *number > from => Some((*number, *event)),
            _ => None,
        });
        for (number, event) in events.collect::<Vec<_>>() {
            if !matches!(world.lock(session, Key::Event(number), Strength::Update), Lock::Granted(Some(_))) {
                continue;
            }
            // With all others about the same task or group that nobody has locked. process_event
            for (key, row) in &view {
                if matches!(key, Key::Event(_)) && *row == Row::Event(event) {
                    world.lock(session, *key, Strength::Update);
                }
            }
            world.sessions[session].step = match event {
                Event::Dependent(id) => Step::LockDependent(number, id),
                Event::Group => Step::LockGroup(number, None),
            };
            return true;
        }
        self.after_events(world, session)
    }

    fn after_events(&self, world: &mut World, session: usize) -> bool {
        // A claim goes on to look for tasks.
        world.sessions[session].step = if session == world.worker() { Step::Commit } else { Step::Choose };
        true
    }

    /// The event is done with, and so are those that were locked with it.
    pub fn next_item(&self, world: &mut World, session: usize, number: u8) -> bool {
        let view = world.view(session);
        let event = view.get(&Key::Event(number));
        let locked = |key: &Key| {
            world.sessions[session].transaction.as_ref().is_some_and(|open| open.locks.contains_key(key))
        };
        let same = view
            .iter()
            .filter(|(key, row)| matches!(key, Key::Event(_)) && Some(*row) == event && locked(key));
        let same: Vec<_> = same.map(|(key, _)| *key).collect();
        same.into_iter().for_each(|key| world.delete(session, key));
        self.leave_item(world, session, number)
    }

    /// The event stays, to be processed again. postpone_event
    pub fn leave_item(&self, world: &mut World, session: usize, number: u8) -> bool {
        world.sessions[session].step = Step::Events(number);
        true
    }

    /// The lock on the task that waits, without waiting for it. process_dependent
    pub fn lock_dependent(&self, world: &mut World, session: usize, number: u8, id: Id) -> bool {
        match world.lock(session, Key::Task(id), Strength::NoKeyUpdate) {
            Lock::Granted(Some(Row::Task(row))) if row.state == State::Waiting => {
                world.sessions[session].step = Step::CheckDependent(number, id);
                true
            }
            Lock::Granted(row) => {
                // The end of a task leaves dependencies that others have locked.
                if row.is_none() && outcome_of(&world.view(session), id).is_some() {
                    self.delete_dependencies(world, session, id);
                }
                self.next_item(world, session, number)
            }
            _ => self.leave_item(world, session, number),
        }
    }

    /// In a statement after that: how its predecessors have ended. process_dependent, unblock
    pub fn check_dependent(&self, world: &mut World, session: usize, number: u8, id: Id) -> bool {
        let view = world.view(session);
        let mut outcomes: Vec<_> =
            dependencies(&view).filter(|row| row.1 == id).map(|row| (row.0, row.2)).collect();
        if !self.has(Rule::PushLocksPredecessors) {
            // As it was: the outcome was looked for, unless one of them was just ending.
            let ending = |row: &(Id, _)| world.is_locked(session, Key::Task(row.0), Strength::KeyShare);
            if outcomes.iter().any(ending) {
                return self.leave_item(world, session, number);
            }
            outcomes.iter_mut().for_each(|row| row.1 = row.1.or_else(|| self.outcome(&view, row.0)));
        }
        let Some(row) = task(&view, id) else { return self.next_item(world, session, number) };
        if self.scenario.batch == Some(id) {
            return self.process_batch(world, session, (id, row), number);
        }
        if is_suspended(&view, id, row) {
            if is_emitted(&view) {
                self.unblock(world, session, (id, row));
            }
            return self.next_item(world, session, number);
        }
        if outcomes.iter().any(|row| row.1.is_some_and(|outcome| outcome != Outcome::Completed)) {
            // Which it cannot as long as a transaction has pushed after it. lock_to_end
            if !matches!(world.lock(session, Key::Task(id), Strength::Update), Lock::Granted(Some(_))) {
                return self.leave_item(world, session, number);
            }
            return self.end_locked(world, session, (id, Outcome::Cancelled), Then::Event(number));
        }
        if outcomes.iter().all(|row| row.1.is_some()) {
            self.unblock(world, session, (id, row));
        }
        self.next_item(world, session, number)
    }

    pub fn unblock(&self, world: &mut World, session: usize, (id, row): (Id, Task)) {
        self.delete_dependencies(world, session, id);
        let admission = if self.scenario.grouped(id) { Admission::Blocked } else { Admission::Open };
        world.write(session, Key::Task(id), Row::Task(Task { state: State::Queued, admission, ..row }));
        world.transaction(session).only_leases = false;
        if admission == Admission::Open {
            world.transaction(session).notes.push(Note::Claimable(id));
        } else if self.has(Rule::UnblockNotifiesGroup) {
            world.write_event(session, Event::Group);
        }
    }

    /// Without waiting for those that an end or a sweep has locked.
    pub fn delete_dependencies(&self, world: &mut World, session: usize, id: Id) {
        let keys: Vec<_> =
            dependencies(&world.view(session)).filter(|row| row.1 == id).map(|row| row.0).collect();
        for predecessor in keys {
            let key = Key::Dependency(predecessor, id);
            if matches!(world.lock(session, key, Strength::Update), Lock::Granted(Some(_))) {
                world.delete(session, key);
            }
        }
    }

    /// How a predecessor ended whose outcome nobody recorded; nothing if it has not.
    pub fn outcome(&self, view: &Table, predecessor: Id) -> Option<Outcome> {
        if task(view, predecessor).is_some() {
            return None;
        }
        let gone = if self.has(Rule::GoneIsNotCompleted) { Outcome::Cancelled } else { Outcome::Completed };
        Some(outcome_of(view, predecessor).unwrap_or(gone))
    }

    /// The lock on the group, without waiting for it. lock_group
    pub fn lock_group(&self, world: &mut World, session: usize, number: u8, counted: Option<usize>) -> bool {
        if counted.is_none() && !self.has(Rule::CountAfterLock) {
            let admitted = admitted(&world.view(session));
            world.sessions[session].step = Step::LockGroup(number, Some(admitted));
            return true;
        }
        let Lock::Granted(_) = world.lock(session, Key::Group, Strength::Update) else {
            return self.leave_item(world, session, number);
        };
        if !self.has(Rule::GroupLockedToCommit) {
            world.transaction(session).locks.remove(&Key::Group);
        }
        world.sessions[session].step = match counted {
            Some(admitted) => Step::Admit(number, admitted),
            None => Step::CountAdmitted(number),
        };
        true
    }

    /// In a statement after that: how many are admitted. admitted_of
    pub fn count_admitted(&self, world: &mut World, session: usize, number: u8) -> bool {
        world.sessions[session].step = Step::Admit(number, admitted(&world.view(session)));
        true
    }

    /// Admits the earliest task, or withdraws the admission of the latest, as far as need be. admit_next
    pub fn admit(&self, world: &mut World, session: usize, number: u8, admitted: usize) -> bool {
        let view = world.view(session);
        let Some((id, admission)) = self.next_admission(&view, admitted) else {
            return self.next_item(world, session, number);
        };
        match world.lock(session, Key::Task(id), Strength::NoKeyUpdate) {
            Lock::Granted(Some(Row::Task(row)))
                if row.admission != admission && row.state == State::Queued =>
            {
                world.write(session, Key::Task(id), Row::Task(Task { admission, ..row }));
                let open = world.transaction(session);
                open.only_leases = false;
                world.sessions[session].step = if admission == Admission::Admitted {
                    world.transaction(session).notes.push(Note::Claimable(id));
                    Step::Admit(number, admitted + 1)
                } else {
                    if !self.has(Rule::WithdrawnStaysCandidate) {
                        world.transaction(session).notes.push(Note::Gone(id));
                    }
                    Step::CountAdmitted(number)
                };
                true
            }
            _ => self.leave_item(world, session, number),
        }
    }

    /// The end of a task admits the next one of its group, if that is possible at once. hand_over
    pub fn hand_over(&self, world: &mut World, session: usize) -> bool {
        let level = world.transaction(session).level;
        if self.scenario.group_limit != 1
            || level != Level::ReadCommitted && self.has(Rule::EventsAtReadCommitted)
        {
            return false;
        }
        if !self.has(Rule::HandOverLocksFirst) {
            let view = world.view(session);
            if self.next_admission(&view, admitted(&view)).is_none() {
                return true;
            }
        }
        if !matches!(world.lock(session, Key::Group, Strength::Update), Lock::Granted(_)) {
            return false;
        }
        if !self.has(Rule::GroupLockedToCommit) {
            world.transaction(session).locks.remove(&Key::Group);
        }
        let view = world.view(session);
        let Some((id, admission)) = self.next_admission(&view, admitted(&view)) else { return true };
        match world.lock(session, Key::Task(id), Strength::NoKeyUpdate) {
            Lock::Granted(Some(Row::Task(row)))
                if admission == Admission::Admitted && row.state == State::Queued =>
            {
                world.write(session, Key::Task(id), Row::Task(Task { admission, ..row }));
                world.transaction(session).notes.push(Note::Claimable(id));
                true
            }
            _ => false,
        }
    }

    /// Which task of the group to admit next, or whose admission to withdraw. next_admission
    pub fn next_admission(&self, view: &Table, admitted: usize) -> Option<(Id, Admission)> {
        let blocked = || {
            tasks(view).filter(|(id, row)| self.scenario.grouped(*id) && row.admission == Admission::Blocked)
        };
        // One that still waits for its predecessors takes the place of one that runs.
        let room = |before: Id| {
            let waiting = blocked().filter(|(id, row)| *id < before && row.state == State::Waiting).count();
            self.scenario.group_limit.checked_sub(admitted + waiting)
        };
        let ready =
            |(_, row): &(Id, Task)| row.admission == Admission::Admitted && row.state == State::Queued;
        let latest = tasks(view).filter(ready).map(|row| row.0).last();
        let first = blocked().find(|(_, row)| row.state == State::Queued).map(|row| row.0);
        if let Some(first) = first
            && room(first).is_some_and(|room| room > 0)
        {
            return Some((first, Admission::Admitted));
        }
        let withdrawn = |latest: &Id| first.is_some_and(|first| *latest > first) || room(*latest).is_none();
        let younger = latest.filter(|latest| withdrawn(latest) && self.has(Rule::OlderTaskWithdrawsYounger));
        younger.map(|latest| (latest, Admission::Blocked))
    }
}

/// How many tasks of the group are admitted.
pub fn admitted(view: &Table) -> usize {
    tasks(view).filter(|(_, row)| row.admission == Admission::Admitted).count()
}
