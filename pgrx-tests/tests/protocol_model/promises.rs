//! What must never happen, and what must be true in the end.
//!
//! stateright checks `eventually` only on paths without a cycle. So what has to happen in the end is stated about the
//! states at rest: every client has finished its script, and the worker has nothing to do. This is enough because no
//! path goes on for ever: each step of a client leads to the next one in its script, each round of the worker deletes
//! an event or changes nothing, and a sweep after which nothing was committed is not repeated. The one assumption is
//! that a session that can do a step does it at some time.

use super::memory::Broken;
use super::protocol::Protocol;
use super::rows::{Admission, Event, Key, Row, State, dependencies, task, tasks};
use super::suspension::{is_emitted, is_suspended};
use super::world::World;
use stateright::Property;

macro_rules! never {
    ($name:literal, $what:ident) => {
        Property::always($name, |_: &Protocol, world: &World| {
            world.memory.broken & 1 << Broken::$what as u16 == 0
        })
    };
}

/// What every world has to do at some time, so that the promises about rest mean something.
pub const REST: &str = "the world comes to rest";

/// All promises.
pub fn all() -> Vec<Property<Protocol>> {
    vec![
        never!("a task has one lease at a time", LeasedTwice),
        never!("no token of a task is handed out twice", TokenTwice),
        never!("one completion of a task is accepted", CompletedTwice),
        never!("a stale token is refused", StaleAccepted),
        never!("a finished task is not handed out", FinishedHandedOut),
        never!("no more tasks run than max_running", OverLimit),
        never!("no more tasks of a group run than its limit", OverGroupLimit),
        never!("a group at limit 1 runs in the order of ids", OutOfOrder),
        never!("no task runs before its predecessors ended", UnblockedEarly),
        never!("a cancelled predecessor is not taken for a completed one", Mistaken),
        never!("a completed predecessor is not taken for a cancelled one", WronglyCancelled),
        never!("no task starts after its start deadline", StartedLate),
        Property::sometimes(REST, |model, world| model.resting(world)),
        Property::always("whatever is due is offered", |model, world| {
            !model.resting(world) || model.all_due_is_offered(world)
        }),
        Property::always("nothing waits for what has ended", |model, world| {
            !model.resting(world) || model.nothing_waits_in_vain(world)
        }),
        Property::always("a group with room has no blocked task", |model, world| {
            !model.resting(world) || model.groups_are_admitted(world)
        }),
        Property::always("a queue below its limit has a free slot", |model, world| {
            !model.resting(world) || model.slots_are_free(world)
        }),
    ]
}

impl Protocol {
    fn all_due_is_offered(&self, world: &World) -> bool {
        tasks(&world.committed)
            .filter(|(_, row)| row.state == State::Queued && row.admission != Admission::Blocked)
            .all(|(id, _)| self.is_offered(world, id))
    }

    /// Without a worker the next claim processes the events, if the lane says that there are some.
    fn comes(&self, world: &World, event: Event) -> bool {
        let hint = self.scenario.lane == 0 || world.lane.events;
        !self.scenario.worker && hint && world.committed.values().any(|row| *row == Row::Event(event))
    }

    fn nothing_waits_in_vain(&self, world: &World) -> bool {
        tasks(&world.committed).filter(|(_, row)| row.state == State::Waiting).all(|(id, row)| {
            if self.scenario.batch == Some(id) {
                return self.batch_waits_rightly(&world.committed) || self.comes(world, Event::Dependent(id));
            }
            if is_suspended(&world.committed, id, row) {
                return !is_emitted(&world.committed) || self.comes(world, Event::Dependent(id));
            }
            let waits_for = dependencies(&world.committed).filter(|row| row.1 == id);
            let ended = |outcome: Option<_>, predecessor| {
                outcome.is_some() || task(&world.committed, predecessor).is_none()
            };
            waits_for.into_iter().any(|row| !ended(row.2, row.0)) || self.comes(world, Event::Dependent(id))
        })
    }

    fn groups_are_admitted(&self, world: &World) -> bool {
        let grouped = || tasks(&world.committed).filter(|(id, _)| self.scenario.grouped(*id));
        let admitted = grouped().filter(|(_, row)| row.admission == Admission::Admitted).count();
        let blocked = || grouped().filter(|(_, row)| row.admission == Admission::Blocked);
        // A waiting task takes a place.
        let waiting = blocked().take_while(|(_, row)| row.state == State::Waiting).count();
        admitted + waiting >= self.scenario.group_limit
            || waiting == blocked().count()
            || self.comes(world, Event::Group)
    }

    fn slots_are_free(&self, world: &World) -> bool {
        let running = tasks(&world.committed).filter(|(_, row)| row.state == State::Running).count();
        let holds = |row: &Row| match row {
            Row::Slot(id, token) => task(&world.committed, *id)
                .is_some_and(|row| row.state == State::Running && row.token == *token),
            _ => false,
        };
        let slots = world.committed.iter().filter(|(key, _)| matches!(key, Key::Slot(_)));
        let held = slots.filter(|(_, row)| holds(row)).count();
        held <= running
    }
}
