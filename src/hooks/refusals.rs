//! Refuses commands for lack of a right before PostgreSQL waits for a lock.
//!
//! Most commands check the right first and then take the lock. The commands here do it the other way round: CREATE RULE
//! waits for an exclusive lock on the table, and then checks that the user owns it. While it waits for an open
//! transaction, all later sessions wait behind it. With two sessions, a role that may push could stop all others. So
//! the right is checked here beforehand, for the tables of the extension and for the system catalogs.
//!
//! Names are resolved as PostgreSQL resolves them, but without a lock. The result is written into a copy of the
//! statement, which PostgreSQL then runs (`relations`).

use super::relations::{Right, check, check_unless, find, is_protected};
use crate::guard::elements;
use pgrx::prelude::*;
use std::ffi::{CStr, c_char};

/// Raises the ERROR that PostgreSQL would raise for lack of a right, before it takes a lock. Returns the statement to
/// run: a private copy, or the statement itself if it is not one of these. With pgrx's guard, because catalog lookups
/// can raise.
#[pg_guard]
pub unsafe extern "C-unwind" fn refuse_early(
    statement: *mut pg_sys::PlannedStmt,
) -> *mut pg_sys::PlannedStmt {
    use pg_sys::NodeTag::*;
    // SAFETY: each cast follows the node's tag, which also determines the type of the elements of its lists.
    unsafe {
        match (*(*statement).utilityStmt).type_ {
            T_RuleStmt
            | T_CreateTrigStmt
            | T_CreateStmt
            | T_CreateForeignTableStmt
            | T_AlterTableStmt
            | T_AlterObjectDependsStmt
            | T_CreateStatsStmt
            | T_CommentStmt
            | T_SecLabelStmt
            | T_AlterExtensionContentsStmt
            | T_CreatePublicationStmt
            | T_AlterPublicationStmt => {
                let copy = pg_sys::copyObjectImpl(statement.cast()).cast::<pg_sys::PlannedStmt>();
                check_command((*copy).utilityStmt);
                copy
            }
            T_DropStmt => {
                let drop = (*statement).utilityStmt.cast::<pg_sys::DropStmt>();
                if (*drop).removeType == pg_sys::ObjectType::OBJECT_EXTENSION {
                    elements((*drop).objects).for_each(|name| check_extension(text_of(name)));
                }
                statement
            }
            T_AlterExtensionStmt => {
                let alter = (*statement).utilityStmt.cast::<pg_sys::AlterExtensionStmt>();
                check_extension((*alter).extname);
                statement
            }
            T_AlterObjectSchemaStmt => {
                let alter = (*statement).utilityStmt.cast::<pg_sys::AlterObjectSchemaStmt>();
                if (*alter).objectType == pg_sys::ObjectType::OBJECT_EXTENSION {
                    check_extension(text_of((*alter).object.cast()));
                }
                statement
            }
            _ => statement,
        }
    }
}

/// The parser's node for a name.
#[cfg(not(feature = "pg14"))]
type NodeString = pg_sys::String;
#[cfg(feature = "pg14")]
type NodeString = pg_sys::Value;

unsafe fn text_of(name: *mut NodeString) -> *const c_char {
    // SAFETY: a name that the parser made.
    unsafe {
        #[cfg(not(feature = "pg14"))]
        return (*name).sval;
        #[cfg(feature = "pg14")]
        return (*name).val.str_;
    }
}

/// Raises an ERROR unless the user owns the extension. Every transaction of the worker and every check of `queue.wait`
/// locks the extension, and DROP and ALTER EXTENSION wait for that lock before they check the right. ALTER FUNCTION ...
/// DEPENDS ON EXTENSION takes the same lock without any right on the extension: a role that repeats it would delay all
/// sessions that wait for a task.
unsafe fn check_extension(name: *const c_char) {
    // SAFETY: a name that the parser made, and catalog lookups.
    unsafe {
        if CStr::from_ptr(name) != c"queue_ext" {
            return;
        }
        let (extension, user) = (crate::extension::oid(), pg_sys::GetUserId());
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let owned = |oid| pg_sys::pg_extension_ownercheck(oid, user);
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let owned = |oid| pg_sys::object_ownercheck(pg_sys::ExtensionRelationId, oid, user);
        if extension != pg_sys::InvalidOid && !owned(extension) {
            let result = pg_sys::AclResult::ACLCHECK_NOT_OWNER;
            pg_sys::aclcheck_error(result, pg_sys::ObjectType::OBJECT_EXTENSION, name);
        }
    }
}

