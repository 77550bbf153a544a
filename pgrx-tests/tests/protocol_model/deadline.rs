//! Start deadlines: a task that nobody has claimed in time ends. sql/internal/deadlines.sql

use super::protocol::Protocol;
use super::rows::{Id, Key, Lock, Outcome, Row, Strength, Table, task};
use super::world::{Step, Then, World};

impl Protocol {
    /// The worker ends a task that was never claimed, without waiting for its lock. expire_unstarted, end_unstarted
    pub fn expire_unstarted(&self, world: &mut World, session: usize, id: Id) -> bool {
        world.sessions[session].step = Step::Commit;
        match world.lock(session, Key::Task(id), Strength::Update) {
            Lock::Granted(Some(Row::Task(row))) if row.token == 0 => {
                self.end_locked(world, session, (id, Outcome::Failed), Then::Statement)
            }
            _ => true,
        }
    }
}

/// Whether a task was never claimed and its start deadline has passed. A claim raises the token.
pub fn is_overdue(world: &World, table: &Table, id: Id) -> bool {
    world.overdue.contains(&id) && task(table, id).is_some_and(|row| row.token == 0)
}
