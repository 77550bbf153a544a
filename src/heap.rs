//! The storage layer: how the native fast path reads and writes the rows of the extension's tables without the
//! executor.
//!
//! It calls the table and index access methods directly, which bypasses triggers, row-level security, constraints,
//! rules and columns that users added. So it is used only if none of these has an effect (`eligibility`). The result of
//! that check is cached until the server sends an invalidation message for one of the tables.

pub mod columns;
mod eligibility;
pub mod entries;
mod indexes;
mod insert;
mod partitions;
pub mod row;
pub mod scan;
pub mod sequential;
mod tables;
pub mod task;
pub mod tid;
pub mod write;

use crate::fallback::Reason;
use crate::invalidation::Listener;
use pgrx::prelude::*;
use std::cell::UnsafeCell;

pub use eligibility::are_known;
pub use indexes::Indexes;
pub use insert::Inserter;
pub use partitions::partitions_of;
pub use tables::{Tables, Use, find};

struct Known {
    /// An invalidation has arrived since.
    stale: bool,
    /// An invalidation for the history or its partition has arrived since the partition was looked up.
    rerouted: bool,
    /// The tables were looked up and exist.
    found: bool,
    tables: Tables,
    /// The user for whom eligibility was checked.
    user: pg_sys::Oid,
    verdicts: [Option<Result<(), Reason>>; 5],
}

thread_local! {
    static KNOWN: UnsafeCell<Known> = const {
        UnsafeCell::new(Known {
            stale: false,
            rerouted: false,
            found: false,
            tables: Tables::NONE,
            user: pg_sys::InvalidOid,
            verdicts: [None; 5],
        })
    };
}

fn known() -> *mut Known {
    KNOWN.with(UnsafeCell::get)
}

static CHANGES: Listener = Listener::new(relation_changed, roles_changed);

/// The tables, with `tasks` locked, if the native fast path may use them in this way.
pub fn open(purpose: Use) -> Result<Tables, Reason> {
    CHANGES.register();
    // SAFETY: a backend has one thread, and no reference is held during calls of the server, which may call the
    // functions below. The lock is kept until the end of the transaction, as the executor does.
    unsafe {
        let known = known();
        // Repeated until no invalidation arrives, because taking a lock processes pending invalidations.
        for _ in 0..10 {
            if (*known).stale || !(*known).found {
                // An invalidation during the lookup makes them stale again; an ERROR leaves `found` false.
                ((*known).stale, (*known).found) = (false, false);
                (*known).verdicts = [None; 5];
                (*known).tables = find().ok_or(Reason::Absent)?;
                (*known).found = true;
            }
            let user = pg_sys::GetUserId();
            if (*known).user != user {
                (*known).user = user;
                (*known).verdicts = [None; 5];
            }
            let mode =
                if let Use::Read = purpose { pg_sys::AccessShareLock } else { pg_sys::RowExclusiveLock };
            pg_sys::LockRelationOid((*known).tables.tasks, mode as i32);
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

/// Sets `partition` to the partition of the history for this time and locks it. Fails if there is none that the native
/// fast path can write to.
///
/// ATTACH PARTITION does not conflict with the lock on the history, but with that on the default partition. So the
/// partition is the right one if no invalidation of the history arrived while it was locked.
pub fn history_at(tables: &mut Tables, time: i64) -> Result<(), Reason> {
    // SAFETY: see `open`.
    unsafe {
        let known = known();
        for _ in 0..10 {
            let again = !tables.partition.takes(time) || (*known).rerouted;
            if again {
                (*known).rerouted = false;
                tables.partition = partitions::partition_at(tables.history, time)?;
            }
            pg_sys::LockRelationOid(tables.partition.table, pg_sys::RowExclusiveLock as i32);
            point!(HistoryLocked);
            if (*known).rerouted {
                continue;
            }
            if again {
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

fn relation_changed(relation: pg_sys::Oid) {
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
        // REINDEX CONCURRENTLY creates an index with a new OID and the old name.
        if relation == pg_sys::InvalidOid
            || relation == partition.table
            || (*known).tables.all().contains(&relation)
        {
            (*known).stale = true;
        }
    }
}

fn roles_changed() {
    // SAFETY: see `open`.
    unsafe { (*known()).stale = true };
}
