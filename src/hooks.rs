//! The ProcessUtility hook. It
//!
//! - makes the background worker and the processes of handlers disconnect from a database for commands on the whole
//!   database;
//! - invalidates the lanes that a prepared transaction concerns after COMMIT PREPARED and ROLLBACK PREPARED, and all
//!   counters after commands that disable triggers;
//! - notifies the launcher of an extension that was created in a prepared transaction;
//! - refuses commands of roles without the right before PostgreSQL waits for a lock (`refusals`).
//!
//! DROP DATABASE, CREATE DATABASE ... TEMPLATE, and renaming or moving a database fail while another session is
//! connected to it, such as the worker. Before such a command runs, the worker of that database exits and is kept out
//! until the command has its locks. Not for a command that will be refused, because any role could keep the worker out
//! with those.

mod refusals;
mod relations;

use crate::catalog;
use crate::clock::now;
use crate::guard::elements;
use crate::lanes::{self, LaneSet};
use crate::shared::{self, Handler};
use crate::transaction;
use pgrx::prelude::*;
use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LEAVE_WITHIN: Duration = Duration::from_secs(5);

type Hook = unsafe extern "C-unwind" fn(
    *mut pg_sys::PlannedStmt,
    *const c_char,
    bool,
    pg_sys::ProcessUtilityContext::Type,
    pg_sys::ParamListInfo,
    *mut pg_sys::QueryEnvironment,
    *mut pg_sys::DestReceiver,
    *mut pg_sys::QueryCompletion,
);

unsafe extern "C-unwind" {
    // Declared here because pgrx's wrapper would replace each SQLSTATE that it does not know with XX000.
    #[link_name = "standard_ProcessUtility"]
    fn run_utility(
        statement: *mut pg_sys::PlannedStmt,
        query: *const c_char,
        read_only_tree: bool,
        context: pg_sys::ProcessUtilityContext::Type,
        parameters: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        destination: *mut pg_sys::DestReceiver,
        completion: *mut pg_sys::QueryCompletion,
    );
}

static mut PREVIOUS: Option<Hook> = None;

/// Installs the hook, while the postmaster preloads libraries.
pub fn install() {
    // SAFETY: the postmaster is single-threaded, and no backend exists yet.
    unsafe {
        PREVIOUS = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
    }
}

/// Without pgrx's guard, for the reason given at `run_utility`: an ERROR of the statement jumps over this frame, which
/// holds nothing that has to be dropped.
unsafe extern "C-unwind" fn process_utility(
    statement: *mut pg_sys::PlannedStmt,
    query: *const c_char,
    read_only_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    parameters: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    destination: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: the arguments are those of the server, except that the statement may be a copy. PREVIOUS was set once by
    // the postmaster.
    unsafe {
        let statement = refusals::refuse_early(statement);
        if concerns_a_database((*statement).utilityStmt) {
            disconnect_worker(
                (*statement).utilityStmt,
                context == pg_sys::ProcessUtilityContext::PROCESS_UTILITY_TOPLEVEL,
            );
        }
        let ends_prepared = ends_prepared_transaction((*statement).utilityStmt);
        let name = name_of_prepared((*statement).utilityStmt);
        let prepared = if ends_prepared { lanes::find_prepared(name) } else { 0 };
        let disables = disables_triggers((*statement).utilityStmt);
        let next = PREVIOUS.unwrap_or(run_utility);
        next(statement, query, read_only_tree, context, parameters, environment, destination, completion);
        if ends_prepared {
            // First, because a catalog lookup can raise.
            lanes::end_prepared(name, prepared);
            announce_extension();
        } else if name != 0 {
            transaction::prepared_as(name);
        }
        if disables {
            lanes::invalidate_counters(&LaneSet::ALL);
            transaction::uncounted();
        }
    }
}

/// Whether the statement may fail while the worker is connected to a database.
unsafe fn concerns_a_database(node: *mut pg_sys::Node) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: each cast follows the node's tag.
    unsafe {
        match (*node).type_ {
            T_DropdbStmt | T_CreatedbStmt | T_AlterDatabaseStmt => true,
            T_RenameStmt => {
                (*node.cast::<pg_sys::RenameStmt>()).renameType == pg_sys::ObjectType::OBJECT_DATABASE
            }
            _ => false,
        }
    }
}

