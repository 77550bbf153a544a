//! What has to be done about commands of others: it keeps the workers out of the way of commands on whole
//! databases, and has the lanes look anew after COMMIT PREPARED.
//!
//! DROP DATABASE, CREATE DATABASE ... TEMPLATE, and renaming or moving a database fail while
//! another session is connected to it, and a worker is one. Before such a command runs, the
//! worker of that database is asked to leave, and kept out while the command takes its own locks.

use crate::clock::now;
use crate::lanes;
use crate::shared;
use pgrx::prelude::*;
use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering;

/// How long the worker stays away. The command locks the database long before this is over, and
/// from then on a new worker waits for that lock.
const KEEP_OUT_MICROSECONDS: i64 = 3_000_000;
const LEAVE_WITHIN_MICROSECONDS: i64 = 5_000_000;

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
    // SAFETY: the arguments are the server's own and are passed on untouched; PREVIOUS was set
    // once at start-up.
    unsafe {
        if concerns_a_database((*statement).utilityStmt) {
            make_way((*statement).utilityStmt);
        }
        let ends_prepared = ends_prepared_transaction((*statement).utilityStmt);
        let silences = silences_triggers((*statement).utilityStmt);
        let next = PREVIOUS.unwrap_or(run_utility);
        next(statement, query, read_only_tree, context, parameters, environment, destination, completion);
        if ends_prepared {
            lanes::doubt();
        }
        if ends_prepared || silences {
            lanes::doubt_accounts();
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

/// Whether the statement may begin or end a time in which changes of tasks are not told: triggers of a table
/// of ours are disabled or enabled, or a subscription comes or goes.
unsafe fn silences_triggers(node: *mut pg_sys::Node) -> bool {
    use pg_sys::AlterTableType::{AT_DisableTrigUser, AT_EnableTrig};
    use pg_sys::NodeTag::*;
    // SAFETY: a utility statement is a node, and its tag tells its type; the commands of ALTER TABLE are a
    // list of such.
    unsafe {
        match (*node).type_ {
            T_CreateSubscriptionStmt | T_AlterSubscriptionStmt | T_DropSubscriptionStmt => true,
            T_AlterTableStmt => {
                let statement = node.cast::<pg_sys::AlterTableStmt>();
                let name = CStr::from_ptr((*(*statement).relation).relname);
                let commands = (*statement).cmds;
                let mut commands = (0..(*commands).length).map(|i| {
                    (*(*commands).elements.offset(i as isize)).ptr_value.cast::<pg_sys::AlterTableCmd>()
                });
                [c"tasks", c"history", c"dead_letters"].contains(&name)
                    && commands
                        .any(|command| (AT_EnableTrig..=AT_DisableTrigUser).contains(&(*command).subtype))
            }
            _ => false,
        }
    }
}

/// Asks the worker of the statement's database to leave, and waits until it has.
#[pg_guard]
unsafe extern "C-unwind" fn make_way(node: *mut pg_sys::Node) {
    // SAFETY: the caller's statement; the name is a zero-terminated string in it.
    let oid = unsafe {
        let name = database_name(node);
        if name.is_null() { pg_sys::InvalidOid } else { pg_sys::get_database_oid(name, true) }
    };
    let Some(database) = shared::get().and_then(|shared| shared.database(oid)) else { return };
    let started = now();
    database.keep_out_until.store(started + KEEP_OUT_MICROSECONDS, Ordering::SeqCst);
    database.worker.wake();
    while database.worker.pid() != 0 && now() - started < LEAVE_WITHIN_MICROSECONDS {
        crate::process::sleep(crate::process::Sleep::Leave, std::time::Duration::from_millis(5));
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
        found.map_or(std::ptr::null(), |option| pg_sys::defGetString(option))
    }
}
