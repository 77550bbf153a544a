//! Prevents triggers of other roles from running with the rights of the owner.
//!
//! The public functions and the worker write to the extension's tables as their owner. A role with the privilege
//! TRIGGER can create a trigger, whose function and WHEN condition would run with all rights of the owner. So a
//! statement that would fire such a trigger is refused.

use crate::catalog;
use crate::heap::partitions_of;
use crate::names::shown;
use crate::rights;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::CStr;

static mut PREVIOUS: pg_sys::ExecutorCheckPerms_hook_type = None;

thread_local! {
    static ALWAYS: Cell<bool> = const { Cell::new(false) };
}

/// Installs the check of every statement that a public function runs.
pub fn install() {
    // SAFETY: called once when the library is loaded; a backend has one thread.
    unsafe {
        PREVIOUS = pg_sys::ExecutorCheckPerms_hook;
        pg_sys::ExecutorCheckPerms_hook = Some(check);
    }
}

/// Checks every statement of this process, which is the worker.
pub fn always() {
    ALWAYS.set(true);
}

/// Whether a write to the table runs with the rights of the owner: in the worker, in a public function, or in a
/// SECURITY DEFINER function of the owner, such as a trigger of the extension that an INSERT fires.
unsafe fn is_on(table: pg_sys::Oid) -> bool {
    // SAFETY: plain reads, and catalog lookups in a transaction.
    unsafe { ALWAYS.get() || rights::in_verb() || pg_sys::InLocalUserIdChange() && is_own(table) }
}

/// Whether the table belongs to the extension and to the current user.
unsafe fn is_own(table: pg_sys::Oid) -> bool {
    // SAFETY: catalog lookups in a transaction; the layout is that of the cache.
    unsafe {
        let own = |row: &pg_sys::FormData_pg_class| {
            row.relowner == pg_sys::GetUserId()
                && [c"queue", c"queue_internal"]
                    .iter()
                    .any(|schema| row.relnamespace == pg_sys::get_namespace_oid(schema.as_ptr(), true))
        };
        catalog::row(pg_sys::SysCacheIdentifier::RELOID, table, own) == Some(true)
    }
}

const WRITES: u32 = pg_sys::ACL_INSERT | pg_sys::ACL_UPDATE | pg_sys::ACL_DELETE;

/// ExecutorCheckPerms_hook, called with the range table of each statement, which has the tables locked.
#[cfg(any(feature = "pg14", feature = "pg15"))]
#[pg_guard]
unsafe extern "C-unwind" fn check(tables: *mut pg_sys::List, raise: bool) -> bool {
    // SAFETY: the server's list.
    unsafe {
        for entry in elements::<pg_sys::RangeTblEntry>(tables) {
            let writes =
                (*entry).rtekind == pg_sys::RTEKind::RTE_RELATION && (*entry).requiredPerms & WRITES != 0;
            if writes && is_on((*entry).relid) {
                check_triggers((*entry).relid);
            }
        }
        (*&raw const PREVIOUS).is_none_or(|previous| previous(tables, raise))
    }
}

/// ExecutorCheckPerms_hook from PostgreSQL 16 on, which has the required permissions in a list of their own.
#[cfg(not(any(feature = "pg14", feature = "pg15")))]
#[pg_guard]
unsafe extern "C-unwind" fn check(
    tables: *mut pg_sys::List,
    permissions: *mut pg_sys::List,
    raise: bool,
) -> bool {
    // SAFETY: the server's list.
    unsafe {
        for entry in elements::<pg_sys::RTEPermissionInfo>(permissions) {
            if (*entry).requiredPerms as u32 & WRITES != 0 && is_on((*entry).relid) {
                check_triggers((*entry).relid);
            }
        }
        (*&raw const PREVIOUS).is_none_or(|previous| previous(tables, permissions, raise))
    }
}

/// The elements of a List of pointers.
///
/// # Safety
/// A list of pointers to T, or null, that is not changed meanwhile.
pub unsafe fn elements<T>(list: *mut pg_sys::List) -> impl Iterator<Item = *mut T> {
    // SAFETY: the caller's promise.
    unsafe {
        let count = if list.is_null() { 0 } else { (*list).length as usize };
        (0..count).map(move |i| (*(*list).elements.add(i)).ptr_value.cast())
    }
}

/// Raises an ERROR if the table, or a partition to which a row may be routed, has a trigger that is not trusted.
unsafe fn check_triggers(table: pg_sys::Oid) {
    // SAFETY: the lock, kept until the end of the transaction, conflicts with CREATE TRIGGER.
    unsafe {
        let relation = pg_sys::try_relation_open(table, pg_sys::RowExclusiveLock as i32);
        if relation.is_null() {
            return;
        }
        let triggers = (*relation).trigdesc;
        if !triggers.is_null() {
            let all = std::slice::from_raw_parts((*triggers).triggers, (*triggers).numtriggers as usize);
            if let Some(untrusted) = all.iter().find(|trigger| !is_trusted(relation, trigger)) {
                refuse(relation, untrusted);
            }
        }
        if (*(*relation).rd_rel).relkind as u8 == pg_sys::RELKIND_PARTITIONED_TABLE {
            partitions_of(relation).iter().for_each(|partition| check_triggers(*partition));
        }
        pg_sys::relation_close(relation, pg_sys::NoLock as i32);
    }
}

/// Whether only the owner of the table or a superuser determined what the trigger does. The catalog does not record who
/// created a trigger, but only the owner can enable one as ALWAYS or REPLICA.
unsafe fn is_trusted(relation: pg_sys::Relation, trigger: &pg_sys::Trigger) -> bool {
    // SAFETY: catalog lookups in a transaction; the layout is that of the cache.
    unsafe {
        let user = pg_sys::GetUserId();
        let trusts = |role| role == user || pg_sys::superuser_arg(role);
        match trigger.tgenabled as u8 {
            _ if trigger.tgisinternal => return true,
            b'D' => return true,
            b'A' | b'R' if trusts((*(*relation).rd_rel).relowner) => return true,
            _ => {}
        }
        let trusted = |function: &pg_sys::FormData_pg_proc| {
            // Other roles cannot execute the extension's trigger functions, and so cannot create triggers with them.
            let own = function.pronamespace == pg_sys::get_namespace_oid(c"queue_internal".as_ptr(), true);
            own || trigger.tgqual.is_null() && trigger.tgnargs == 0 && trusts(function.proowner)
        };
        catalog::row(pg_sys::SysCacheIdentifier::PROCOID, trigger.tgfoid, trusted) == Some(true)
    }
}

unsafe fn refuse(relation: pg_sys::Relation, trigger: &pg_sys::Trigger) -> ! {
    // SAFETY: the names are zero-terminated.
    let (trigger, schema, table) = unsafe {
        let class = &*(*relation).rd_rel;
        let schema = pg_sys::get_namespace_name(class.relnamespace);
        [trigger.tgname.cast_const(), schema.cast_const(), class.relname.data.as_ptr()]
            .map(|name| shown(CStr::from_ptr(name).to_bytes()))
            .into()
    };
    let report = ErrorReport::new(
        PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
        format!(
            "trigger \"{trigger}\" on table \"{table}\" must not run with the rights of the owner of queue_ext"
        ),
        "queue_ext",
    );
    report
        .set_detail("Its function belongs neither to a superuser nor to the owner of the table, or it has a condition or arguments.")
        .set_hint(format!(
            "If it can be trusted with their rights, let the owner ALTER TABLE {schema}.{table} ENABLE ALWAYS TRIGGER {trigger}."
        ))
        .report(PgLogLevel::ERROR);
    unreachable!("an ERROR does not return")
}
