//! Rights: who called a verb, and what that role may do.
//!
//! The public verbs are entry points in C. Each notes its caller and then works with the rights of the
//! extension's owner, as a SECURITY DEFINER function does; but PostgreSQL forgets who called such a function, and
//! the verbs have to check what their caller may do. What each kind of right means is written in
//! `sql/internal/rights.sql`.
//!
//! An ERROR leaves a verb without passing its end. PostgreSQL then restores the user itself, and the callbacks
//! here remove the callers whose verbs were cut off.

use crate::datum::{text, text_of};
use pgrx::prelude::*;
use std::cell::UnsafeCell;
use std::collections::HashMap;

/// A verb that is running.
#[derive(Clone, Copy)]
struct Running {
    caller: pg_sys::Oid,
    owner: pg_sys::Oid,
    subtransaction: pg_sys::SubTransactionId,
}

/// How many roles' rights are remembered, and how often they are read again at once because they change.
const MOST_KNOWN: usize = 64;
const MOST_READINGS: usize = 10;

/// How deep verbs can be nested, each called by a function of somebody else's that the one before it called.
const DEEPEST: usize = 32;

struct State {
    registered: bool,
    depth: usize,
    running: [Running; DEEPEST],
    /// Whose rights are known, unless something changed since.
    known: Vec<Known>,
    /// The OID of queue.rights, once it was read.
    table: pg_sys::Oid,
    /// How often rights or roles may have changed.
    changes: u64,
}

/// The rights of a role that does not own the extension.
struct Known {
    role: pg_sys::Oid,
    /// Something may have changed while they were read.
    doubtful: bool,
    everywhere: Kinds,
    queues: HashMap<Vec<u8>, Kinds>,
}

thread_local! {
    static STATE: UnsafeCell<State> = const {
        UnsafeCell::new(State {
            registered: false,
            depth: 0,
            running: [Running { caller: pg_sys::InvalidOid, owner: pg_sys::InvalidOid, subtransaction: 0 }; DEEPEST],
            known: Vec::new(),
            table: pg_sys::InvalidOid,
            changes: 0,
        })
    };
}

fn state() -> *mut State {
    STATE.with(UnsafeCell::get)
}

/// A set of kinds of rights.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// Pushing.
    pub const PRODUCER: Self = Self(1);
    /// Claiming and ending tasks.
    pub const WORKER: Self = Self(2);
    /// Seeing and managing, and what the other two may.
    pub const OPERATOR: Self = Self(4);
    const ANY: Self = Self(7);

    /// What suffices where this kind is needed: an operator may do everything.
    fn sufficing(self) -> Self {
        Self(self.0 | Self::OPERATOR.0)
    }

    fn has_any_of(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"producer" => Some(Self::PRODUCER),
            b"worker" => Some(Self::WORKER),
            b"operator" => Some(Self::OPERATOR),
            b"any" => Some(Self::ANY),
            _ => None,
        }
    }
}

/// What `leave` restores.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Entered {
    user: pg_sys::Oid,
    context: i32,
    /// Not where a verb calls another one.
    switched: bool,
}

/// Switches to the rights of the owner of the function that is called, and notes who called it.
///
/// # Safety
/// In a call that PostgreSQL makes, which ends with `leave` or with an ERROR.
#[pg_guard]
pub unsafe extern "C-unwind" fn enter(fcinfo: pg_sys::FunctionCallInfo) -> Entered {
    // SAFETY: the caller's promise; one thread, and no reference is held while the server is called.
    unsafe {
        let mut entered = Entered { user: pg_sys::InvalidOid, context: 0, switched: false };
        pg_sys::GetUserIdAndSecContext(&mut entered.user, &mut entered.context);
        let owner = owner_of((*(*fcinfo).flinfo).fn_oid);
        if caller_of(entered.user).is_some_and(|running| running.owner == owner) {
            return entered;
        }
        let state = state();
        register();
        if (*state).depth == DEEPEST {
            ereport!(
                PgLogLevel::ERROR,
                PgSqlErrorCode::ERRCODE_STATEMENT_TOO_COMPLEX,
                "the verbs of queue_ext are nested too deeply",
                format!("At most {DEEPEST} of them may call each other by way of other functions.")
            );
        }
        let subtransaction = pg_sys::GetCurrentSubTransactionId();
        (*state).running[(*state).depth] = Running { caller: entered.user, owner, subtransaction };
        (*state).depth += 1;
        entered.switched = true;
        // As a SECURITY DEFINER function: nothing in it can change the role. Not as a security-restricted operation,
        // which refuses to queue a deferred trigger or foreign key of somebody's table.
        pg_sys::SetUserIdAndSecContext(owner, entered.context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32);
        entered
    }
}

