//! A task that is suspended until an event of its queue, and the emission of that event. There is one event.
//! sql/internal/steps.sql

use super::protocol::Protocol;
use super::push::Lease;
use super::rows::{Admission, Event, Id, Key, Lock, Row, State, Strength, Table, Task, task};
use super::rules::Rule;
use super::world::{Step, World};

impl Protocol {
    /// await_event: what was stored is returned again.
    pub fn await_event(&self, world: &mut World, session: usize) -> bool {
        match self.leased_task(world, session, Strength::NoKeyUpdate) {
            Lease::Held(id, _) if !world.view(session).contains_key(&Key::Step(id)) => {
                world.sessions[session].step = Step::LockEvent(id);
                true
            }
            Lease::Held(..) | Lease::None => self.next_statement(world, session),
            Lease::Waits => false,
            Lease::Lost => true,
        }
    }

    /// If the event was emitted, that is stored; else the lease ends, and the task waits. lock_event, suspend_for
    pub fn lock_event(&self, world: &mut World, session: usize, id: Id) -> bool {
        if self.has(Rule::AwaitLocksEvent) {
            match world.lock(session, Key::Emitted, Strength::KeyShare) {
                Lock::Busy => return false,
                Lock::Changed => {
                    self.roll_back(world, session);
                    return true;
                }
                Lock::Granted(_) => {}
            }
        }
        let view = world.view(session);
        if is_emitted(&view) {
            world.write(session, Key::Step(id), Row::Step);
            world.delete(session, Key::Awaits(id));
        } else if let Some(row) = task(&view, id) {
            world.sessions[session].leases.remove(0);
            world.write(session, Key::Awaits(id), Row::Awaits(row.token));
            self.delete_dependencies(world, session, id);
            let suspended = Task { state: State::Waiting, admission: Admission::Blocked, ..row };
            world.write(session, Key::Task(id), Row::Task(suspended));
            if self.scenario.grouped(id) {
                world.write_event(session, Event::Group);
            }
        }
        world.transaction(session).only_leases = false;
        self.next_statement(world, session)
    }

    /// emit
    pub fn emit(&self, world: &mut World, session: usize) -> bool {
        let early = !self.has(Rule::EmitLooksAfterLock);
        world.sessions[session].step = Step::LockToEmit(early.then(|| waiting(&world.view(session))));
        true
    }

    /// Waits for those who begin to wait. The first emission stays.
    pub fn lock_to_emit(&self, world: &mut World, session: usize, seen: Option<u32>) -> bool {
        match world.lock(session, Key::Emitted, Strength::Update) {
            Lock::Busy => return false,
            Lock::Changed => self.roll_back(world, session),
            Lock::Granted(Some(Row::Emitted(true))) => return self.next_statement(world, session),
            Lock::Granted(_) => {
                world.write(session, Key::Emitted, Row::Emitted(true));
                world.transaction(session).only_leases = false;
                world.sessions[session].step = Step::NotifyWaiting(seen);
            }
        }
        true
    }

    /// In a statement after that: an event for each task that waits.
    pub fn notify_waiting(&self, world: &mut World, session: usize, seen: Option<u32>) -> bool {
        let found = seen.unwrap_or_else(|| waiting(&world.view(session)));
        for id in (0..self.scenario.tasks.len() as Id).filter(|id| found & 1 << id != 0) {
            world.write_event(session, Event::Dependent(id));
        }
        self.next_statement(world, session)
    }
}

/// Whether the task is suspended, since the lease with its token ended. is_suspended
pub fn is_suspended(table: &Table, id: Id, row: Task) -> bool {
    table.get(&Key::Awaits(id)) == Some(&Row::Awaits(row.token))
}

/// Whether the event was emitted.
pub fn is_emitted(table: &Table) -> bool {
    table.get(&Key::Emitted) == Some(&Row::Emitted(true))
}

/// The tasks that wait for it, a bit each.
fn waiting(table: &Table) -> u32 {
    let suspended = table.keys().filter_map(|key| if let Key::Awaits(id) = key { Some(*id) } else { None });
    let suspended = suspended.filter(|id| task(table, *id).is_some_and(|row| is_suspended(table, *id, row)));
    suspended.fold(0, |found, id| found | 1 << id)
}