unsafe fn check_command(node: *mut pg_sys::Node) {
    use pg_sys::NodeTag::*;
    // SAFETY: each cast follows the node's tag; the node belongs to a private copy.
    unsafe {
        match (*node).type_ {
            T_RuleStmt => check((*node.cast::<pg_sys::RuleStmt>()).relation, Right::Owner),
            T_CreateTrigStmt => check((*node.cast::<pg_sys::CreateTrigStmt>()).relation, Right::Trigger),
            // Foreign keys are added by a separate ALTER TABLE. CreateForeignTableStmt starts with the same fields.
            T_CreateStmt | T_CreateForeignTableStmt => {
                let statement = node.cast::<pg_sys::CreateStmt>();
                let exists = || (*statement).if_not_exists && is_taken((*statement).relation);
                for parent in elements((*statement).inhRelations) {
                    check_unless(exists, parent, Right::Owner);
                }
            }
            T_AlterTableStmt => alter_table(node.cast()),
            // The relation is null if the object is a function.
            T_AlterObjectDependsStmt => {
                let statement = node.cast::<pg_sys::AlterObjectDependsStmt>();
                check((*statement).relation, Right::Owner);
                check_extension(text_of((*statement).extname));
            }
            // Pushes and claims do not wait for the locks of the following commands, but an autovacuum of the table is
            // cancelled for them.
            T_CreateStatsStmt => check_all((*node.cast::<pg_sys::CreateStatsStmt>()).relations),
            T_CommentStmt => {
                let statement = node.cast::<pg_sys::CommentStmt>();
                check_named((*statement).objtype, &mut (*statement).object);
            }
            T_SecLabelStmt => {
                let statement = node.cast::<pg_sys::SecLabelStmt>();
                check_named((*statement).objtype, &mut (*statement).object);
            }
            T_AlterExtensionContentsStmt => {
                let statement = node.cast::<pg_sys::AlterExtensionContentsStmt>();
                check_named((*statement).objtype, &mut (*statement).object);
            }
            T_CreatePublicationStmt => {
                let statement = node.cast::<pg_sys::CreatePublicationStmt>();
                #[cfg(feature = "pg14")]
                check_all((*statement).tables);
                #[cfg(not(feature = "pg14"))]
                check_published((*statement).pubobjects);
            }
            T_AlterPublicationStmt => {
                let statement = node.cast::<pg_sys::AlterPublicationStmt>();
                // The owner of a publication may drop any table from it.
                #[cfg(feature = "pg14")]
                if (*statement).tableAction != pg_sys::DefElemAction::DEFELEM_DROP {
                    check_all((*statement).tables);
                }
                #[cfg(not(feature = "pg14"))]
                if (*statement).action != pg_sys::AlterPublicationAction::AP_DropObjects {
                    check_published((*statement).pubobjects);
                }
            }
            _ => {}
        }
    }
}

