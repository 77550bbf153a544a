//! Whether a table is as the extension made it.

use super::columns::{self, Column};
use super::scan::open_by_key;
use super::{Tables, Today, Use};
use pgrx::prelude::*;
use std::ffi::{CStr, CString};

/// Why a call was handed to the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// `queue.fast_path` is off.
    Off,
    /// The library was not preloaded.
    NotLoaded,
    /// The tables are not all there.
    Absent,
    /// The tables keep changing.
    Busy,
    /// Not READ COMMITTED, or read only, or in recovery, or replicating.
    Transaction,
    /// An argument that the core has to judge.
    Argument,
    /// A policy: a key, a group, a limit, a predecessor.
    Policy,
    /// The queue is unknown or paused.
    Queue,
    /// All lanes are taken.
    NoLane,
    /// Signals have to be settled first.
    Signals,
    /// This transaction itself pushed or put back tasks, or this statement changed one.
    OwnTasks,
    /// A lease ran out.
    Expired,
    /// The task does not run with this token.
    Lease,
    /// A trigger, rule, constraint, column, index or argument that the library does not know: a user's, or
    /// another version's.
    Altered,
    /// Row-level security holds for the user.
    RowSecurity,
    /// The caller does not have the right that the verb needs for the queue.
    Rights,
    /// There is no partition of the history for today.
    Partition,
}

impl Reason {
    /// All of them, in order.
    pub const ALL: [Self; REASONS] = [
        Self::Off,
        Self::NotLoaded,
        Self::Absent,
        Self::Busy,
        Self::Transaction,
        Self::Argument,
        Self::Policy,
        Self::Queue,
        Self::NoLane,
        Self::Signals,
        Self::OwnTasks,
        Self::Expired,
        Self::Lease,
        Self::Altered,
        Self::RowSecurity,
        Self::Rights,
        Self::Partition,
    ];
}

/// How many reasons there are.
pub const REASONS: usize = Reason::Partition as usize + 1;

/// The columns of tasks and of the history in which native verbs may leave a null.
const NULLABLE: &[&CStr] = &[
    c"max_attempts",
    c"lease_until",
    c"worker",
    c"claimed_at",
    c"cancel_requested_at",
    c"key",
    c"group_key",
    c"backoff",
    c"headers",
    c"progress",
    c"errors",
    c"result",
];
/// For a table whose triggers do not matter.
const ANY: &[&CStr] = &[c""];
const TASK_TRIGGERS: &[&CStr] = &[
    c"table_emptied",
    c"task_arrives",
    c"task_changed",
    c"tasks_announced",
    c"tasks_inserted",
    c"tasks_restored",
];
/// Those that tell of what is not done natively.
const TELLING_TRIGGERS: &[&CStr] = &[c"table_emptied", c"task_changed", c"tasks_announced"];
const HISTORY_TRIGGERS: &[&CStr] = &[c"history_counted", c"history_uncounted", c"table_emptied"];
/// What the native verbs know of the indexes of tasks that they read by, or write conditionally: how the
/// definition of each begins and ends. Storage parameters may stand in between.
const INDEXES: [(&str, &str); 3] = [
    ("CREATE UNIQUE INDEX tasks_pkey ON queue.tasks USING btree (id)", ""),
    (
        "CREATE INDEX tasks_order ON queue.tasks USING btree (queue, priority, run_at, id)",
        " WHERE (gate < 2)",
    ),
    (
        "CREATE INDEX tasks_group ON queue.tasks USING btree (queue, group_key, gate, id)",
        " WHERE (group_key IS NOT NULL)",
    ),
];
/// Whether the verb may go on natively.
pub fn judge(tables: &Tables, purpose: Use) -> Result<(), Reason> {
    // SAFETY: the tables exist, and `tasks` is locked; the others are locked here for the look.
    unsafe {
        look_at(tables.tasks, columns::TASKS, TASK_TRIGGERS, 1)?;
        for (index, definition) in
            [tables.tasks_pkey, tables.tasks_order, tables.tasks_group].into_iter().zip(INDEXES)
        {
            is_defined_as(index, definition)?;
        }
        match purpose {
            Use::Push => {}
            Use::Claim | Use::Extend => replicates(tables.tasks, pg_sys::CmdType::CMD_UPDATE),
            Use::Complete => replicates(tables.tasks, pg_sys::CmdType::CMD_DELETE),
        }
        // Only ever read.
        look_at(tables.queues, columns::QUEUES, ANY, usize::MAX)?;
        if let Use::Complete = purpose {
            look_at(tables.history, columns::HISTORY, HISTORY_TRIGGERS, 0)?;
            let (dependencies, _) = open_by_key(tables.dependencies, &columns::DEPENDENCIES_KEY)?;
            pg_sys::table_close(dependencies, pg_sys::NoLock as i32);
            unguarded(tables.history)?;
        }
        unguarded(tables.tasks)?;
        unguarded(tables.queues)
    }
}

