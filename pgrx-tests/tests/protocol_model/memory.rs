//! What really happened, which no session knows as a whole: for the promises.

use super::protocol::Protocol;
use super::rows::{
    Admission, Id, Level, Note, Outcome, Row, State, Task, Token, Transaction, overlaid, tasks,
};
use super::scenario::Statement;
use super::suspension::{is_emitted, is_suspended};
use super::world::World;

/// Of all tasks, and of the promises.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Memory {
    pub tasks: Vec<Past>,
    /// The promises that are broken, a bit each.
    pub broken: u16,
}

/// What happened to a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Past {
    /// The tokens that were handed out, a bit each.
    pub tokens: u64,
    /// The token of the lease that is valid.
    pub lease: Option<Token>,
    /// How often a completion was accepted.
    pub completions: u8,
    /// A crash may undo the completion, because its session commits asynchronously.
    pub may_be_undone: bool,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// It once ended otherwise than completed, and perhaps came back.
    pub not_completed: bool,
}

/// What must never happen.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub enum Broken {
    LeasedTwice,
    TokenTwice,
    CompletedTwice,
    StaleAccepted,
    FinishedHandedOut,
    OverLimit,
    OverGroupLimit,
    OutOfOrder,
    UnblockedEarly,
    Mistaken,
    WronglyCancelled,
    StartedLate,
}

impl World {
    /// Notes that a promise is broken.
    pub fn broke(&mut self, what: Broken) {
        self.memory.broken |= 1 << what as u16;
    }

    /// What happened to a task.
    pub fn past(&mut self, id: Id) -> &mut Past {
        &mut self.memory.tasks[usize::from(id)]
    }
}

impl Protocol {
    /// Keeps account of what a commit means for a task.
    pub fn remember(
        &self,
        world: &mut World,
        session: usize,
        id: Id,
        (before, after): (Option<Row>, Option<Row>),
        open: &Transaction,
    ) {
        let of = |row| if let Some(Row::Task(task)) = row { Some(task) } else { None };
        let (before, after): (Option<Task>, Option<Task>) = (of(before), of(after));
        match after {
            Some(now) if now.state == State::Running && before.is_none_or(|row| row.token != now.token) => {
                // Given back, or brought back, and claimed in one transaction.
                if open.notes.contains(&Note::Claimable(id)) {
                    let past = world.past(id);
                    (past.lease, past.outcome) = (None, None);
                }
                let past = *world.past(id);
                let checks = [
                    (past.outcome.is_some(), Broken::FinishedHandedOut),
                    (past.lease.is_some(), Broken::LeasedTwice),
                    (past.tokens & 1 << now.token != 0, Broken::TokenTwice),
                ];
                checks.into_iter().filter(|check| check.0).for_each(|check| world.broke(check.1));
                let past = world.past(id);
                past.tokens |= 1 << now.token;
                past.lease = Some(now.token);
                world.expired.retain(|expired| *expired != id);
                world.sessions[session].leases.push((id, now.token));
            }
            Some(now) if now.state == State::Queued => {
                world.expired.retain(|expired| *expired != id);
                let past = world.past(id);
                (past.lease, past.outcome) = (None, None);
                if before.is_none() && self.joins_too_late(world, id, open) {
                    world.broke(Broken::UnblockedEarly);
                }
                if before.is_some_and(|row| row.state == State::Waiting) {
                    if self.scenario.batch == Some(id) && self.has_live_members(world, open) {
                        world.broke(Broken::UnblockedEarly);
                    }
                    let table = overlaid(&world.committed, &open.writes);
                    if is_suspended(&table, id, now) && !is_emitted(&table) {
                        world.broke(Broken::UnblockedEarly);
                    }
                    for predecessor in self.scenario.predecessors(id) {
                        match world.past(*predecessor).outcome {
                            None => world.broke(Broken::UnblockedEarly),
                            Some(Outcome::Completed) => {}
                            Some(_) => world.broke(Broken::Mistaken),
                        }
                    }
                }
            }
            Some(now) if now.state == State::Waiting => {
                world.expired.retain(|expired| *expired != id);
                world.past(id).lease = None;
            }
            None => {
                world.expired.retain(|expired| *expired != id);
                let outcome =
                    open.ends.iter().find(|end| end.0 == id).map_or(Outcome::Cancelled, |end| end.1);
                let (script, _) = world.sessions[session].position;
                let script =
                    self.scenario.clients.get(session).and_then(|client| client.get(usize::from(script)));
                let asked = script.is_some_and(|script| {
                    let ends = |statement: &Statement| match statement {
                        Statement::Cancel(other) => *other == id,
                        Statement::Purge => true,
                        _ => false,
                    };
                    script.statements.iter().any(ends)
                });
                let waited = before.is_some_and(|row| row.state == State::Waiting);
                let cancelled = waited && outcome == Outcome::Cancelled && !asked;
                let done = |id: &Id| {
                    let past = world.memory.tasks[usize::from(*id)];
                    past.outcome == Some(Outcome::Completed) && !past.not_completed
                };
                if cancelled && self.scenario.predecessors(id).iter().all(done) {
                    world.broke(Broken::WronglyCancelled);
                }
                let asynchronous = self.is_asynchronous(world, session);
                let past = world.past(id);
                (past.outcome, past.lease) = (Some(outcome), None);
                past.not_completed |= outcome != Outcome::Completed;
                if outcome == Outcome::Completed {
                    past.may_be_undone = asynchronous;
                    past.completions += 1;
                    if past.completions > 1 {
                        world.broke(Broken::CompletedTwice);
                    }
                }
            }
            Some(_) => {}
        }
    }

    /// Checks an outcome that is recorded for a dependent some time after the end.
    pub fn check_outcome(&self, world: &mut World, session: usize, predecessor: Id, outcome: Outcome) {
        let real = world.past(predecessor).outcome;
        let stale = world.transaction(session).level == Level::RepeatableRead;
        if !stale && real.is_some_and(|real| real != outcome) {
            let completed = outcome == Outcome::Completed;
            world.broke(if completed { Broken::Mistaken } else { Broken::WronglyCancelled });
        }
    }

    /// Checks how many run.
    pub fn check_limits(&self, world: &mut World) {
        let running = || tasks(&world.committed).filter(|(_, task)| task.state == State::Running);
        let all = running().count();
        let grouped = running()
            .filter(|(id, task)| self.scenario.grouped(*id) && task.admission != Admission::Open)
            .count();
        if self.scenario.max_running > 0 && all > usize::from(self.scenario.max_running) {
            world.broke(Broken::OverLimit);
        }
        if grouped > self.scenario.group_limit {
            world.broke(Broken::OverGroupLimit);
        }
    }
}
