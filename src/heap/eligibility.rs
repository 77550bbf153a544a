//! Whether the native fast path may use the tables, because they are as the extension created them.

use super::columns::{self, Column};
use super::indexes::indexes_of;
use super::scan::open_by_key;
use super::tables::{Tables, Use};
use crate::datum::{attribute, text_of};
use crate::fallback::Reason;
use crate::ffi::guarded;
use pgrx::prelude::*;
use std::ffi::{CStr, c_char};

/// The columns of tasks and of the history that may be null on the native fast path.
const NULLABLE: &[&CStr] = &[
    c"max_attempts",
    c"lease_until",
    c"worker",
    c"claimed_at",
    c"cancel_requested_at",
    c"key",
    c"group_key",
    c"backoff",
    c"kind",
    c"lease",
    c"timeout",
    c"start_by",
    c"headers",
    c"progress",
    c"errors",
    c"result",
];
/// Those of the history that may be null besides.
pub(super) const NULLABLE_WHEN_KEPT: &[&CStr] = &[c"payload"];
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
/// The triggers that publish changes which the native fast path did not make.
const REPORTING_TRIGGERS: &[&CStr] = &[c"table_emptied", c"task_changed", c"tasks_announced"];
const HISTORY_TRIGGERS: &[&CStr] = &[c"history_counted", c"history_uncounted", c"table_emptied"];
/// The indexes of tasks that the native fast path scans, or that have a condition: how the definition of each starts
/// and ends. Storage parameters may be in between.
const INDEXES: [(&str, &str); 4] = [
    ("CREATE UNIQUE INDEX tasks_pkey ON queue.tasks USING btree (id)", ""),
    (
        "CREATE INDEX tasks_order ON queue.tasks USING btree (queue, priority, run_at, id)",
        " WHERE (admission < 2)",
    ),
    (
        "CREATE INDEX tasks_group ON queue.tasks USING btree (queue, group_key, admission, id)",
        " WHERE (group_key IS NOT NULL)",
    ),
    (
        "CREATE INDEX tasks_start_by ON queue.tasks USING btree (start_by, id)",
        " WHERE (start_by IS NOT NULL)",
    ),
];
/// The check constraint of the tasks, as pg_get_constraintdef() returns it.
const LEASE_CHECK: (&CStr, &[u8]) =
    (c"tasks_lease_check", b"CHECK (((state = 'running'::text) = (lease_until IS NOT NULL)))");
/// Whether the native fast path can be used.
pub fn check(tables: &Tables, purpose: Use) -> Result<(), Reason> {
    // SAFETY: the tables exist, and `tasks` is locked; the others are locked here.
    unsafe {
        check_table(tables.tasks, columns::TASKS, &[], TASK_TRIGGERS, 1)?;
        has_no_foreign_constraint(tables.tasks)?;
        for (index, definition) in
            [tables.tasks_pkey, tables.tasks_order, tables.tasks_group, tables.tasks_start_by]
                .into_iter()
                .zip(INDEXES)
        {
            is_defined_as(index, definition)?;
        }
        match purpose {
            Use::Read | Use::Push => {}
            Use::Claim | Use::Extend => replicates(tables.tasks, pg_sys::CmdType::CMD_UPDATE),
            Use::Complete => replicates(tables.tasks, pg_sys::CmdType::CMD_DELETE),
        }
        // Read only.
        check_table(tables.queues, columns::QUEUES, &[], ANY, usize::MAX)?;
        if let Use::Complete = purpose {
            check_table(tables.history, columns::HISTORY, NULLABLE_WHEN_KEPT, HISTORY_TRIGGERS, 0)?;
            let (dependencies, _) = open_by_key(tables.dependencies, &columns::DEPENDENCIES_KEY)?;
            pg_sys::table_close(dependencies, pg_sys::NoLock as i32);
            check_no_row_security(tables.history)?;
        }
        check_no_row_security(tables.tasks)?;
        check_no_row_security(tables.queues)
    }
}

/// Whether the tasks can be read, in spite of additions by users, and each change is published to shared memory.
///
/// # Safety
/// In a transaction.
pub unsafe fn are_known(tables: &Tables) -> bool {
    // SAFETY: the table is open while it is checked; the lock is kept until the end of the transaction.
    unsafe {
        let known = |table, columns, triggers| {
            let relation = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
            let found =
                columns::begins_with((*relation).rd_att, columns) && fire((*relation).trigdesc, triggers);
            pg_sys::table_close(relation, pg_sys::NoLock as i32);
            found
        };
        known(tables.tasks, columns::TASKS, REPORTING_TRIGGERS)
            && known(tables.history, columns::HISTORY, HISTORY_TRIGGERS)
            && is_defined_as(tables.tasks_order, INDEXES[1]).is_ok()
    }
}

/// Whether all of these triggers exist and are enabled.
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

/// Whether the table has these columns, followed only by dropped ones, no other enabled triggers than these, no rules,
/// at most so many check constraints, and only indexes that [`super::indexes`] can insert into.
pub(super) unsafe fn check_table(
    table: pg_sys::Oid,
    columns: &[Column],
    nullable: &[&CStr],
    triggers: &[&CStr],
    checks: usize,
) -> Result<(), Reason> {
    // SAFETY: a relation is open, and so in place, from here to its closing.
    unsafe {
        let relation = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
        let plain = (*(*relation).rd_rel).relpersistence as u8 == b'p'
            && (*relation).rd_rules.is_null()
            && matches!((*(*relation).rd_rel).relreplident as u8, b'd' | b'f')
            && has_columns((*relation).rd_att, columns, (triggers != ANY).then_some(nullable), checks)
            && has_triggers((*relation).trigdesc, triggers)
            && has_plain_indexes(relation);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
        if plain { Ok(()) } else { Err(Reason::Altered) }
    }
}