/// Whether the tasks can be read, whatever a user has added to them, and what changes is told.
///
/// # Safety
/// In a transaction.
pub unsafe fn are_known(tables: &Tables) -> bool {
    // SAFETY: a table is open while it is looked at; the lock is kept to the end of the transaction.
    unsafe {
        let looked_at = |table, columns, triggers| {
            let relation = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
            let known =
                columns::begins_with((*relation).rd_att, columns) && fire((*relation).trigdesc, triggers);
            pg_sys::table_close(relation, pg_sys::NoLock as i32);
            known
        };
        looked_at(tables.tasks, columns::TASKS, TELLING_TRIGGERS)
            && looked_at(tables.history, columns::HISTORY, HISTORY_TRIGGERS)
            && is_defined_as(tables.tasks_order, INDEXES[1]).is_ok()
    }
}

/// Whether all of these triggers are there and not disabled.
unsafe fn fire(found: *mut pg_sys::TriggerDesc, expected: &[&CStr]) -> bool {
    // SAFETY: the caller's open relation.
    unsafe {
        if found.is_null() {
            return false;
        }
        let all = std::slice::from_raw_parts((*found).triggers, (*found).numtriggers as usize);
        let fires = |name: &&CStr| {
            let named = |trigger: &&pg_sys::Trigger| CStr::from_ptr(trigger.tgname) == *name;
            all.iter().find(named).is_some_and(|trigger| trigger.tgenabled as u8 != b'D')
        };
        expected.iter().all(fires)
    }
}

/// The partition of the history for this time, or the default one as long as it has none of its own; if
/// native verbs may write to it.
pub fn partition_at(history: pg_sys::Oid, time: i64) -> Result<Today, Reason> {
    let day = time.div_euclid(DAY);
    let of_the_day = CString::new(format!("history_{}", date(day))).map_err(|_| Reason::Partition)?;
    // SAFETY: catalog lookups; the history is locked against attaching and detaching.
    unsafe {
        let schema = pg_sys::get_rel_namespace(history);
        let named = |name: &CStr| pg_sys::get_relname_relid(name.as_ptr(), schema);
        let parent = pg_sys::table_open(history, pg_sys::NoLock as i32);
        let attached = partitions_of(parent);
        let mut candidates = [named(&of_the_day), named(c"history_default")].into_iter();
        let table = candidates.find(|table| attached.contains(table));
        pg_sys::table_close(parent, pg_sys::NoLock as i32);
        let table = table.ok_or(Reason::Partition)?;
        pg_sys::LockRelationOid(table, pg_sys::RowExclusiveLock as i32);
        look_at(table, columns::HISTORY, &[], 0)?;
        Ok(Today { table, since: day * DAY, until: (day + 1) * DAY })
    }
}

/// The partitions of a partitioned table.
///
/// # Safety
/// The relation is open as long as the result is used.
pub unsafe fn partitions_of<'a>(relation: pg_sys::Relation) -> &'a [pg_sys::Oid] {
    // SAFETY: as many as it says; without any, it has no array.
    unsafe {
        let partitions = &*pg_sys::RelationGetPartitionDesc(relation, true);
        match partitions.nparts {
            0 => &[],
            count => std::slice::from_raw_parts(partitions.oids, count as usize),
        }
    }
}

/// A day in microseconds.
const DAY: i64 = 86_400_000_000;

/// The date of a day counted from 2000-01-01, as YYYYMMDD.
fn date(day: i64) -> String {
    let (mut year, mut month, mut date) = (0, 0, 0);
    // SAFETY: pure arithmetic of the server's own calendar.
    unsafe {
        pg_sys::j2date(day as i32 + pg_sys::POSTGRES_EPOCH_JDATE as i32, &mut year, &mut month, &mut date)
    };
    format!("{year:04}{month:02}{date:02}")
}

