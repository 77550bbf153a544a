//! Finds the relations that commands name without a lock, and checks rights that PostgreSQL checks only with one.
//!
//! PostgreSQL resolves a name, waits for the lock, and resolves the name again if anything changed meanwhile. An
//! unqualified name may then stand for another relation: with `search_path = mine, queue`, tasks is mine.tasks, and
//! queue.tasks once mine.tasks was dropped. So every name is qualified with the schema in which it was found.

use pgrx::prelude::*;

/// The right that PostgreSQL checks.
#[derive(Clone, Copy)]
pub enum Right {
    Owner,
    Trigger,
    References,
}

/// Raises an ERROR if the relation is protected and the current user does not have the right.
pub unsafe fn check(name: *mut pg_sys::RangeVar, right: Right) {
    // SAFETY: the caller's name.
    unsafe { check_unless(|| false, name, right) }
}

/// As `check`, unless the command does nothing because of IF NOT EXISTS or IF EXISTS. That may change before PostgreSQL
/// resolves the name. So the name is replaced with one that no relation can have: PostgreSQL ignores it or raises an
/// ERROR, and takes no lock.
pub unsafe fn check_unless(does_nothing: impl Fn() -> bool, name: *mut pg_sys::RangeVar, right: Right) {
    // SAFETY: catalog lookups in a transaction, by a name in the private copy of a statement.
    unsafe {
        let relation = find(name, true);
        if !is_protected(relation) {
            return;
        }
        let result = result_of(relation, right);
        if result == pg_sys::AclResult::ACLCHECK_OK {
            return;
        }
        let called = pg_sys::get_rel_name(relation);
        // A null means that it has just been dropped.
        if called.is_null() || does_nothing() {
            (*name).relname = pg_sys::pstrdup(c"".as_ptr());
        } else {
            let kind = pg_sys::get_relkind_objtype(pg_sys::get_rel_relkind(relation));
            pg_sys::aclcheck_error(result, kind, called);
        }
    }
}

unsafe fn result_of(relation: pg_sys::Oid, right: Right) -> pg_sys::AclResult::Type {
    use pg_sys::AclResult::{ACLCHECK_NOT_OWNER, ACLCHECK_OK};
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        let user = pg_sys::GetUserId();
        match right {
            Right::Owner if owns(relation, user) => ACLCHECK_OK,
            Right::Owner => ACLCHECK_NOT_OWNER,
            Right::Trigger => pg_sys::pg_class_aclcheck(relation, user, pg_sys::ACL_TRIGGER as _),
            // A foreign key needs the privilege only on its columns.
            Right::References => {
                let references = pg_sys::ACL_REFERENCES as _;
                match pg_sys::pg_class_aclcheck(relation, user, references) {
                    ACLCHECK_OK => ACLCHECK_OK,
                    _ => pg_sys::pg_attribute_aclcheck_all(
                        relation,
                        user,
                        references,
                        pg_sys::AclMaskHow::ACLMASK_ANY,
                    ),
                }
            }
        }
    }
}

/// Finds the relation of this name without a lock, and qualifies the name. Returns InvalidOid if it does not exist and
/// `missing_ok` is set. Such a name stays unqualified: only a role that may create tables in a protected schema could
/// make it refer to one there.
pub unsafe fn find(name: *mut pg_sys::RangeVar, missing_ok: bool) -> pg_sys::Oid {
    if name.is_null() {
        return pg_sys::InvalidOid;
    }
    // SAFETY: a catalog lookup in a transaction; the name is in the private copy of a statement.
    unsafe {
        let flags = if missing_ok { pg_sys::RVROption::RVR_MISSING_OK } else { 0 };
        let no_lock = pg_sys::NoLock as i32;
        loop {
            pg_sys::AcceptInvalidationMessages();
            let relation =
                pg_sys::RangeVarGetRelidExtended(name, no_lock, flags as u32, None, std::ptr::null_mut());
            if relation == pg_sys::InvalidOid || !(*name).schemaname.is_null() {
                return relation;
            }
            // "pg_temp" for the session's own temporary schema. Null if the relation has just been dropped.
            (*name).schemaname = pg_sys::get_namespace_name_or_temp(pg_sys::get_rel_namespace(relation));
            if !(*name).schemaname.is_null() {
                return relation;
            }
        }
    }
}

/// Whether the relation belongs to the extension or is a system catalog.
pub unsafe fn is_protected(relation: pg_sys::Oid) -> bool {
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        let schema = pg_sys::get_rel_namespace(relation);
        schema == pg_sys::Oid::from(pg_sys::PG_CATALOG_NAMESPACE)
            || schema != pg_sys::InvalidOid
                && [c"queue", c"queue_internal"]
                    .iter()
                    .any(|ours| schema == pg_sys::get_namespace_oid(ours.as_ptr(), true))
    }
}

unsafe fn owns(relation: pg_sys::Oid, user: pg_sys::Oid) -> bool {
    // SAFETY: catalog lookups.
    #[cfg(any(feature = "pg14", feature = "pg15"))]
    return unsafe { pg_sys::pg_class_ownercheck(relation, user) };
    // SAFETY: the same.
    #[cfg(not(any(feature = "pg14", feature = "pg15")))]
    return unsafe { pg_sys::object_ownercheck(pg_sys::RelationRelationId, relation, user) };
}