/// Restores the rights of the caller.
///
/// # Safety
/// `entered` is what the last `enter` returned that was not left.
pub unsafe fn leave(entered: &Entered) {
    if entered.switched {
        // SAFETY: sets two variables of the process.
        unsafe {
            (*state()).depth -= 1;
            pg_sys::SetUserIdAndSecContext(entered.user, entered.context);
        }
    }
}

/// Whether a verb is running with the rights of the owner.
pub fn in_verb() -> bool {
    // SAFETY: a plain read of the process's own state.
    unsafe { caller_of(pg_sys::GetUserId()).is_some() }
}

/// The verb that is running as this user. A function of somebody else's that a verb calls, and that runs as its own
/// owner, is not part of the verb.
fn caller_of(user: pg_sys::Oid) -> Option<Running> {
    // SAFETY: one thread.
    let state = unsafe { &*state() };
    let top = state.running[..state.depth].last()?;
    (top.owner == user).then_some(*top)
}

/// The role whose rights count.
pub fn caller() -> pg_sys::Oid {
    // SAFETY: a plain read of the process's own state.
    let user = unsafe { pg_sys::GetUserId() };
    caller_of(user).map_or(user, |running| running.caller)
}

/// Whether the caller of the running verb has this kind of right for the queue.
///
/// # Safety
/// In a transaction, in a verb.
pub unsafe fn allow(kind: Kinds, queue: &[u8]) -> bool {
    // SAFETY: the caller's promise.
    unsafe { is_allowed(pg_sys::GetUserId(), kind, Some(queue)) }
}

unsafe fn is_allowed(owner: pg_sys::Oid, kind: Kinds, queue: Option<&[u8]>) -> bool {
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        let caller = caller();
        if caller == owner || pg_sys::has_privs_of_role(caller, owner) {
            return true;
        }
        let known = known(caller);
        known.everywhere.has_any_of(kind.sufficing())
            || queue
                .and_then(|queue| known.queues.get(queue))
                .is_some_and(|kinds| kinds.has_any_of(kind.sufficing()))
    }
}

/// The rights of a role, read again if they may have changed.
unsafe fn known<'a>(role: pg_sys::Oid) -> &'a Known {
    // SAFETY: one thread. The reference is used before anything is called that could read the rights again.
    unsafe {
        register();
        pg_sys::AcceptInvalidationMessages();
        let state = state();
        let mut rounds = 0;
        loop {
            if let Some(known) = (*state).known.iter().find(|known| known.role == role && !known.doubtful) {
                return known;
            }
            let changes = (*state).changes;
            let mut read = read(role);
            // Reading takes locks, and with them the news of what changes meanwhile. Where that does not end, what
            // was read last serves this once.
            read.doubtful = changes != (*state).changes;
            rounds += 1;
            let known = &mut (*state).known;
            known.retain(|known| known.role != role);
            if known.len() == MOST_KNOWN {
                known.clear();
            }
            known.push(read);
            if rounds == MOST_READINGS {
                return &known[known.len() - 1];
            }
            check_for_interrupts!();
        }
    }
}

