//! What has to be done about commands of others: it keeps the workers out of the way of commands on whole
//! databases, has the lanes look anew after COMMIT PREPARED and after what silences triggers, and tells the
//! launcher of an extension that was created in a prepared transaction. What is going to be refused it refuses before
//! PostgreSQL waits for a lock (`refusals`).
//!
//! DROP DATABASE, CREATE DATABASE ... TEMPLATE, and renaming or moving a database fail while
//! another session is connected to it, and a worker is one. Before such a command runs, the
//! worker of that database is asked to leave, and kept out while the command takes its own locks. Not for
//! a command that is going to be refused: anybody could keep the worker away with those.

mod refusals;
mod relations;

use crate::clock::now;
use crate::guard::elements;
use crate::lanes;
use crate::shared;
use crate::shared::idle::{self, IdleTransactions};
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
    // Declared here and not taken from pgrx, whose wrapper would turn the SQLSTATE of every ERROR
    // that it does not know into XX000.
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

/// Puts the hook in place. Only while the postmaster preloads libraries.
pub fn install() {
    // SAFETY: single-threaded start-up, before any backend exists.
    unsafe {
        PREVIOUS = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
    }
}

/// Not guarded by pgrx, for the reason given at `run_utility`: an ERROR of the statement passes
/// straight through this frame, which holds nothing that would have to be dropped.
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
    // SAFETY: the arguments are the server's own; only the statement may be passed on as a copy. PREVIOUS was set
    // once at start-up.
    unsafe {
        let statement = refusals::refuse_early(statement);
        if concerns_a_database((*statement).utilityStmt) {
            make_way(
                (*statement).utilityStmt,
                context == pg_sys::ProcessUtilityContext::PROCESS_UTILITY_TOPLEVEL,
            );
        }
        let ends_prepared = ends_prepared_transaction((*statement).utilityStmt);
        let name = name_of_prepared((*statement).utilityStmt);
        // Asked before and after: another session may prepare another transaction under the name meanwhile.
        let was_idle = ends_prepared && is_idle(name, IdleTransactions::knows);
        let silences = silences_triggers((*statement).utilityStmt);
        let next = PREVIOUS.unwrap_or(run_utility);
        next(statement, query, read_only_tree, context, parameters, environment, destination, completion);
        if ends_prepared {
            announce_extension();
            if !(was_idle && is_idle(name, IdleTransactions::forget)) {
                lanes::invalidate();
                lanes::invalidate_counters();
            }
        } else if name != 0 {
            transaction::prepared_as(name);
        }
        if silences {
            lanes::invalidate_counters();
            transaction::uncounted();
        }
    }
}

/// Whether the statement is one of those that fail while a worker is connected.
unsafe fn concerns_a_database(node: *mut pg_sys::Node) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: a utility statement is a node, and its tag tells its type.
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

/// Whether the statement is COMMIT PREPARED or ROLLBACK PREPARED. What the transaction did to tasks was
/// done by another session, perhaps before a restart, and no callback tells of it.
unsafe fn ends_prepared_transaction(node: *mut pg_sys::Node) -> bool {
    use pg_sys::TransactionStmtKind::*;
    // SAFETY: a utility statement is a node, and its tag tells its type.
    unsafe {
        (*node).type_ == pg_sys::NodeTag::T_TransactionStmt
            && [TRANS_STMT_COMMIT_PREPARED, TRANS_STMT_ROLLBACK_PREPARED]
                .contains(&(*node.cast::<pg_sys::TransactionStmt>()).kind)
    }
}

/// The name in PREPARE TRANSACTION, COMMIT PREPARED or ROLLBACK PREPARED, as a hash; 0 for any other statement.
unsafe fn name_of_prepared(node: *mut pg_sys::Node) -> u64 {
    use pg_sys::TransactionStmtKind::*;
    // SAFETY: a utility statement is a node, and its tag tells its type; the parser has given these a name.
    unsafe {
        if (*node).type_ != pg_sys::NodeTag::T_TransactionStmt {
            return 0;
        }
        let statement = node.cast::<pg_sys::TransactionStmt>();
        match (*statement).kind {
            TRANS_STMT_PREPARE | TRANS_STMT_COMMIT_PREPARED | TRANS_STMT_ROLLBACK_PREPARED => {
                idle::hash(CStr::from_ptr((*statement).gid).to_bytes())
            }
            _ => 0,
        }
    }
}

