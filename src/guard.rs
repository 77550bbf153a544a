//! Whose triggers run with the rights of the owner.
//!
//! The verbs and the worker write to the extension's tables as their owner. The privilege TRIGGER is enough to put
//! a trigger on a table, and its function and its WHEN would run with all the rights of the owner. So what the verbs and
//! the worker write fires no trigger that somebody else may have put there: the statement is refused instead.

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

/// Has every statement that a verb writes with checked first.
pub fn install() {
    // SAFETY: while the library is loaded, in one thread.
    unsafe {
        PREVIOUS = pg_sys::ExecutorCheckPerms_hook;
        pg_sys::ExecutorCheckPerms_hook = Some(check);
    }
}

/// Has every statement of this process checked: for the worker.
pub fn always() {
    ALWAYS.set(true);
}

/// Whether what is written to the table runs with the rights of the owner: in the worker, in a verb, or in a
/// SECURITY DEFINER function of the owner's, as a trigger of the extension is that works for an INSERT.
unsafe fn is_on(table: pg_sys::Oid) -> bool {
    // SAFETY: plain reads, and catalog lookups in a transaction.
    unsafe { ALWAYS.get() || rights::in_verb() || pg_sys::InLocalUserIdChange() && is_own(table) }
}

/// Whether this is a table of the extension's that belongs to the current user.
unsafe fn is_own(table: pg_sys::Oid) -> bool {
    // SAFETY: catalog lookups in a transaction; the row has the layout of FormData_pg_class.
    unsafe {
        let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as i32, table.into());
        if row.is_null() {
            return false;
        }
        let form = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_class>(row);
        let own = form.relowner == pg_sys::GetUserId()
            && [c"queue", c"queue_internal"]
                .iter()
                .any(|schema| form.relnamespace == pg_sys::get_namespace_oid(schema.as_ptr(), true));
        pg_sys::ReleaseSysCache(row);
        own
    }
}

const WRITES: u32 = pg_sys::ACL_INSERT | pg_sys::ACL_UPDATE | pg_sys::ACL_DELETE;

/// Called with the tables of each statement, which has them locked.
#[cfg(any(feature = "pg14", feature = "pg15"))]
#[pg_guard]
unsafe extern "C-unwind" fn check(tables: *mut pg_sys::List, raise: bool) -> bool {
    // SAFETY: the server's list.
    unsafe {
        for entry in elements::<pg_sys::RangeTblEntry>(tables) {
            let writes =
                (*entry).rtekind == pg_sys::RTEKind::RTE_RELATION && (*entry).requiredPerms & WRITES != 0;
            if writes && is_on((*entry).relid) {
                look_at((*entry).relid);
            }
        }
        (*&raw const PREVIOUS).is_none_or(|previous| previous(tables, raise))
    }
}

/// The same; what is to be done with each table stands in a list of its own.
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
                look_at((*entry).relid);
            }
        }
        (*&raw const PREVIOUS).is_none_or(|previous| previous(tables, permissions, raise))
    }
}

/// What a list of the server's holds.
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

/// Raises if the table, or a partition to which a row may go, has a trigger that is not to be trusted.
unsafe fn look_at(table: pg_sys::Oid) {
    // SAFETY: with this lock nobody can make a trigger; it is kept to the end of the transaction.
    unsafe {
        let relation = pg_sys::try_relation_open(table, pg_sys::RowExclusiveLock as i32);
        if relation.is_null() {
            return;
        }
        let triggers = (*relation).trigdesc;
        if !triggers.is_null() {
            let all = std::slice::from_raw_parts((*triggers).triggers, (*triggers).numtriggers as usize);
            if let Some(stranger) = all.iter().find(|trigger| !is_trusted(relation, trigger)) {
                refuse(relation, stranger);
            }
        }
        if (*(*relation).rd_rel).relkind as u8 == pg_sys::RELKIND_PARTITIONED_TABLE {
            partitions_of(relation).iter().for_each(|partition| look_at(*partition));
        }
        pg_sys::relation_close(relation, pg_sys::NoLock as i32);
    }
}

/// Whether the trigger does nothing that somebody else than the owner of the table, or a superuser, has
/// decided on. Who made it is noted nowhere; but only the owner can have it fire ALWAYS.
unsafe fn is_trusted(relation: pg_sys::Relation, trigger: &pg_sys::Trigger) -> bool {
    // SAFETY: catalog lookups.
    unsafe {
        let user = pg_sys::GetUserId();
        let trusts = |role| role == user || pg_sys::superuser_arg(role);
        match trigger.tgenabled as u8 {
            _ if trigger.tgisinternal => return true,
            b'D' => return true,
            b'A' | b'R' if trusts((*(*relation).rd_rel).relowner) => return true,
            _ => {}
        }
        let function =
            pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::PROCOID as i32, trigger.tgfoid.into());
        if function.is_null() {
            return false;
        }
        let form = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_proc>(function);
        // Those of the extension may be attached by nobody else, and have conditions.
        let own = form.pronamespace == pg_sys::get_namespace_oid(c"queue_internal".as_ptr(), true);
        let trusted = own || trigger.tgqual.is_null() && trigger.tgnargs == 0 && trusts(form.proowner);
        pg_sys::ReleaseSysCache(function);
        trusted
    }
}

unsafe fn refuse(relation: pg_sys::Relation, trigger: &pg_sys::Trigger) -> ! {
    // SAFETY: names of the server's, zero-terminated.
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
