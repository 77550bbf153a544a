//! The caller of a public function, and the switch to the rights of the owner.
//!
//! After an ERROR a function does not reach its end. PostgreSQL then restores the user, and the callbacks here remove
//! the callers of the aborted functions.

use super::owner_of;
use pgrx::prelude::*;
use std::cell::UnsafeCell;

/// A verb that is running.
#[derive(Clone, Copy)]
struct Running {
    caller: pg_sys::Oid,
    owner: pg_sys::Oid,
    subtransaction: pg_sys::SubTransactionId,
}

/// How deep public functions can be nested, through functions of users that they call.
const DEEPEST: usize = 32;

struct State {
    registered: bool,
    depth: usize,
    running: [Running; DEEPEST],
}

thread_local! {
    static STATE: UnsafeCell<State> = const {
        UnsafeCell::new(State {
            registered: false,
            depth: 0,
            running: [Running { caller: pg_sys::InvalidOid, owner: pg_sys::InvalidOid, subtransaction: 0 }; DEEPEST],
        })
    };
}

fn state() -> *mut State {
    STATE.with(UnsafeCell::get)
}

/// What `leave` has to restore.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Entered {
    user: pg_sys::Oid,
    context: i32,
    /// None if a public function called another one.
    switched: bool,
}

/// Switches to the rights of the owner of the called function, and records its caller.
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
        if !(*state).registered {
            (*state).registered = true;
            // The callbacks live as long as the process, since the library is never unloaded.
            pg_sys::RegisterXactCallback(Some(transaction_ended), std::ptr::null_mut());
            pg_sys::RegisterSubXactCallback(Some(subtransaction_ended), std::ptr::null_mut());
        }
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
        // Like a SECURITY DEFINER function, in which the role cannot be changed. Not a security-restricted operation,
        // in which no deferred trigger or foreign key of a user's table can be queued.
        pg_sys::SetUserIdAndSecContext(owner, entered.context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32);
        entered
    }
}

/// Restores the rights of the caller.
///
/// # Safety
/// `entered` is the result of the last `enter` without a `leave`.
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

/// The public function that is running as this user. It does not include a function of a user that it calls and that
/// runs as its own owner.
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

unsafe extern "C-unwind" fn transaction_ended(
    _event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    // SAFETY: one thread. No verb lasts longer than its transaction.
    unsafe { (*state()).depth = 0 };
}

/// Ids of subtransactions increase, so those started within an aborted one are larger than its own.
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