/// Whether the table has these columns and no more, no enabled triggers but these, no rules, at most so
/// many check constraints, and only indexes that [`super::write`] can fill.
unsafe fn look_at(
    table: pg_sys::Oid,
    columns: &[Column],
    triggers: &[&CStr],
    checks: usize,
) -> Result<(), Reason> {
    // SAFETY: a relation is open, and so in place, from here to its closing.
    unsafe {
        let relation = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
        let plain = (*(*relation).rd_rel).relpersistence as u8 == b'p'
            && (*relation).rd_rules.is_null()
            && matches!((*(*relation).rd_rel).relreplident as u8, b'd' | b'f')
            && has_columns((*relation).rd_att, columns, checks, triggers != ANY)
            && has_triggers((*relation).trigdesc, triggers)
            && has_plain_indexes(relation);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
        if plain { Ok(()) } else { Err(Reason::Altered) }
    }
}

/// Raises what the executor would: a publication has a row filter or a list of columns for which such a
/// change of the table does not tell enough.
unsafe fn replicates(table: pg_sys::Oid, command: pg_sys::CmdType::Type) {
    // SAFETY: the table is locked, and open while it is looked at.
    unsafe {
        let relation = pg_sys::table_open(table, pg_sys::NoLock as i32);
        pg_sys::CheckCmdReplicaIdentity(relation, command);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
    }
}

unsafe fn has_columns(shape: pg_sys::TupleDesc, columns: &[Column], checks: usize, written: bool) -> bool {
    // SAFETY: the caller's open relation.
    unsafe {
        let constraints = (*shape).constr;
        (*shape).natts as usize == columns.len()
            && columns::begins_with(shape, columns)
            && columns.iter().enumerate().all(|(i, (name, _))| {
                let attribute = super::rows::attribute(shape, i);
                !(written && (*attribute).attnotnull && NULLABLE.contains(name))
            })
            && (constraints.is_null() || usize::from((*constraints).num_check) <= checks)
    }
}

unsafe fn has_triggers(found: *mut pg_sys::TriggerDesc, expected: &[&CStr]) -> bool {
    // SAFETY: the caller's open relation.
    unsafe {
        if expected == ANY {
            return true;
        } else if found.is_null() {
            return expected.is_empty();
        }
        let all = std::slice::from_raw_parts((*found).triggers, (*found).numtriggers as usize);
        let mut enabled = all.iter().filter(|trigger| trigger.tgenabled as u8 != b'D');
        let ours = |trigger: &pg_sys::Trigger| expected.contains(&CStr::from_ptr(trigger.tgname));
        enabled.clone().count() == expected.len() && enabled.all(ours)
    }
}

/// Plain columns in every index, and a condition only in those of the extension itself.
unsafe fn has_plain_indexes(relation: pg_sys::Relation) -> bool {
    // SAFETY: the caller's open relation; each index is open while it is looked at.
    unsafe {
        let indexes = super::write::indexes_of(relation);
        indexes.into_iter().all(|oid| {
            let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as i32);
            let form = (*index).rd_index;
            let keys = (*form).indkey.values.as_slice((*form).indnatts as usize);
            let own = [&c"tasks_order", &c"tasks_group"];
            let name = CStr::from_ptr((*(*index).rd_rel).relname.data.as_ptr());
            let conditional = !pg_sys::RelationGetIndexPredicate(index).is_null();
            // One that is still being built may not take entries yet.
            let plain = keys.iter().all(|key| *key > 0)
                && (*form).indisready
                && (*form).indimmediate
                && !(*form).indisexclusion
                && (!conditional || own.contains(&&name));
            pg_sys::index_close(index, pg_sys::NoLock as i32);
            plain
        })
    }
}

/// Whether an index is what the extension of this version makes under that name.
unsafe fn is_defined_as(index: pg_sys::Oid, (begin, end): (&str, &str)) -> Result<(), Reason> {
    // SAFETY: a catalog lookup by a function of the server that takes an OID.
    let found: Option<String> =
        unsafe { pgrx::direct_function_call(pg_sys::pg_get_indexdef, &[index.into_datum()]) };
    let same = found.is_some_and(|found| found.starts_with(begin) && found.ends_with(end));
    if same { Ok(()) } else { Err(Reason::Altered) }
}

/// Whether row-level security leaves the table alone for the current user.
unsafe fn unguarded(table: pg_sys::Oid) -> Result<(), Reason> {
    // SAFETY: a catalog lookup.
    let verdict = unsafe { pg_sys::check_enable_rls(table, pg_sys::InvalidOid, true) };
    if verdict == pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32 {
        Err(Reason::RowSecurity)
    } else {
        Ok(())
    }
}
