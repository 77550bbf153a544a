//! The OIDs of the extension's tables and indexes.

use super::columns::task as column;
use super::task::Task;
use pgrx::prelude::*;
use std::ffi::CStr;

/// The OIDs of the tables and indexes.
#[derive(Clone, Copy, Default)]
pub struct Tables {
    pub tasks: pg_sys::Oid,
    pub tasks_pkey: pg_sys::Oid,
    pub tasks_order: pg_sys::Oid,
    pub tasks_group: pg_sys::Oid,
    pub tasks_start_by: pg_sys::Oid,
    pub tasks_id_seq: pg_sys::Oid,
    pub queues: pg_sys::Oid,
    pub history: pg_sys::Oid,
    pub dependencies: pg_sys::Oid,
    pub events: pg_sys::Oid,
    pub token_mark: pg_sys::Oid,
    /// The partition of the history for the current time.
    pub partition: Partition,
}

/// A partition of the history and the range of times that goes to it.
#[derive(Clone, Copy, Default)]
pub struct Partition {
    pub table: pg_sys::Oid,
    pub(super) since: i64,
    /// Exclusive.
    pub(super) until: i64,
}

impl Partition {
    /// No partition.
    pub const NONE: Self = Self { table: pg_sys::InvalidOid, since: 0, until: 0 };

    /// Whether this partition takes the rows of this time.
    pub fn takes(&self, time: i64) -> bool {
        self.table != pg_sys::InvalidOid && (self.since..self.until).contains(&time)
    }

    /// The time, or the nearest one that this partition takes.
    pub fn within(&self, time: i64) -> i64 {
        time.clamp(self.since, self.until - 1)
    }
}

/// How a call uses the tables.
#[derive(Clone, Copy)]
pub enum Use {
    Read,
    Push,
    Claim,
    Complete,
    Extend,
}

/// Looks up the extension's tables; none without the extension.
///
/// # Safety
/// In a transaction.
pub unsafe fn find() -> Option<Tables> {
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        point!(TablesSought);
        let schema = pg_sys::get_namespace_oid(c"queue".as_ptr(), true);
        let internal = pg_sys::get_namespace_oid(c"queue_internal".as_ptr(), true);
        let public = |name: &CStr| pg_sys::get_relname_relid(name.as_ptr(), schema);
        let private = |name: &CStr| pg_sys::get_relname_relid(name.as_ptr(), internal);
        let tables = Tables {
            tasks: public(c"tasks"),
            tasks_pkey: public(c"tasks_pkey"),
            tasks_order: public(c"tasks_order"),
            tasks_group: public(c"tasks_group"),
            tasks_start_by: public(c"tasks_start_by"),
            tasks_id_seq: public(c"tasks_id_seq"),
            queues: public(c"queues"),
            history: public(c"history"),
            dependencies: private(c"dependencies"),
            events: private(c"events"),
            token_mark: private(c"token_mark"),
            partition: Partition::NONE,
        };
        (!tables.all().contains(&pg_sys::InvalidOid)).then_some(tables)
    }
}

impl Tables {
    /// No tables.
    pub const NONE: Self = Self {
        tasks: pg_sys::InvalidOid,
        tasks_pkey: pg_sys::InvalidOid,
        tasks_order: pg_sys::InvalidOid,
        tasks_group: pg_sys::InvalidOid,
        tasks_start_by: pg_sys::InvalidOid,
        tasks_id_seq: pg_sys::InvalidOid,
        queues: pg_sys::InvalidOid,
        history: pg_sys::InvalidOid,
        dependencies: pg_sys::InvalidOid,
        events: pg_sys::InvalidOid,
        token_mark: pg_sys::InvalidOid,
        partition: Partition::NONE,
    };

    /// Whether a task satisfies the condition of this index of `queue.tasks`.
    pub fn indexed(&self, task: &Task, index: pg_sys::Oid) -> bool {
        if index == self.tasks_order {
            task.is_admitted()
        } else if index == self.tasks_group {
            task.get(column::GROUP_KEY).is_some()
        } else if index == self.tasks_start_by {
            task.get(column::START_BY).is_some()
        } else {
            true
        }
    }

    /// Whether all of them exist, except the partition, which need not.
    pub fn all(&self) -> [pg_sys::Oid; 11] {
        [
            self.tasks,
            self.tasks_pkey,
            self.tasks_order,
            self.tasks_group,
            self.tasks_start_by,
            self.tasks_id_seq,
            self.queues,
            self.history,
            self.dependencies,
            self.events,
            self.token_mark,
        ]
    }
}
