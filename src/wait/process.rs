//! Waiting in a process of the extension, which claims by itself without a CALL: see handler.rs.

use super::call::Kind;
use super::{FIRST_PAUSE, NEVER, RETRY_AT, lists, next_check, sleep};
use crate::clock::now;
use crate::names::Names;
use crate::verbs::ready;
use pgrx::IntoDatum;

/// How a process waits for a task of a queue.
pub struct Waiting {
    pause: i64,
    until: i64,
}

impl Waiting {
    pub const fn new() -> Self {
        Self { pause: FIRST_PAUSE, until: NEVER }
    }

    /// Enters the list of the queue's waiters, after a claim found nothing, under the name of a worker. Returns whether the
    /// process may sleep; if not, it was not in the list before, and has to claim once more. `first_ready` checks in SQL
    /// whether a claim would find a task.
    ///
    /// # Safety
    /// In a transaction with a snapshot, with the rights of the owner.
    pub unsafe fn enter(&mut self, queue: &[u8], worker: &str, first_ready: impl FnOnce() -> bool) -> bool {
        RETRY_AT.set(NEVER);
        // SAFETY: the caller's promise; the array has one name.
        unsafe {
            // The claim has just found nothing, so if there is a task, another transaction has it locked.
            let locked = ready::is_ready(queue).unwrap_or_else(|_| first_ready());
            let Some(names) = Names(vec![queue.to_vec()]).into_datum() else { return false };
            let standing = lists::enter(Kind::Queues, names);
            lists::show(Some(worker.as_bytes()), now());
            self.until = next_check(&standing, locked, &mut self.pause, now()).time();
            !standing.new
        }
    }

    /// Sleeps until the process is woken or has to claim again. Outside a transaction.
    pub fn sleep(&self) {
        sleep::sleep_until(self.until);
    }

    /// Leaves the list, because a claim found a task or the process exits.
    pub fn leave(&mut self, served: bool) {
        lists::leave_lists(served);
        self.pause = FIRST_PAUSE;
    }
}
