//! The storage layer: the extension's tables, and how the native verbs read and write their rows without the
//! executor.
//!
//! The verbs read and write through the table and index access methods, and so past everything that
//! the executor would do for others: triggers, row-level security, constraints, columns, rules. So a verb is
//! served natively only where none of that matters (`eligibility`). The verdict is kept until the server invalidates
//! the cache entry of one of these tables.

pub mod columns;
mod eligibility;
mod indexes;
mod insert;
mod partitions;
pub mod row;
pub mod scan;
mod tables;
pub mod task;
pub mod tid;
pub mod write;

use crate::fallback::Reason;
use pgrx::prelude::*;
use std::cell::UnsafeCell;

pub use eligibility::are_known;
pub use indexes::Indexes;
pub use insert::Inserter;
pub use partitions::partitions_of;
pub use tables::{Tables, Use, find};

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

thread_local! {
    static KNOWN: UnsafeCell<Known> = const {
        UnsafeCell::new(Known {
            registered: false,
            stale: false,
            rerouted: false,
            found: false,
            tables: Tables::NONE,
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
        // Until a round in which nothing changed: a lock is what makes the server deliver invalidations.
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
                None => eligibility::check(&tables, purpose),
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

/// Makes `partition` the partition of the history for this time, its own lock taken; fails if there is none that
/// is plain.
///
/// ATTACH PARTITION does not conflict with the lock that is held on the history, but it does with the one on
/// the default partition, whose rows it must not take away. So what was found holds once the partition is
/// locked and no change of the history was reported with that lock.
pub fn history_at(tables: &mut Tables, time: i64) -> Result<(), Reason> {
    // SAFETY: see `open`.
    unsafe {
        let known = known();
        for _ in 0..10 {
            let anew = !tables.partition.takes(time) || (*known).rerouted;
            if anew {
                (*known).rerouted = false;
                tables.partition = partitions::partition_at(tables.history, time)?;
            }
            pg_sys::LockRelationOid(tables.partition.table, pg_sys::RowExclusiveLock as i32);
            point!(HistoryLocked);
            if (*known).rerouted {
                continue;
            }
            if anew {
                partitions::check_partition(tables.partition.table)?;
            }
            if (*known).rerouted {
                continue;
            }
            if !(*known).stale {
                (*known).tables.partition = tables.partition;
            }
            return Ok(());
        }
        Err(Reason::Busy)
    }
}

/// Called by the server when a relation changed, or with an invalid OID when any may have.
unsafe extern "C-unwind" fn relation_changed(_argument: pg_sys::Datum, relation: pg_sys::Oid) {
    // SAFETY: see `open`.
    unsafe {
        let known = known();
        let Tables { partition, .. } = (*known).tables;
        if relation == pg_sys::InvalidOid
            || relation == partition.table
            || relation == (*known).tables.history
        {
            (*known).rerouted = true;
        }
        // Any of them may get another OID: REINDEX CONCURRENTLY makes a new index of the old name.
        if relation == pg_sys::InvalidOid
            || relation == partition.table
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
