//! The sweep, which finds blocked tasks whose event was lost: sql/internal/sweep.sql. For lanes: the worker's reading of the table.

use super::events::admitted;
use super::lane::END;
use super::protocol::Protocol;
use super::rows::{
    Admission, Event, Id, Key, Lock, Outcome, Row, State, Strength, Table, Task, dependencies, task, tasks,
};
use super::suspension::{is_emitted, is_suspended};
use super::world::{Step, World};

impl Protocol {
    /// A part of a sweep: the dependency behind this one; then the group; then the lane. sweep_dependencies, sweep_groups
    pub fn sweep(&self, world: &mut World, session: usize, place: Option<(Id, Id)>) -> bool {
        let view = world.view(session);
        let next = dependencies(&view).find(|row| place.is_none_or(|place| (row.0, row.1) > place));
        if let Some((predecessor, dependent, recorded)) = next {
            world.sessions[session].step = Step::Sweep(Some((predecessor, dependent)));
            self.sweep_dependency(world, session, (predecessor, dependent), recorded);
            return true;
        }
        let pending = |event| view.values().any(|row| *row == Row::Event(event));
        if let Some(callback) = self.scenario.batch
            && self.is_batch_over(&view)
            && !pending(Event::Dependent(callback))
        {
            world.write_event(session, Event::Dependent(callback));
        }
        let goes_on = |(id, row): &(Id, Task)| {
            row.state == State::Waiting && is_suspended(&view, *id, *row) && is_emitted(&view)
        };
        for (id, _) in tasks(&view).filter(goes_on).filter(|(id, _)| !pending(Event::Dependent(*id))) {
            world.write_event(session, Event::Dependent(id));
        }
        if self.next_admission(&view, admitted(&view)).is_some() && !pending(Event::Group) {
            world.write_event(session, Event::Group);
        }
        world.sessions[session].step = if self.scenario.lane > 0 && world.lane.refiller.is_none() {
            (world.lane.refiller, world.lane.missed) = (Some(session), END);
            Step::ReadTable(0)
        } else {
            Step::Commit
        };
        true
    }

    fn sweep_dependency(
        &self,
        world: &mut World,
        session: usize,
        (predecessor, dependent): (Id, Id),
        recorded: Option<Outcome>,
    ) {
        let view = world.view(session);
        let Some(row) = task(&view, dependent).filter(|row| row.state == State::Waiting) else {
            self.delete_dependencies(world, session, dependent);
            return;
        };
        debug_assert!(row.admission == Admission::Blocked);
        if recorded.is_none() {
            let Some(outcome) = self.outcome(&view, predecessor) else { return };
            let key = Key::Dependency(predecessor, dependent);
            match world.lock(session, key, Strength::NoKeyUpdate) {
                Lock::Granted(Some(Row::Dependency(None))) => {
                    self.check_outcome(world, session, predecessor, outcome);
                    world.write(session, key, Row::Dependency(Some(outcome)))
                }
                _ => return,
            }
        }
        let view = world.view(session);
        if settled(&view, dependent)
            && !view.values().any(|row| *row == Row::Event(Event::Dependent(dependent)))
        {
            world.write_event(session, Event::Dependent(dependent));
        }
    }
}

/// Whether the recorded outcomes decide what becomes of the task.
pub fn settled(view: &Table, dependent: Id) -> bool {
    let outcomes = || dependencies(view).filter(|row| row.1 == dependent).map(|row| row.2);
    outcomes().all(|outcome| outcome.is_some())
        || outcomes().flatten().any(|outcome| outcome != Outcome::Completed)
}
