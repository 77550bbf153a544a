//! The extension's tables as the native verbs see them: where they are, and whether they are as the
//! extension made them.
//!
//! The verbs read and write through the table and index access methods, and so past everything that
//! the executor would do for others: triggers, row-level security, constraints, columns, rules. What is
//! found here is kept until the server says that something about one of these tables has changed.

pub mod columns;
mod plain;
pub mod rows;
pub mod scan;
pub mod write;

use pgrx::prelude::*;
use std::cell::UnsafeCell;
use std::ffi::CStr;

pub use plain::{REASONS, Reason, are_known, partitions_of};

/// Where the tables and indexes are.
#[derive(Clone, Copy, Default)]
pub struct Tables {
    pub tasks: pg_sys::Oid,
    pub tasks_pkey: pg_sys::Oid,
    pub tasks_order: pg_sys::Oid,
    pub tasks_group: pg_sys::Oid,
    pub tasks_id_seq: pg_sys::Oid,
    pub queues: pg_sys::Oid,
    pub history: pg_sys::Oid,
    pub dependencies: pg_sys::Oid,
    pub events: pg_sys::Oid,
    pub token_mark: pg_sys::Oid,
    /// The partition of the history that rows go to now.
    pub today: Today,
}

/// A partition of the history and the times that it is for.
#[derive(Clone, Copy, Default)]
pub struct Today {
    pub table: pg_sys::Oid,
    since: i64,
    /// Not for this time itself.
    until: i64,
}

impl Today {
    /// The time, or the one nearest to it that this partition takes.
    pub fn within(&self, time: i64) -> i64 {
        time.clamp(self.since, self.until - 1)
    }
}

/// What a verb does with the tables.
#[derive(Clone, Copy)]
pub enum Use {
    Push,
    Claim,
    Complete,
    Extend,
}

struct Known {
    registered: bool,
    /// Something changed since.
    stale: bool,
    /// Something about the history or its partition changed since that was sought.
    rerouted: bool,
    /// They were sought, and found.
    found: bool,
    tables: Tables,
    /// For whom the verdicts were found.
    user: pg_sys::Oid,
    verdicts: [Option<Result<(), Reason>>; 4],
}

const NOWHERE: Tables = Tables {
    tasks: pg_sys::InvalidOid,
    tasks_pkey: pg_sys::InvalidOid,
    tasks_order: pg_sys::InvalidOid,
    tasks_group: pg_sys::InvalidOid,
    tasks_id_seq: pg_sys::InvalidOid,
    queues: pg_sys::InvalidOid,
    history: pg_sys::InvalidOid,
    dependencies: pg_sys::InvalidOid,
    events: pg_sys::InvalidOid,
    token_mark: pg_sys::InvalidOid,
    today: Today { table: pg_sys::InvalidOid, since: 0, until: 0 },
};

thread_local! {
    static KNOWN: UnsafeCell<Known> = const {
        UnsafeCell::new(Known {
            registered: false,
            stale: false,
            rerouted: false,
            found: false,
            tables: NOWHERE,
            user: pg_sys::InvalidOid,
            verdicts: [None; 4],
        })
    };
}

fn known() -> *mut Known {
    KNOWN.with(UnsafeCell::get)
}