/// Reads queue.rights, with a snapshot of now: what was revoked is revoked for older transactions, too.
unsafe fn read(role: pg_sys::Oid) -> Known {
    let mut known = Known { role, doubtful: false, everywhere: Kinds::default(), queues: HashMap::new() };
    // SAFETY: the table has the columns role, kind and queue, as tables.sql declares it; a role's OID is not toasted.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"queue".as_ptr(), false);
        let table = pg_sys::get_relname_relid(c"rights".as_ptr(), schema);
        if table == pg_sys::InvalidOid {
            return known;
        }
        (*state()).table = table;
        let relation = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
        // Without a snapshot it takes one as for a catalog, which for this table is one of now; GetLatestSnapshot
        // cannot be called while parallel workers run.
        let (snapshot, keys) = (std::ptr::null_mut(), std::ptr::null_mut());
        let scan = pg_sys::systable_beginscan(relation, pg_sys::InvalidOid, false, snapshot, 0, keys);
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let (mut values, mut nulls) = ([pg_sys::Datum::from(0); 3], [true; 3]);
            if (*(*relation).rd_att).natts != 3 {
                break;
            }
            pg_sys::heap_deform_tuple(tuple, (*relation).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
            let granted = pg_sys::Oid::from(values[0].value() as u32);
            let Some(kind) = Kinds::named(text_of(values[1])) else { continue };
            if !pg_sys::has_privs_of_role(role, granted) {
                continue;
            }
            let kinds = if nulls[2] {
                &mut known.everywhere
            } else {
                known.queues.entry(text_of(values[2]).to_vec()).or_default()
            };
            kinds.0 |= kind.0;
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
    }
    known
}

/// Has the server call back when a transaction ends and when rights or roles change.
unsafe fn register() {
    // SAFETY: the callbacks live as long as the process, since the library is never unloaded.
    unsafe {
        let state = state();
        if !(*state).registered {
            (*state).registered = true;
            pg_sys::RegisterXactCallback(Some(transaction_ended), std::ptr::null_mut());
            pg_sys::RegisterSubXactCallback(Some(subtransaction_ended), std::ptr::null_mut());
            pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), pg_sys::Datum::from(0));
            use pg_sys::SysCacheIdentifier::{AUTHMEMROLEMEM, AUTHOID, DATABASEOID};
            // The owner of the database is a member of pg_database_owner.
            for cache in [AUTHMEMROLEMEM, AUTHOID, DATABASEOID] {
                pg_sys::CacheRegisterSyscacheCallback(
                    cache as i32,
                    Some(roles_changed),
                    pg_sys::Datum::from(0),
                );
            }
        }
    }
}

unsafe extern "C-unwind" fn transaction_ended(
    _event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    // SAFETY: one thread. No verb lasts longer than its transaction.
    unsafe { (*state()).depth = 0 };
}

/// The numbers of subtransactions grow: those of a level that is aborted are at least its own.
unsafe extern "C-unwind" fn subtransaction_ended(
    event: pg_sys::SubXactEvent::Type,
    subtransaction: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _argument: *mut std::ffi::c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        // SAFETY: one thread.
        let state = unsafe { &mut *state() };
        while state.depth > 0 && state.running[state.depth - 1].subtransaction >= subtransaction {
            state.depth -= 1;
        }
    }
}

/// Called by the server when a relation changed, or with an invalid OID when any may have.
unsafe extern "C-unwind" fn relation_changed(_argument: pg_sys::Datum, relation: pg_sys::Oid) {
    // SAFETY: one thread.
    unsafe {
        if relation == pg_sys::InvalidOid || relation == (*state()).table {
            forget();
        }
    }
}

unsafe extern "C-unwind" fn roles_changed(_argument: pg_sys::Datum, _cache: i32, _hash: u32) {
    forget();
}

fn forget() {
    // SAFETY: one thread. A reference that `known` gave is not in use while the server calls back.
    let state = unsafe { &mut *state() };
    state.known.clear();
    state.changes += 1;
}

/// The owner of a function.
unsafe fn owner_of(function: pg_sys::Oid) -> pg_sys::Oid {
    // SAFETY: a catalog lookup; the row has the layout of FormData_pg_proc.
    unsafe {
        let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::PROCOID as i32, function.into());
        if row.is_null() {
            error!("function {} does not exist", function.to_u32());
        }
        let owner = (*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_proc>(row)).proowner;
        pg_sys::ReleaseSysCache(row);
        owner
    }
}

/// An argument that is a text, unless it is null.
unsafe fn text_argument<'a>(fcinfo: pg_sys::FunctionCallInfo, number: usize) -> Option<&'a [u8]> {
    // SAFETY: the callers name an argument that is declared as a text.
    unsafe {
        let argument = *(*fcinfo).args.as_ptr().add(number);
        (!argument.isnull).then(|| text_of(argument.value))
    }
}

