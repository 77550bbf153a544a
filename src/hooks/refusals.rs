//! Refuses at once what PostgreSQL would refuse only after it has a lock.
//!
//! For most commands PostgreSQL looks at the right first and takes the lock then. For those here it is the other way round:
//! CREATE RULE asks for an exclusive lock on the table and then for its owner. While such a command waits behind an open
//! transaction, everybody who comes later waits behind the command, though it is going to be refused. A role with a right to
//! push could stop all the others in that way, with two sessions. So what PostgreSQL is going to check is checked here
//! beforehand, for the tables of the extension and for the catalogues, which all sessions need.
//!
//! Names are resolved as PostgreSQL does it, but without a lock. Somebody may rename things between this look and
//! PostgreSQL's own; PostgreSQL then still refuses what it has to.

use crate::guard::elements;
use pgrx::prelude::*;

/// What PostgreSQL asks for.
#[derive(Clone, Copy)]
enum Right {
    Owner,
    Trigger,
    References,
}

/// Raises what PostgreSQL would raise for the lack of a right, before it takes a lock. Guarded, because that is an ERROR, and
/// because to look a name up can fail.
#[pg_guard]
pub unsafe extern "C-unwind" fn refuse_early(node: *mut pg_sys::Node) {
    use pg_sys::NodeTag::*;
    // SAFETY: a utility statement is a node, and its tag tells its type and that of what its lists hold.
    unsafe {
        match (*node).type_ {
            T_RuleStmt => ask((*node.cast::<pg_sys::RuleStmt>()).relation, Right::Owner),
            T_CreateTrigStmt => ask((*node.cast::<pg_sys::CreateTrigStmt>()).relation, Right::Trigger),
            // Its foreign keys come as an ALTER TABLE of their own. CREATE FOREIGN TABLE begins with the same fields.
            T_CreateStmt | T_CreateForeignTableStmt => {
                let statement = node.cast::<pg_sys::CreateStmt>();
                if !((*statement).if_not_exists && is_taken((*statement).relation)) {
                    ask_all((*statement).inhRelations);
                }
            }
            T_AlterTableStmt => alter_table(node.cast()),
            T_AlterObjectDependsStmt => {
                let relation = (*node.cast::<pg_sys::AlterObjectDependsStmt>()).relation;
                if !relation.is_null() {
                    ask(relation, Right::Owner);
                }
            }
            // From here on the lock is one that pushes and claims do not wait for, but that ends a vacuum of the table
            // which autovacuum is at.
            T_CreateStatsStmt => ask_all((*node.cast::<pg_sys::CreateStatsStmt>()).relations),
            T_CommentStmt => {
                let statement = node.cast::<pg_sys::CommentStmt>();
                ask_named((*statement).objtype, (*statement).object);
            }
            T_SecLabelStmt => {
                let statement = node.cast::<pg_sys::SecLabelStmt>();
                ask_named((*statement).objtype, (*statement).object);
            }
            T_AlterExtensionContentsStmt => {
                let statement = node.cast::<pg_sys::AlterExtensionContentsStmt>();
                ask_named((*statement).objtype, (*statement).object);
            }
            T_CreatePublicationStmt => {
                let statement = node.cast::<pg_sys::CreatePublicationStmt>();
                #[cfg(feature = "pg14")]
                ask_all((*statement).tables);
                #[cfg(not(feature = "pg14"))]
                publish((*statement).pubobjects);
            }
            T_AlterPublicationStmt => {
                let statement = node.cast::<pg_sys::AlterPublicationStmt>();
                // Who owns a publication may drop any table from it.
                #[cfg(feature = "pg14")]
                if (*statement).tableAction != pg_sys::DefElemAction::DEFELEM_DROP {
                    ask_all((*statement).tables);
                }
                #[cfg(not(feature = "pg14"))]
                if (*statement).action != pg_sys::AlterPublicationAction::AP_DropObjects {
                    publish((*statement).pubobjects);
                }
            }
            _ => {}
        }
    }
}

/// What a command on one table does to another one.
unsafe fn alter_table(statement: *mut pg_sys::AlterTableStmt) {
    use pg_sys::NodeTag::*;
    // SAFETY: as above; the commands of ALTER TABLE are a list of AlterTableCmd.
    unsafe {
        let altered = find((*statement).relation);
        // On one of those that are looked after, PostgreSQL looks for the owner first; and the owner may move partitions
        // that belong to others.
        if altered == pg_sys::InvalidOid || is_looked_after(altered) {
            return;
        }
        for command in elements::<pg_sys::AlterTableCmd>((*statement).cmds) {
            let what = (*command).def;
            if what.is_null() {
                continue;
            }
            match (*what).type_ {
                T_Constraint => refer(what.cast()),
                T_ColumnDef => {
                    elements((*what.cast::<pg_sys::ColumnDef>()).constraints).for_each(|one| refer(one))
                }
                T_PartitionCmd => ask((*what.cast::<pg_sys::PartitionCmd>()).name, Right::Owner),
                // Not NO INHERIT, which needs no right on the parent.
                T_RangeVar if (*command).subtype == pg_sys::AlterTableType::AT_AddInherit => {
                    ask(what.cast(), Right::Owner)
                }
                _ => {}
            }
        }
    }
}