/// Raises the ERROR of the executor if the replica identity of the table does not cover the row filter or the column
/// list of a publication.
unsafe fn replicates(table: pg_sys::Oid, command: pg_sys::CmdType::Type) {
    // SAFETY: the table is locked, and open while it is checked.
    unsafe {
        let relation = pg_sys::table_open(table, pg_sys::NoLock as i32);
        pg_sys::CheckCmdReplicaIdentity(relation, command);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
    }
}

unsafe fn has_columns(
    descriptor: pg_sys::TupleDesc,
    columns: &[Column],
    nullable: Option<&[&CStr]>,
    checks: usize,
) -> bool {
    // SAFETY: the caller's open relation.
    unsafe {
        let constraints = (*descriptor).constr;
        columns::begins_with(descriptor, columns)
            // A dropped column stays in the tuple descriptor, as a null.
            && (columns.len()..(*descriptor).natts as usize).all(|i| (*attribute(descriptor, i)).attisdropped)
            && columns.iter().enumerate().all(|(i, (name, _))| {
                let attribute = attribute(descriptor, i);
                // The native fast path reads a column that is not among these without checking for a null. Nothing is written
                // to a table without such a list.
                nullable.is_none_or(|more| {
                    let may_be_null = NULLABLE.contains(name) || more.contains(name);
                    (*attribute).attnotnull != may_be_null && (*attribute).attgenerated == 0
                })
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

/// Whether every index has only plain columns, and only the extension's own indexes have a condition.
unsafe fn has_plain_indexes(relation: pg_sys::Relation) -> bool {
    // SAFETY: the caller's open relation; each index is open while it is checked.
    unsafe {
        let indexes = indexes_of(relation);
        indexes.into_iter().all(|oid| {
            let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as i32);
            let form = (*index).rd_index;
            let keys = (*form).indkey.values.as_slice((*form).indnatts as usize);
            let own = [&c"tasks_order", &c"tasks_group", &c"tasks_start_by"];
            let name = CStr::from_ptr((*(*index).rd_rel).relname.data.as_ptr());
            let conditional = !pg_sys::RelationGetIndexPredicate(index).is_null();
            // An index that is being built may not take entries yet.
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

/// Whether an index has the definition that this version of the extension gives it.
unsafe fn is_defined_as(index: pg_sys::Oid, (begin, end): (&str, &str)) -> Result<(), Reason> {
    // SAFETY: a catalog lookup.
    let found = unsafe { definition(pg_sys::pg_get_indexdef, index) };
    // An index that is not valid lacks entries: it is being built or dropped, or that has failed.
    // SAFETY: a catalog lookup.
    let valid = found.is_some() && unsafe { pg_sys::get_index_isvalid(index) };
    let same =
        found.is_some_and(|found| found.starts_with(begin.as_bytes()) && found.ends_with(end.as_bytes()));
    if same && valid { Ok(()) } else { Err(Reason::Altered) }
}

unsafe extern "C-unwind" {
    // Not among pgrx's bindings.
    fn get_relation_constraint_oid(
        relation: pg_sys::Oid,
        name: *const c_char,
        missing_ok: bool,
    ) -> pg_sys::Oid;
}

/// Whether the check constraint of the tasks, if any, is that of the extension, which the native fast path satisfies
/// without checking it.
unsafe fn has_no_foreign_constraint(tasks: pg_sys::Oid) -> Result<(), Reason> {
    // SAFETY: the relation is open while it is checked; a catalog lookup.
    unsafe {
        let relation = pg_sys::table_open(tasks, pg_sys::NoLock as i32);
        let constraints = (*(*relation).rd_att).constr;
        let some = !constraints.is_null() && (*constraints).num_check > 0;
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
        if !some {
            return Ok(());
        }
        let (name, own) = LEASE_CHECK;
        let oid = guarded(|| get_relation_constraint_oid(tasks, name.as_ptr(), true));
        let found =
            (oid != pg_sys::InvalidOid).then(|| definition(pg_sys::pg_get_constraintdef, oid)).flatten();
        if found.as_deref() == Some(own) { Ok(()) } else { Err(Reason::Altered) }
    }
}

/// The result of a function of the server that takes an OID and returns a text, in the encoding of the database.
pub(super) unsafe fn definition(
    function: unsafe fn(pg_sys::FunctionCallInfo) -> pg_sys::Datum,
    object: pg_sys::Oid,
) -> Option<Vec<u8>> {
    // SAFETY: the caller's function takes an OID and returns a text or null.
    unsafe {
        let found = pgrx::direct_function_call_as_datum(function, &[object.into_datum()]);
        found.map(|found| text_of(found).to_vec())
    }
}

/// Whether row-level security does not apply to the table for the current user.
unsafe fn check_no_row_security(table: pg_sys::Oid) -> Result<(), Reason> {
    // SAFETY: a catalog lookup.
    let verdict = unsafe { pg_sys::check_enable_rls(table, pg_sys::InvalidOid, true) };
    if verdict == pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32 {
        Err(Reason::RowSecurity)
    } else {
        Ok(())
    }
}