/// What shared memory says of the prepared transaction with this name: whether nobody has to be told of its end.
fn is_idle(name: u64, ask: impl FnOnce(&IdleTransactions, u64) -> bool) -> bool {
    shared::get().is_some_and(|shared| ask(&shared.idle, name))
}

/// Whether the statement may begin or end a time in which changes of tasks are not told: triggers of a table
/// of ours are disabled or enabled, or a subscription comes or goes. Guarded, because to look a name up can
/// fail: at a lock, at a cancel.
#[pg_guard]
unsafe extern "C-unwind" fn silences_triggers(node: *mut pg_sys::Node) -> bool {
    use pg_sys::AlterTableType::{AT_DisableTrigUser, AT_EnableTrig};
    use pg_sys::NodeTag::*;
    // SAFETY: a utility statement is a node, and its tag tells its type; the commands of ALTER TABLE are a
    // list of such.
    unsafe {
        match (*node).type_ {
            T_CreateSubscriptionStmt | T_AlterSubscriptionStmt => true,
            // Of one that is not there, anybody may say so.
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
                // A table of anybody's may have such a name.
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

/// A transaction that was prepared may have created the extension, and no launcher that looked before could
/// see it.
#[pg_guard]
unsafe extern "C-unwind" fn announce_extension() {
    // SAFETY: a plain read of a constant of the process.
    let database = unsafe { pg_sys::MyDatabaseId };
    // Where there is a worker, nothing is looked up.
    let Some(shared) = shared::get().filter(|shared| shared.database(database).is_none()) else { return };
    if crate::extension::oid() != pg_sys::InvalidOid {
        shared.announce_created(database);
    }
}

/// Asks the worker of the statement's database to leave, and waits until it has.
#[pg_guard]
unsafe extern "C-unwind" fn make_way(node: *mut pg_sys::Node, top_level: bool) {
    // SAFETY: the caller's statement; the name is a zero-terminated string in it.
    let oid = unsafe {
        let name = database_name(node);
        if name.is_null() { pg_sys::InvalidOid } else { pg_sys::get_database_oid(name, true) }
    };
    let Some(database) = shared::get().and_then(|shared| shared.database(oid)) else { return };
    // SAFETY: the caller's statement, of which the database was found.
    if unsafe { is_refused(node, oid, top_level) } {
        return;
    }
    let started = Instant::now();
    loop {
        // Each time anew: the worker may be long at something, or have come only now.
        database.keep_out_until.store(now() + shared::KEEP_OUT_MICROSECONDS, Ordering::SeqCst);
        if database.worker.pid() == 0 || started.elapsed() >= LEAVE_WITHIN {
            return;
        }
        database.worker.wake();
        crate::process::sleep(crate::process::Sleep::Leave, Duration::from_millis(5));
    }
}

/// Whether the server refuses the statement, for where it stands or for the lack of rights on the database.
unsafe fn is_refused(node: *mut pg_sys::Node, database: pg_sys::Oid, top_level: bool) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: catalog lookups; the node's tag tells its type.
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
    // SAFETY: a catalog lookup; the row has the layout of FormData_pg_database.
    unsafe {
        let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::DATABASEOID as i32, database.into());
        if row.is_null() {
            return false;
        }
        let template = (*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_database>(row)).datistemplate;
        pg_sys::ReleaseSysCache(row);
        template
    }
}

unsafe fn may_create_databases(user: pg_sys::Oid) -> bool {
    // SAFETY: a catalog lookup; the row has the layout of FormData_pg_authid.
    unsafe {
        let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::AUTHOID as i32, user.into());
        if row.is_null() {
            return false;
        }
        let may = (*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_authid>(row)).rolcreatedb;
        pg_sys::ReleaseSysCache(row);
        may || pg_sys::superuser()
    }
}

/// The database that the statement needs for itself; null if there is none.
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

/// The string value of the option `name` in a list of options; null if it is not there.
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
