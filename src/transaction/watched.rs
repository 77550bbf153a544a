//! The task that a handler works on, and whether the transaction has changed it.

use pgrx::pg_sys;

/// Whether the transaction has changed one task. Exact, unlike the changes of other tasks, of which not all are kept.
#[derive(Clone, Copy)]
pub(super) struct Watched {
    task: i64,
    /// The first of the subtransactions that changed it and are not rolled back, MAX if none.
    changed_by: pg_sys::SubTransactionId,
}

impl Watched {
    pub(super) const fn of(task: i64) -> Self {
        Self { task, changed_by: pg_sys::SubTransactionId::MAX }
    }

    pub(super) fn is_changed(&self) -> bool {
        self.changed_by != pg_sys::SubTransactionId::MAX
    }

    /// The subtransaction has changed a task.
    pub(super) fn change(&mut self, task: i64, subtransaction: pg_sys::SubTransactionId) {
        if task == self.task {
            self.changed_by = self.changed_by.min(subtransaction);
        }
    }

    /// The subtransactions from this one on are rolled back.
    pub(super) fn roll_back(&mut self, from: pg_sys::SubTransactionId) {
        if self.changed_by >= from {
            self.changed_by = pg_sys::SubTransactionId::MAX;
        }
    }
}