/// ALTER TABLE, which can lock other tables than the one that it alters.
unsafe fn alter_table(statement: *mut pg_sys::AlterTableStmt) {
    use pg_sys::NodeTag::*;
    // SAFETY: each cast follows the node's tag; the commands of ALTER TABLE are a list of AlterTableCmd.
    unsafe {
        let altered = find((*statement).relation, (*statement).missing_ok);
        // If the altered table is protected, PostgreSQL checks the owner first, who may also attach and detach
        // partitions of other owners.
        if is_protected(altered) {
            return;
        }
        let is_missing = || altered == pg_sys::InvalidOid;
        for command in elements::<pg_sys::AlterTableCmd>((*statement).cmds) {
            let what = (*command).def;
            if what.is_null() {
                continue;
            }
            match (*what).type_ {
                T_Constraint => check_foreign_key(is_missing, what.cast()),
                T_ColumnDef => {
                    let column = what.cast::<pg_sys::ColumnDef>();
                    // ADD COLUMN IF NOT EXISTS.
                    let exists = || {
                        (*command).missing_ok
                            && !(*column).colname.is_null()
                            && pg_sys::get_attnum(altered, (*column).colname) != 0
                    };
                    for constraint in elements((*column).constraints) {
                        check_foreign_key(|| is_missing() || exists(), constraint);
                    }
                }
                T_PartitionCmd => {
                    check_unless(is_missing, (*what.cast::<pg_sys::PartitionCmd>()).name, Right::Owner)
                }
                // NO INHERIT needs no right on the parent.
                T_RangeVar if (*command).subtype == pg_sys::AlterTableType::AT_AddInherit => {
                    check_unless(is_missing, what.cast(), Right::Owner)
                }
                _ => {}
            }
        }
    }
}

/// Checks a constraint if it is a foreign key. That of ALTER CONSTRAINT has no table.
unsafe fn check_foreign_key(does_nothing: impl Fn() -> bool, constraint: *mut pg_sys::Constraint) {
    // SAFETY: the caller's node.
    unsafe {
        if (*constraint).type_ == pg_sys::NodeTag::T_Constraint
            && (*constraint).contype == pg_sys::ConstrType::CONSTR_FOREIGN
        {
            check_unless(does_nothing, (*constraint).pktable, Right::References);
        }
    }
}

#[cfg(not(feature = "pg14"))]
unsafe fn check_published(objects: *mut pg_sys::List) {
    // SAFETY: the objects are a list of PublicationObjSpec, which have a table or a schema.
    unsafe {
        for object in elements::<pg_sys::PublicationObjSpec>(objects) {
            if !(*object).pubtable.is_null() {
                check((*(*object).pubtable).relation, Right::Owner);
            }
        }
    }
}

/// Checks that the user owns each relation in a list.
unsafe fn check_all(relations: *mut pg_sys::List) {
    // SAFETY: the caller's list. That of CREATE STATISTICS may have other nodes, which PostgreSQL refuses.
    unsafe {
        for relation in elements::<pg_sys::RangeVar>(relations) {
            if (*relation).type_ == pg_sys::NodeTag::T_RangeVar {
                check(relation, Right::Owner);
            }
        }
    }
}

/// Checks that the user owns the object with a qualified name, if it is a relation or a column of one.
unsafe fn check_named(kind: pg_sys::ObjectType::Type, name: &mut *mut pg_sys::Node) {
    use pg_sys::ObjectType::*;
    // SAFETY: objects of these kinds are named by a list of strings, of the private copy.
    unsafe {
        let list = name.cast::<pg_sys::List>();
        let parts = match kind {
            _ if list.is_null() => 0,
            OBJECT_TABLE | OBJECT_INDEX | OBJECT_SEQUENCE | OBJECT_VIEW | OBJECT_MATVIEW
            | OBJECT_FOREIGN_TABLE => (*list).length,
            // The last part is the column. PostgreSQL refuses a name without another part.
            OBJECT_COLUMN => (*list).length - 1,
            _ => 0,
        };
        if parts > 0 {
            let relation =
                pg_sys::makeRangeVarFromNameList(pg_sys::list_truncate(pg_sys::list_copy(list), parts));
            check(relation, Right::Owner);
            if parts == 1 && !(*relation).schemaname.is_null() {
                *name = pg_sys::lcons(pg_sys::makeString((*relation).schemaname).cast(), list).cast();
            }
        }
    }
}

/// Whether the name of a relation to create is already taken.
unsafe fn is_taken(name: *const pg_sys::RangeVar) -> bool {
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        let schema = pg_sys::RangeVarGetCreationNamespace(name);
        pg_sys::get_relname_relid((*name).relname, schema) != pg_sys::InvalidOid
    }
}
