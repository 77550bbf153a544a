//! Parts of transaction blocks that are more than a single call: a client pushes tasks with predecessors, among them
//! its own, claims from their queue in the same transaction, and rolls either back to a savepoint. It also locks rows
//! of tasks for a while, as the owner's own statements do.

use std::time::Duration;

use super::client::{Client, Session};
use super::journal::{Effect, Link, OnFailure};
use super::load::LINKED;

/// How long a lock is held at least, in milliseconds at most; then the rest of the transaction comes.
const LOCKED: u64 = 60;

/// The rows of tasks in the order of ids, with each of the locks.
macro_rules! locking {
    ($strength:literal) => {
        concat!("SELECT id FROM queue.tasks WHERE id = ANY ($1) ORDER BY id FOR ", $strength)
    };
}
const ORDER: &str = "INSERT INTO public.orders (task) SELECT id FROM queue.tasks WHERE id = ANY ($1)";

impl Client {
    /// A part of a block.
    pub(super) fn part(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        if self.load.only_push {
            self.act(session)
        } else if self.random.chance(self.load.linked) {
            self.weave(session)
        } else if self.random.chance(self.load.locks) {
            self.lock(session)
        } else {
            self.act(session)
        }
    }

    /// Pushes tasks with predecessors, and claims from the same queue.
    fn weave(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        if self.random.chance(40) {
            self.push(session)?;
        }
        for _ in 0..self.random.between(1, 2) {
            self.push_linked(session)?;
        }
        if let Some(held) = self.random.chance(30).then(|| self.someones()).flatten() {
            self.finish(session, held)?;
        }
        if self.random.chance(60) {
            return self.claim_from(session, LINKED);
        }
        session.run("SAVEPOINT claim")?;
        let from = self.journal.effects().len();
        self.claim_from(session, LINKED)?;
        if self.random.chance(50) {
            session.run("ROLLBACK TO claim")?;
            self.journal.undo(from);
        } else {
            session.run("RELEASE claim")?;
        }
        Ok(())
    }

    /// Pushes a task with some of these: predecessors, a group, a key that others use too.
    pub(super) fn push_linked(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let value = self.value();
        let after = self.predecessors();
        let key = self.random.chance(40).then(|| format!("clé-{}", self.random.roll(8)));
        let group = self.random.chance(50).then(|| format!("größe-{}", self.random.roll(6)));
        let on_failure = self.random.weighted(&[
            (40, OnFailure::Cancel),
            (40, OnFailure::Continue),
            (20, OnFailure::Fail),
        ]);
        let on_duplicate = self.random.weighted(&[(60, "skip"), (15, "reschedule"), (25, "replace")]);
        let link = Link { after, on_failure, replaces: key.is_some() && on_duplicate == "replace" };
        self.push_this(session, LINKED, value, key, group, link, on_duplicate)
    }

    /// Up to three: tasks that this transaction has pushed, that the client holds, or that it pushed before.
    pub(super) fn predecessors(&mut self) -> Vec<i64> {
        let own: Vec<i64> = self.journal.effects().iter().rev().filter_map(own_push).take(4).collect();
        let mut after: Vec<i64> = Vec::new();
        for _ in 0..self.random.weighted(&[(10, 0), (50, 1), (25, 2), (15, 3)]) {
            let held = (!self.held.is_empty())
                .then(|| self.held[self.random.roll(self.held.len() as u64) as usize].id);
            let old = self.pushed.get(self.random.roll(12) as usize).copied();
            let own = (!own.is_empty()).then(|| own[self.random.roll(own.len() as u64) as usize]);
            let choice = self.random.weighted(&[(45, own), (25, held), (30, old)]);
            after.extend(choice.or(old).filter(|id| !after.contains(id)));
        }
        after
    }

    /// Locks rows, and holds them until the end of the block.
    fn lock(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let held = self.held.iter().map(|held| held.id);
        let ids: Vec<i64> = held.chain(self.pushed.iter().copied()).take(16).collect();
        let from = self.random.roll(ids.len() as u64 + 1) as usize;
        let few = &ids[from..ids.len().min(from + 3)];
        let statement = self.random.weighted(&[
            (1, locking!("UPDATE")),
            (1, locking!("NO KEY UPDATE")),
            (1, locking!("SHARE")),
            (2, locking!("KEY SHARE")),
        ]);
        session.query(statement, &[&few])?;
        if self.load.references {
            session.query(ORDER, &[&few])?;
        }
        std::thread::sleep(Duration::from_millis(self.random.roll(LOCKED)));
        Ok(())
    }
}

fn own_push((effect, undone): &(Effect, bool)) -> Option<i64> {
    match effect {
        Effect::Push { id, .. } if !undone => *id,
        _ => None,
    }
}