/// Whether the statement is COMMIT PREPARED or ROLLBACK PREPARED. The transaction was that of another session, perhaps
/// before a restart, so no callback publishes what it did to tasks.
unsafe fn ends_prepared_transaction(node: *mut pg_sys::Node) -> bool {
    use pg_sys::TransactionStmtKind::*;
    // SAFETY: each cast follows the node's tag.
    unsafe {
        (*node).type_ == pg_sys::NodeTag::T_TransactionStmt
            && [TRANS_STMT_COMMIT_PREPARED, TRANS_STMT_ROLLBACK_PREPARED]
                .contains(&(*node.cast::<pg_sys::TransactionStmt>()).kind)
    }
}

/// The name in PREPARE TRANSACTION, COMMIT PREPARED or ROLLBACK PREPARED, as a hash; 0 for any other statement.
unsafe fn name_of_prepared(node: *mut pg_sys::Node) -> u64 {
    use pg_sys::TransactionStmtKind::*;
    // SAFETY: each cast follows the node's tag; the parser has given these a name.
    unsafe {
        if (*node).type_ != pg_sys::NodeTag::T_TransactionStmt {
            return 0;
        }
        let statement = node.cast::<pg_sys::TransactionStmt>();
        match (*statement).kind {
            TRANS_STMT_PREPARE | TRANS_STMT_COMMIT_PREPARED | TRANS_STMT_ROLLBACK_PREPARED => {
                lanes::hash_of_name(CStr::from_ptr((*statement).gid).to_bytes())
            }
            _ => 0,
        }
    }
}

/// Whether changes of tasks may be published no longer, or again, after the statement: it disables or enables triggers
/// of the extension's tables, or changes a subscription. With pgrx's guard, because a catalog lookup can raise.
#[pg_guard]
unsafe extern "C-unwind" fn disables_triggers(node: *mut pg_sys::Node) -> bool {
    use pg_sys::AlterTableType::{AT_DisableTrigUser, AT_EnableTrig};
    use pg_sys::NodeTag::*;
    // SAFETY: each cast follows the node's tag; the commands of ALTER TABLE are a list of AlterTableCmd.
    unsafe {
        match (*node).type_ {
            T_CreateSubscriptionStmt | T_AlterSubscriptionStmt => true,
            // Any role may name a subscription that does not exist.
            T_DropSubscriptionStmt => {
                let name = (*node.cast::<pg_sys::DropSubscriptionStmt>()).subname;
                let none = pg_sys::Datum::from(0);
                pg_sys::SearchSysCacheExists(
                    pg_sys::SysCacheIdentifier::SUBSCRIPTIONNAME as i32,
                    pg_sys::MyDatabaseId.into(),
                    pg_sys::Datum::from(name),
                    none,
                    none,
                )
            }
            T_AlterTableStmt => {
                let statement = node.cast::<pg_sys::AlterTableStmt>();
                let name = CStr::from_ptr((*(*statement).relation).relname);
                let schema = (*(*statement).relation).schemaname;
                // Tables in other schemas may have the same name.
                let ours = if schema.is_null() {
                    let queue = pg_sys::get_namespace_oid(c"queue".as_ptr(), true);
                    pg_sys::get_rel_namespace(pg_sys::RelnameGetRelid((*(*statement).relation).relname))
                        == queue
                } else {
                    CStr::from_ptr(schema) == c"queue"
                };
                ours && [c"tasks", c"history", c"dead_letters"].contains(&name)
                    && elements::<pg_sys::AlterTableCmd>((*statement).cmds)
                        .any(|command| (AT_EnableTrig..=AT_DisableTrigUser).contains(&(*command).subtype))
            }
            _ => false,
        }
    }
}

/// A prepared transaction may have created the extension, which the launcher could not see before its commit.
#[pg_guard]
unsafe extern "C-unwind" fn announce_extension() {
    // SAFETY: a plain read of a constant of the process.
    let database = unsafe { pg_sys::MyDatabaseId };
    // A database with an entry in shared memory has a worker.
    let Some(shared) = shared::get().filter(|shared| shared.database(database).is_none()) else { return };
    if crate::extension::oid() != pg_sys::InvalidOid {
        shared.announce_created(database);
    }
}