declare_symbol!(pg_finfo_queue_caller);
declare_symbol!(pg_finfo_queue_has_right);
declare_symbol!(pg_finfo_queue_queues_with_right);
declare_symbol!(pg_finfo_queue_announce_rights);

/// `queue_internal.caller()`
#[unsafe(no_mangle)]
#[pg_guard]
unsafe extern "C-unwind" fn queue_caller(_fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the role exists; a name has a fixed size.
    unsafe {
        let name = pg_sys::GetUserNameFromId(caller(), false);
        let value = pg_sys::palloc0(size_of::<pg_sys::NameData>()).cast::<pg_sys::NameData>();
        pg_sys::namestrcpy(value, name);
        pg_sys::Datum::from(value)
    }
}

/// `queue_internal.has_right(kind, queue)`
#[unsafe(no_mangle)]
#[pg_guard]
unsafe extern "C-unwind" fn queue_has_right(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by PostgreSQL with the arguments that engine.sql declares.
    unsafe {
        let owner = owner_of((*(*fcinfo).flinfo).fn_oid);
        let kind = text_argument(fcinfo, 0).and_then(Kinds::named).unwrap_or_default();
        pg_sys::Datum::from(is_allowed(owner, kind, text_argument(fcinfo, 1)))
    }
}

/// `queue_internal.queues_with_right(kind)`: null for all queues.
#[unsafe(no_mangle)]
#[pg_guard]
unsafe extern "C-unwind" fn queue_queues_with_right(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by PostgreSQL with the argument that engine.sql declares.
    unsafe {
        let owner = owner_of((*(*fcinfo).flinfo).fn_oid);
        let kind = text_argument(fcinfo, 0).unwrap_or_default();
        let queues = visible(owner, kind);
        let Some(queues) = queues else {
            (*fcinfo).isnull = true;
            return pg_sys::Datum::from(0);
        };
        let mut names: Vec<pg_sys::Datum> = queues.iter().map(|name| text(name)).collect();
        let align = pg_sys::TYPALIGN_INT as std::ffi::c_char;
        let array = pg_sys::construct_array(
            names.as_mut_ptr(),
            names.len() as i32,
            pg_sys::TEXTOID,
            -1,
            false,
            align,
        );
        pg_sys::Datum::from(array)
    }
}

/// The queues for which the caller has this kind of right; nothing where it has it for all. Who monitors the server
/// sees the numbers of all queues.
unsafe fn visible(owner: pg_sys::Oid, kind: &[u8]) -> Option<Vec<Vec<u8>>> {
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        let monitors = kind == b"monitor";
        let kind = if monitors { Kinds::OPERATOR } else { Kinds::named(kind).unwrap_or_default() };
        let caller = caller();
        if is_allowed(owner, kind, None) || monitors && pg_sys::has_privs_of_role(caller, MONITOR) {
            return None;
        }
        let queues = &known(caller).queues;
        let allowed = queues.iter().filter(|(_, kinds)| kinds.has_any_of(kind.sufficing()));
        Some(allowed.map(|(name, _)| name.clone()).collect())
    }
}

/// pg_monitor, whose OID is the same in every server.
const MONITOR: pg_sys::Oid = pg_sys::Oid::from_u32(pg_sys::ROLE_PG_MONITOR);

/// Whether the caller may know the numbers of a queue's tasks.
///
/// # Safety
/// In a transaction, in a function whose owner is `owner`.
pub unsafe fn sees_numbers(owner: pg_sys::Oid, queue: &[u8]) -> bool {
    // SAFETY: the caller's promise.
    unsafe { pg_sys::has_privs_of_role(caller(), MONITOR) || is_allowed(owner, Kinds::OPERATOR, Some(queue)) }
}

/// `queue_internal.announce_rights()`
#[unsafe(no_mangle)]
#[pg_guard]
unsafe extern "C-unwind" fn queue_announce_rights(_fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"queue".as_ptr(), false);
        let table = pg_sys::get_relname_relid(c"rights".as_ptr(), schema);
        if table != pg_sys::InvalidOid {
            pg_sys::CacheInvalidateRelcacheByRelid(table);
        }
        // Those of this session, which the message reaches only at the end of the statement.
        forget();
        pg_sys::Datum::from(0)
    }
}
