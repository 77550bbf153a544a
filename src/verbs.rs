//! The native fast path of the functions that producers and the loops of workers call.
//!
//! The fast path handles the plain case through the table access methods. In any other case, listed in [`Reason`], the
//! call falls back to the SQL implementation, the function of the same name in schema queue_internal, which defines the
//! behaviour. It can fall back as long as it has written nothing.

mod arguments;
mod claim;
mod complete;
mod complete_and_claim;
mod complete_many;
mod complete_many_and_claim;
mod events;
mod extend;
mod finish;
mod grant;
mod push;
mod push_many;
mod queue;
pub mod ready;
mod rows;
pub mod sql;

use crate::fallback::Reason;
use crate::lanes;
use crate::rights;
use crate::settings;
use crate::shared;
use arguments::{Arguments, Signature};
use pg_sys::{BOOLOID, INT4OID, INT8OID, JSONBOID, TEXTOID, TIMESTAMPTZOID};
use pgrx::prelude::*;
use rows::Rows;
use sql::{call_for, implementation_of};
use std::sync::atomic::Ordering;

/// The outcome of a call.
pub enum Outcome {
    /// The call is done, and returns this.
    Served(pg_sys::Datum),
    /// The call falls back to SQL.
    Fallback(Reason),
    /// The tasks are completed, and the claim falls back to SQL, with these arguments.
    FallbackClaim(Reason, [pg_sys::NullableDatum; 4]),
    /// These rows are claimed, and the claim of the rest falls back to SQL, with these arguments.
    FallbackRest(Reason, [pg_sys::NullableDatum; 4], Rows),
}

type Verb = unsafe fn(&Arguments) -> Result<Outcome, Reason>;

/// Defines the C functions of a verb: the entry point, and its record (PG_FUNCTION_INFO_V1).
macro_rules! verb {
    ($name:ident, $info:ident, $verb:path, $signature:expr) => {
        declare_symbol!($info);

        /// Without pgrx's guard, which would replace the SQLSTATEs of the SQL implementation with XX000. An ERROR jumps
        /// over this frame, which holds nothing that has to be dropped.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
            // SAFETY: called by Postgres with the arguments that native.sql declares.
            unsafe {
                let entered = rights::enter(fcinfo);
                let mut outcome = Outcome::Fallback(Reason::Off);
                serve($verb, &$signature, fcinfo, &mut outcome);
                let result = finish(fcinfo, &outcome);
                rights::leave(&entered);
                result
            }
        }
    };
}

verb!(queue_push, pg_finfo_queue_push, push::push, (22, &[]));
verb!(queue_push_many, pg_finfo_queue_push_many, push_many::push_many, (24, ID));
verb!(queue_claim, pg_finfo_queue_claim, claim::claim, (4, CLAIMED));
verb!(queue_complete, pg_finfo_queue_complete, complete::complete, (3, &[]));
verb!(queue_complete_many, pg_finfo_queue_complete_many, complete_many::complete_many, (3, ID));
verb!(
    queue_complete_and_claim,
    pg_finfo_queue_complete_and_claim,
    complete_and_claim::complete_and_claim,
    (7, CLAIMED)
);
verb!(
    queue_complete_many_and_claim,
    pg_finfo_queue_complete_many_and_claim,
    complete_many_and_claim::complete_many_and_claim,
    (7, CLAIMED)
);
verb!(queue_extend, pg_finfo_queue_extend, extend::extend, (4, &[TIMESTAMPTZOID, BOOLOID]));

declare_symbol!(pg_finfo_queue_verb);

/// The entry point of the verbs without a native fast path.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn queue_verb(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by Postgres as one of the functions that native.sql declares.
    unsafe {
        let entered = rights::enter(fcinfo);
        let arguments = (*fcinfo).args.as_slice((*fcinfo).nargs as usize);
        let result = call_for(fcinfo, implementation_of(fcinfo, false), arguments);
        rights::leave(&entered);
        result
    }
}