/// Makes the worker of the statement's database and the processes of its handlers exit, and waits for them.
#[pg_guard]
unsafe extern "C-unwind" fn disconnect_worker(node: *mut pg_sys::Node, top_level: bool) {
    // SAFETY: the statement is the caller's; the name is a zero-terminated string in it.
    let oid = unsafe {
        let name = database_name(node);
        if name.is_null() { pg_sys::InvalidOid } else { pg_sys::get_database_oid(name, true) }
    };
    let Some(shared) = shared::get() else { return };
    let Some(database) = shared.database(oid) else { return };
    // SAFETY: the statement is the caller's, and its database exists.
    if unsafe { is_refused(node, oid, top_level) } {
        return;
    }
    let started = Instant::now();
    loop {
        // Set again in each round: the worker may need long to exit, or may have started only now.
        database.keep_out_until.store(now() + shared::KEEP_OUT_MICROSECONDS, Ordering::SeqCst);
        let left = database.worker.pid() == 0 && shared.handlers.of(oid).next().is_none();
        if left || started.elapsed() >= LEAVE_WITHIN {
            return;
        }
        database.worker.wake();
        // A task that is interrupted is released, and claimed again after the command.
        shared.handlers.of(oid).for_each(Handler::interrupt);
        crate::process::sleep(crate::process::Sleep::Leave, Duration::from_millis(5));
    }
}

/// Whether the server will refuse the statement: in a transaction block, or for lack of a right on the database.
unsafe fn is_refused(node: *mut pg_sys::Node, database: pg_sys::Oid, top_level: bool) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: catalog lookups; each cast follows the node's tag.
    unsafe {
        let user = pg_sys::GetUserId();
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let owned = pg_sys::pg_database_ownercheck(database, user);
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let owned = pg_sys::object_ownercheck(pg_sys::DatabaseRelationId, database, user);
        match (*node).type_ {
            T_RenameStmt => !owned,
            _ if pg_sys::IsInTransactionBlock(top_level) => true,
            T_CreatedbStmt => !(owned || is_template(database)) || !may_create_databases(user),
            _ => !owned,
        }
    }
}

unsafe fn is_template(database: pg_sys::Oid) -> bool {
    let template = |row: &pg_sys::FormData_pg_database| row.datistemplate;
    // SAFETY: in a transaction; the layout is that of the cache.
    unsafe { catalog::row(pg_sys::SysCacheIdentifier::DATABASEOID, database, template) == Some(true) }
}

unsafe fn may_create_databases(user: pg_sys::Oid) -> bool {
    let may = |row: &pg_sys::FormData_pg_authid| row.rolcreatedb;
    // SAFETY: in a transaction; the layout is that of the cache.
    unsafe {
        catalog::row(pg_sys::SysCacheIdentifier::AUTHOID, user, may) == Some(true) || pg_sys::superuser()
    }
}

/// The database to which no session may be connected; null if there is none.
unsafe fn database_name(node: *mut pg_sys::Node) -> *const c_char {
    use pg_sys::NodeTag::*;
    // SAFETY: each cast follows the node's tag.
    unsafe {
        match (*node).type_ {
            T_DropdbStmt => (*node.cast::<pg_sys::DropdbStmt>()).dbname,
            T_RenameStmt => (*node.cast::<pg_sys::RenameStmt>()).subname,
            T_CreatedbStmt => option(c"template", (*node.cast::<pg_sys::CreatedbStmt>()).options),
            T_AlterDatabaseStmt => {
                let statement = node.cast::<pg_sys::AlterDatabaseStmt>();
                let moves = !option(c"tablespace", (*statement).options).is_null();
                if moves { (*statement).dbname } else { std::ptr::null() }
            }
            _ => std::ptr::null(),
        }
    }
}

/// The string value of an option; null if the list does not have it.
unsafe fn option(name: &CStr, options: *mut pg_sys::List) -> *const c_char {
    // SAFETY: an option list of a database command holds DefElem nodes.
    unsafe {
        if options.is_null() {
            return std::ptr::null();
        }
        let mut options = (0..(*options).length)
            .map(|i| (*(*options).elements.offset(i as isize)).ptr_value.cast::<pg_sys::DefElem>());
        let found = options.find(|option| CStr::from_ptr((**option).defname) == name);
        // TEMPLATE DEFAULT has no value.
        let found = found.filter(|option| !(**option).arg.is_null());
        found.map_or(std::ptr::null(), |option| pg_sys::defGetString(option))
    }
}