/// A constraint may be a foreign key.
unsafe fn refer(constraint: *mut pg_sys::Constraint) {
    // SAFETY: the caller's node; a foreign key has a table.
    unsafe {
        if (*constraint).contype == pg_sys::ConstrType::CONSTR_FOREIGN {
            ask((*constraint).pktable, Right::References);
        }
    }
}

#[cfg(not(feature = "pg14"))]
unsafe fn publish(objects: *mut pg_sys::List) {
    // SAFETY: what is published is a list of PublicationObjSpec, which have a table or a schema.
    unsafe {
        for object in elements::<pg_sys::PublicationObjSpec>(objects) {
            if !(*object).pubtable.is_null() {
                ask((*(*object).pubtable).relation, Right::Owner);
            }
        }
    }
}

/// For the owner of each relation in a list.
unsafe fn ask_all(relations: *mut pg_sys::List) {
    // SAFETY: the caller's list. In that of CREATE STATISTICS may stand what is refused as no relation.
    unsafe {
        for relation in elements::<pg_sys::RangeVar>(relations) {
            if (*relation).type_ == pg_sys::NodeTag::T_RangeVar {
                ask(relation, Right::Owner);
            }
        }
    }
}

/// For the owner of what has a name in parts, if it is a relation or a column of one.
unsafe fn ask_named(kind: pg_sys::ObjectType::Type, name: *mut pg_sys::Node) {
    use pg_sys::ObjectType::*;
    // SAFETY: objects of these kinds are named by a list of strings.
    unsafe {
        let name = name.cast::<pg_sys::List>();
        let parts = match kind {
            OBJECT_TABLE | OBJECT_INDEX | OBJECT_SEQUENCE | OBJECT_VIEW | OBJECT_MATVIEW
            | OBJECT_FOREIGN_TABLE => (*name).length,
            // The last part is the column. Without another one it is refused as no name of a column.
            OBJECT_COLUMN => (*name).length - 1,
            _ => 0,
        };
        if parts > 0 {
            let relation = pg_sys::list_truncate(pg_sys::list_copy(name), parts);
            ask(pg_sys::makeRangeVarFromNameList(relation), Right::Owner);
        }
    }
}

/// Raises if the name is that of a relation that is looked after, and the current user has not the right.
unsafe fn ask(name: *const pg_sys::RangeVar, right: Right) {
    use pg_sys::AclResult::{ACLCHECK_NOT_OWNER, ACLCHECK_OK};
    // SAFETY: catalog lookups in a transaction, by a name of the statement's.
    unsafe {
        let relation = find(name);
        if relation == pg_sys::InvalidOid || !is_looked_after(relation) {
            return;
        }
        let user = pg_sys::GetUserId();
        let result = match right {
            Right::Owner if owns(relation, user) => ACLCHECK_OK,
            Right::Owner => ACLCHECK_NOT_OWNER,
            Right::Trigger => pg_sys::pg_class_aclcheck(relation, user, pg_sys::ACL_TRIGGER as _),
            // For one column is enough for a foreign key to that.
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
        };
        let name = pg_sys::get_rel_name(relation);
        // Without a name it was dropped just now.
        if result != ACLCHECK_OK && !name.is_null() {
            let kind = pg_sys::get_relkind_objtype(pg_sys::get_rel_relkind(relation));
            pg_sys::aclcheck_error(result, kind, name);
        }
    }
}

/// The relation of this name, without a lock; InvalidOid if there is none.
unsafe fn find(name: *const pg_sys::RangeVar) -> pg_sys::Oid {
    // SAFETY: a catalog lookup in a transaction, of which the first command may be long ago.
    unsafe {
        pg_sys::AcceptInvalidationMessages();
        pg_sys::RangeVarGetRelidExtended(
            name,
            pg_sys::NoLock as i32,
            pg_sys::RVROption::RVR_MISSING_OK as u32,
            None,
            std::ptr::null_mut(),
        )
    }
}

/// Whether there is a relation already where CREATE would put one of this name.
unsafe fn is_taken(name: *const pg_sys::RangeVar) -> bool {
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        let schema = pg_sys::RangeVarGetCreationNamespace(name);
        pg_sys::get_relname_relid((*name).relname, schema) != pg_sys::InvalidOid
    }
}

/// Whether it is one of the extension's relations, or a catalogue.
unsafe fn is_looked_after(relation: pg_sys::Oid) -> bool {
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