const ID: &[pg_sys::Oid] = &[INT8OID];
/// The columns of queue.claimed_task.
const CLAIMED: &[pg_sys::Oid] = &[
    INT8OID,
    INT8OID,
    TEXTOID,
    JSONBOID,
    JSONBOID,
    INT4OID,
    INT4OID,
    INT4OID,
    TEXTOID,
    TEXTOID,
    JSONBOID,
    TIMESTAMPTZOID,
    TIMESTAMPTZOID,
    TIMESTAMPTZOID,
    TEXTOID,
];

/// Tries the native fast path. With pgrx's guard, so that a panic becomes an ERROR. Called only by the functions above.
#[pg_guard]
#[allow(improper_ctypes_definitions)]
unsafe extern "C-unwind" fn serve(
    verb: Verb,
    signature: &Signature,
    fcinfo: pg_sys::FunctionCallInfo,
    outcome: *mut Outcome,
) {
    // SAFETY: the arguments are as SQL declares them, and the outcome is the caller's.
    unsafe {
        let arguments = Arguments::new(fcinfo);
        let result = permitted()
            .and_then(|()| if arguments.fit(signature) { Ok(()) } else { Err(Reason::Altered) })
            .and_then(|()| verb(&arguments));
        *outcome = result.unwrap_or_else(Outcome::Fallback);
        count(&*outcome);
        point!(VerbServed);
    }
}

/// Whether the native fast path can be tried in this transaction.
fn permitted() -> Result<(), Reason> {
    if !settings::fast_path() {
        return Err(Reason::Off);
    }
    if !lanes::available() {
        return Err(Reason::NotLoaded);
    }
    // SAFETY: plain reads of the state of the session and its transaction.
    let ordinary = unsafe {
        pg_sys::XactIsoLevel == pg_sys::XACT_READ_COMMITTED as i32
            && !pg_sys::XactReadOnly
            && !pg_sys::RecoveryInProgress()
            && !pg_sys::IsInParallelMode()
            && pg_sys::SessionReplicationRole == pg_sys::SESSION_REPLICATION_ROLE_ORIGIN as i32
            && pg_sys::ActiveSnapshotSet()
    };
    if ordinary { Ok(()) } else { Err(Reason::Transaction) }
}

/// Counts the call for queue.engine_stats().
fn count(outcome: &Outcome) {
    // SAFETY: a plain read of a constant of the process.
    let database = shared::get().and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }));
    let Some(database) = database else { return };
    match outcome {
        Outcome::Served(_) => database.counters.served.fetch_add(1, Ordering::Relaxed),
        Outcome::Fallback(reason) | Outcome::FallbackClaim(reason, _) | Outcome::FallbackRest(reason, ..) => {
            database.counters.fallbacks[*reason as usize].fetch_add(1, Ordering::Relaxed)
        }
    };
}

/// Returns the result of the fast path or of the SQL implementation.
unsafe fn finish(fcinfo: pg_sys::FunctionCallInfo, outcome: &Outcome) -> pg_sys::Datum {
    // SAFETY: the functions in SQL take these arguments.
    unsafe {
        match outcome {
            Outcome::Served(result) => *result,
            Outcome::Fallback(_) => {
                let arguments = (*fcinfo).args.as_slice((*fcinfo).nargs as usize);
                call_for(fcinfo, implementation_of(fcinfo, false), arguments)
            }
            Outcome::FallbackClaim(_, arguments) => {
                call_for(fcinfo, implementation_of(fcinfo, true), arguments)
            }
            Outcome::FallbackRest(_, arguments, rows) => {
                let result = call_for(fcinfo, implementation_of(fcinfo, true), arguments);
                append(rows);
                result
            }
        }
    }
}

/// Returns the rows, followed by those that the SQL implementation has just returned.
#[pg_guard]
unsafe extern "C-unwind" fn append(rows: &Rows) {
    // SAFETY: the call has returned its rows where these belong.
    unsafe { rows.followed_by_returned() };
    point!(CoreAppended);
}
