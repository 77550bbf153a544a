//! The model itself: what can happen next.

use super::promises;
use super::rows::{Id, Key, Outcome, State, Strength, tasks};
use super::rules::{Rule, Rules};
use super::scenario::{Scenario, Statement};
use super::world::{Step, World};
use stateright::{Model, Property};

/// A small world under some rules.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub scenario: Scenario,
    pub rules: Rules,
    /// Claims take this task, if one is given, and not the first of the order.
    pub wanted: Option<Id>,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The session does its next step.
    Step(usize),
    /// The worker begins a round that processes events; to raise the mark of tokens; a sweep; the end of an attempt whose lease is over.
    Round,
    RaiseMark,
    Sweep,
    Expire(Id),
    /// The server ends one of the transactions that wait for one another.
    Deadlock(usize),
    /// The client rolls back.
    Rollback(usize),
    /// The worker ends a task whose start deadline has passed.
    ExpireUnstarted(Id),
    /// The time of a lease is over; a start deadline passes.
    LeaseEnds(Id),
    DeadlinePasses(Id),
    /// The server crashes, and of the commits that were not flushed so many survive.
    Crash(usize),
    /// Somebody deletes all events.
    LoseEvents,
    /// Somebody deletes a task by hand.
    DeleteByHand(Id),
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.scenario.begin()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let busy = |session: &usize| !matches!(world.sessions[*session].step, Step::Done | Step::Idle);
        let open: Vec<_> = (0..world.sessions.len()).filter(busy).collect();
        actions.extend(
            open.iter().copied().filter(|session| self.step(&mut world.clone(), *session)).map(Action::Step),
        );
        self.worker_starts(world, actions);
        if actions.is_empty() {
            actions.extend(open.iter().map(|session| Action::Deadlock(*session)));
        }
        let faults = world.faults;
        if faults.rollbacks > 0 {
            let can = |session: &usize| {
                let client = &world.sessions[*session];
                client.transaction.is_some() && client.step != Step::Publish && *session != world.worker()
            };
            actions.extend(open.iter().copied().filter(can).map(Action::Rollback));
        }
        if faults.expiries > 0 {
            let running = tasks(&world.committed)
                .filter(|(id, task)| task.state == State::Running && !world.expired.contains(id));
            actions.extend(running.map(|(id, _)| Action::LeaseEnds(id)));
        }
        if faults.deadlines > 0 {
            let left = self.scenario.deadlines.iter().filter(|id| !world.overdue.contains(id));
            actions.extend(left.map(|id| Action::DeadlinePasses(*id)));
        }
        if faults.crashes > 0 {
            actions.extend((0..=world.unflushed.len()).map(Action::Crash));
        }
        if faults.losses > 0 && world.committed.keys().any(|key| matches!(key, Key::Event(_))) {
            actions.push(Action::LoseEvents);
        }
        if faults.deletions > 0 {
            let free = |id: &Id| !world.is_locked(usize::MAX, Key::Task(*id), Strength::Update);
            let waiting = tasks(&world.committed).filter(|(_, task)| task.state == State::Queued);
            actions.extend(waiting.map(|(id, _)| id).filter(free).map(Action::DeleteByHand));
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Step(session) => return self.step(&mut world, session).then_some(world),
            Action::Round => self.begin_job(&mut world, Step::Events(0)),
            Action::RaiseMark => self.begin_job(&mut world, Step::RaiseMark),
            Action::Sweep => {
                world.faults.sweeps = world.faults.sweeps.saturating_sub(1);
                world.swept = true;
                self.begin_job(&mut world, Step::Sweep(None));
            }
            Action::ExpireUnstarted(id) => self.begin_job(&mut world, Step::ExpireUnstarted(id)),
            Action::DeadlinePasses(id) => {
                world.faults.deadlines -= 1;
                world.overdue.push(id);
            }
            Action::Expire(id) => self.begin_job(&mut world, Step::Expire(id)),
            Action::Deadlock(session) => self.roll_back(&mut world, session),
            Action::Rollback(session) => {
                world.faults.rollbacks -= 1;
                self.roll_back(&mut world, session);
            }
            Action::LeaseEnds(id) => {
                world.faults.expiries -= 1;
                world.expired.push(id);
                world.expired.sort_unstable();
                world.past(id).lease = None;
            }
            Action::Crash(survive) => self.crash(&mut world, survive),
            Action::LoseEvents => {
                world.faults.losses -= 1;
                let locked: Vec<_> =
                    world.sessions.iter().filter_map(|open| open.transaction.as_ref()).collect();
                let kept = |key: &Key| locked.iter().any(|open| open.locks.contains_key(key));
                let lost: Vec<_> = world
                    .committed
                    .keys()
                    .copied()
                    .filter(|key| matches!(key, Key::Event(_)) && !kept(key))
                    .collect();
                lost.iter().for_each(|key| {
                    world.committed.remove(key);
                });
                world.swept = false;
            }
            Action::DeleteByHand(id) => {
                world.faults.deletions -= 1;
                world.committed.remove(&Key::Task(id));
                world.past(id).outcome = Some(Outcome::Cancelled);
                world.lane.remove(id);
                world.swept = false;
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}

impl Protocol {
    /// Whether a rule is on.
    pub fn has(&self, rule: Rule) -> bool {
        self.rules.has(rule)
    }

    /// The statement that a client is at.
    pub fn statement(&self, world: &World, session: usize) -> Option<Statement> {
        let (script, statement) = world.sessions[session].position;
        let script = self.scenario.clients.get(session)?.get(usize::from(script))?;
        script.statements.get(usize::from(statement)).copied()
    }

    /// The session goes to its next statement, or commits.
    pub fn next_statement(&self, world: &mut World, session: usize) -> bool {
        world.sessions[session].position.1 += 1;
        let more = session != world.worker() && self.statement(world, session).is_some();
        world.sessions[session].step = if more { Step::Start } else { Step::Commit };
        true
    }
}