/// The tables, their own lock taken, if a native verb may use them so.
pub fn open(purpose: Use) -> Result<Tables, Reason> {
    // SAFETY: one thread, and no reference is held while the server is called, which may call the
    // callbacks below. The lock is kept to the end of the transaction, as the executor keeps its own.
    unsafe {
        let known = known();
        if !(*known).registered {
            (*known).registered = true;
            pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), pg_sys::Datum::from(0));
            use pg_sys::SysCacheIdentifier::{AUTHMEMROLEMEM, AUTHOID, DATABASEOID};
            // The owner of the database is a member of pg_database_owner.
            for cache in [AUTHMEMROLEMEM, AUTHOID, DATABASEOID] {
                pg_sys::CacheRegisterSyscacheCallback(
                    cache as i32,
                    Some(roles_changed),
                    pg_sys::Datum::from(0),
                );
            }
        }
        // Until a round in which nothing changed: taking a lock is when news arrive.
        for _ in 0..10 {
            if (*known).stale || !(*known).found {
                // What changes while they are sought makes them stale again; an ERROR leaves them not found.
                ((*known).stale, (*known).found) = (false, false);
                (*known).verdicts = [None; 4];
                (*known).tables = find().ok_or(Reason::Absent)?;
                (*known).found = true;
            }
            let user = pg_sys::GetUserId();
            if (*known).user != user {
                (*known).user = user;
                (*known).verdicts = [None; 4];
            }
            pg_sys::LockRelationOid((*known).tables.tasks, pg_sys::RowExclusiveLock as i32);
            if let Use::Complete = purpose {
                pg_sys::LockRelationOid((*known).tables.history, pg_sys::RowExclusiveLock as i32);
            }
            point!(TablesLocked);
            if (*known).stale {
                continue;
            }
            let tables = (*known).tables;
            let verdict = match (*known).verdicts[purpose as usize] {
                Some(verdict) => verdict,
                None => plain::judge(&tables, purpose),
            };
            if (*known).stale {
                continue;
            }
            (*known).verdicts[purpose as usize] = Some(verdict);
            return verdict.map(|()| tables);
        }
        Err(Reason::Busy)
    }
}

/// Makes `today` the partition of the history for this time, its own lock taken; fails if there is none that
/// is plain.
///
/// ATTACH PARTITION does not conflict with the lock that is held on the history, but it does with the one on
/// the default partition, whose rows it must not take away. So what was found holds once the partition is
/// locked and no news of the history has come with that lock.
pub fn history_at(tables: &mut Tables, time: i64) -> Result<(), Reason> {
    // SAFETY: see `open`.
    unsafe {
        let known = known();
        for _ in 0..10 {
            let today = tables.today;
            let sought = today.table == pg_sys::InvalidOid || !(today.since..today.until).contains(&time);
            let anew = sought || (*known).rerouted;
            if anew {
                (*known).rerouted = false;
                tables.today = plain::partition_at(tables.history, time)?;
            }
            pg_sys::LockRelationOid(tables.today.table, pg_sys::RowExclusiveLock as i32);
            point!(HistoryLocked);
            if (*known).rerouted {
                continue;
            }
            if anew {
                plain::judge_partition(tables.today.table)?;
            }
            if (*known).rerouted {
                continue;
            }
            if !(*known).stale {
                (*known).tables.today = tables.today;
            }
            return Ok(());
        }
        Err(Reason::Busy)
    }
}

/// Where the extension's tables are, found anew; nothing without the extension.
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
            tasks_id_seq: public(c"tasks_id_seq"),
            queues: public(c"queues"),
            history: public(c"history"),
            dependencies: private(c"dependencies"),
            events: private(c"events"),
            token_mark: private(c"token_mark"),
            today: Today::default(),
        };
        (!tables.all().contains(&pg_sys::InvalidOid)).then_some(tables)
    }
}

impl Tables {
    /// All but the partition, which there need not be.
    fn all(&self) -> [pg_sys::Oid; 10] {
        [
            self.tasks,
            self.tasks_pkey,
            self.tasks_order,
            self.tasks_group,
            self.tasks_id_seq,
            self.queues,
            self.history,
            self.dependencies,
            self.events,
            self.token_mark,
        ]
    }
}

/// Called by the server when a relation changed, or with an invalid OID when any may have.
unsafe extern "C-unwind" fn relation_changed(_argument: pg_sys::Datum, relation: pg_sys::Oid) {
    // SAFETY: see `open`.
    unsafe {
        let known = known();
        let Tables { today, .. } = (*known).tables;
        if relation == pg_sys::InvalidOid || relation == today.table || relation == (*known).tables.history {
            (*known).rerouted = true;
        }
        // Any of them may get another OID: REINDEX CONCURRENTLY makes a new index of the old name.
        if relation == pg_sys::InvalidOid
            || relation == today.table
            || (*known).tables.all().contains(&relation)
        {
            (*known).stale = true;
        }
    }
}

/// Called by the server when roles or memberships changed.
unsafe extern "C-unwind" fn roles_changed(_argument: pg_sys::Datum, _cache: i32, _hash: u32) {
    // SAFETY: see `open`.
    unsafe { (*known()).stale = true };
}
