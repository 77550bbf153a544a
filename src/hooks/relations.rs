//! The relations that commands name: finding them without a lock, and checking what PostgreSQL checks only with one.
//!
//! PostgreSQL resolves a name, waits for the lock, and resolves the name again if anything changed meanwhile. An
//! unqualified name may then stand for another relation: with `search_path = mine, queue`, tasks is mine.tasks, and
//! queue.tasks once mine.tasks was dropped. So every name is qualified with the schema in which it was found.

use pgrx::prelude::*;

/// What PostgreSQL asks for.
#[derive(Clone, Copy)]
pub enum Right {
    Owner,
    Trigger,
    References,
}

/// Raises if the name is that of a protected relation and the current user lacks the right.
pub unsafe fn check(name: *mut pg_sys::RangeVar, right: Right) {
    // SAFETY: the caller's name.
    unsafe { check_unless(|| false, name, right) }
}

/// The same, unless the command does nothing, as IF NOT EXISTS can say. By the time that PostgreSQL looks, this may have changed. The
/// name is then replaced with one that no relation can have: PostgreSQL ignores it or raises an error, and locks nothing.
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
        // Without a name it was dropped just now.
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
            // A foreign key needs the privilege on its columns only.
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

/// The relation of this name, without a lock, and the name qualified. InvalidOid if there is none and that may be. A
/// name that is not found stays as it is: only who may create tables in a protected schema can give it a meaning there.
pub unsafe fn find(name: *mut pg_sys::RangeVar, missing_ok: bool) -> pg_sys::Oid {
    if name.is_null() {
        return pg_sys::InvalidOid;
    }
    // SAFETY: a catalog lookup in a transaction, of which the first command may be long ago; the name is in the private copy
    // of a statement.
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
            // "pg_temp" for the session's own temporary schema. Null if the relation was dropped just now.
            (*name).schemaname = pg_sys::get_namespace_name_or_temp(pg_sys::get_rel_namespace(relation));
            if !(*name).schemaname.is_null() {
                return relation;
            }
        }
    }
}

/// Whether it is one of the extension's relations, or a catalogue.
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
