//! The native forms of the verbs that a worker's loop and its producers call.
//!
//! Each serves the plain case through the tables' access methods and hands everything else to the core,
//! the function of the same name in schema queue_internal, which is where a verb's meaning is written.
//! It may hand over as long as nothing has been written. See [`Reason`] for what is not plain.

mod arguments;
pub mod claim;
mod complete;
mod extend;
mod grant;
mod push;
mod queue;

use crate::fallback::Reason;
use crate::lanes;
use crate::rights;
use crate::settings;
use crate::shared;
pub use arguments::core_oid;
use arguments::{Arguments, Rows};
use pg_sys::{BOOLOID, INT4OID, INT8OID, JSONBOID, TEXTOID, TIMESTAMPTZOID};
use pgrx::prelude::*;
use std::sync::atomic::Ordering;

/// What became of a call.
pub enum Outcome {
    /// It is done, and this is what it returns.
    Served(pg_sys::Datum),
    /// The core has to do it.
    Core(Reason),
    /// The first half is done, and the core has to claim, with these arguments.
    CoreClaim(Reason, [pg_sys::NullableDatum; 4]),
    /// These rows are claimed, and the core has to claim the rest, with these arguments.
    CoreRest(Reason, [pg_sys::NullableDatum; 4], Rows),
}

type Verb = unsafe fn(&Arguments) -> Result<Outcome, Reason>;

/// Defines the C functions of a verb: the entry point and the record that Postgres asks for.
macro_rules! verb {
    ($name:ident, $info:ident, $verb:path, $shape:expr) => {
        declare_symbol!($info);

        /// Not guarded by pgrx, whose guard would turn the SQLSTATEs that the core raises into XX000: an
        /// ERROR of the core passes straight through this frame, which holds nothing to be dropped.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
            // SAFETY: called by Postgres with the arguments that native.sql declares.
            unsafe {
                let entered = rights::enter(fcinfo);
                let mut outcome = Outcome::Core(Reason::Off);
                serve($verb, &$shape, fcinfo, &mut outcome);
                let result = finish(fcinfo, &outcome);
                rights::leave(&entered);
                result
            }
        }
    };
}

verb!(queue_push, pg_finfo_queue_push, push::push, (14, &[]));
verb!(queue_push_many, pg_finfo_queue_push_many, push::push_many, (16, ID));
verb!(queue_claim, pg_finfo_queue_claim, claim::claim, (4, CLAIMED));
verb!(queue_complete, pg_finfo_queue_complete, complete::complete, (3, &[]));
verb!(queue_complete_many, pg_finfo_queue_complete_many, complete::complete_many, (3, ID));
verb!(
    queue_complete_and_claim,
    pg_finfo_queue_complete_and_claim,
    complete::complete_and_claim,
    (6, CLAIMED)
);
verb!(queue_extend, pg_finfo_queue_extend, extend::extend, (4, &[TIMESTAMPTZOID, BOOLOID]));

declare_symbol!(pg_finfo_queue_verb);

/// The entry point of the verbs that have no native form.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn queue_verb(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by Postgres as one of the functions that native.sql declares.
    unsafe {
        let entered = rights::enter(fcinfo);
        let arguments = (*fcinfo).args.as_slice((*fcinfo).nargs as usize);
        let result = call_for(fcinfo, core_of(fcinfo, false), arguments);
        rights::leave(&entered);
        result
    }
}

/// How many arguments a verb takes, and the types of the columns that it returns rows of, as native.sql
/// declares it. A later version of the extension may declare it otherwise while this library is still in use.
type Shape = (i16, &'static [pg_sys::Oid]);

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
];

/// Tries the native form. Called by nobody but the functions above; guarded, so that a panic becomes an ERROR.
#[pg_guard]
#[allow(improper_ctypes_definitions)]
unsafe extern "C-unwind" fn serve(
    verb: Verb,
    shape: &Shape,
    fcinfo: pg_sys::FunctionCallInfo,
    outcome: *mut Outcome,
) {
    // SAFETY: the arguments are as SQL declares them, and the outcome is the caller's.
    unsafe {
        let result = permitted()
            .and_then(|()| if Arguments::fit(fcinfo, shape) { Ok(()) } else { Err(Reason::Altered) })
            .and_then(|()| verb(&Arguments::new(fcinfo)));
        *outcome = result.unwrap_or_else(Outcome::Core);
        note(&*outcome);
        point!(VerbServed);
    }
}

/// Whether a native form may be tried at all in this transaction.
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

/// Counts what became of a call.
fn note(outcome: &Outcome) {
    // SAFETY: a plain read of a constant of the process.
    let database = shared::get().and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }));
    let Some(database) = database else { return };
    match outcome {
        Outcome::Served(_) => database.counters.served.fetch_add(1, Ordering::Relaxed),
        Outcome::Core(reason) | Outcome::CoreClaim(reason, _) | Outcome::CoreRest(reason, ..) => {
            database.counters.handed_over[*reason as usize].fetch_add(1, Ordering::Relaxed)
        }
    };
}

/// Returns what was served, or what the core returns.
unsafe fn finish(fcinfo: pg_sys::FunctionCallInfo, outcome: &Outcome) -> pg_sys::Datum {
    // SAFETY: the core's functions take these arguments.
    unsafe {
        match outcome {
            Outcome::Served(result) => *result,
            Outcome::Core(_) => {
                let arguments = (*fcinfo).args.as_slice((*fcinfo).nargs as usize);
                call_for(fcinfo, core_of(fcinfo, false), arguments)
            }
            Outcome::CoreClaim(_, arguments) => call_for(fcinfo, core_of(fcinfo, true), arguments),
            Outcome::CoreRest(_, arguments, rows) => {
                let result = call_for(fcinfo, core_of(fcinfo, true), arguments);
                append(rows);
                result
            }
        }
    }
}

/// Returns the rows, followed by those that the core has just returned.
#[pg_guard]
unsafe extern "C-unwind" fn append(rows: &Rows) {
    // SAFETY: the call has returned its rows where these belong.
    unsafe { rows.followed_by_returned() };
    point!(CoreAppended);
}

/// Calls a function of SQL by way of the function manager. An ERROR in it passes through.
///
/// # Safety
/// The function was looked up, takes these arguments, and returns no set.
pub unsafe fn call(function: *mut pg_sys::FmgrInfo, arguments: &[pg_sys::NullableDatum]) -> pg_sys::Datum {
    let mut nobody = pg_sys::FunctionCallInfoBaseData::default();
    // SAFETY: the caller's promise.
    unsafe { call_for(&mut nobody, function, arguments) }
}

/// The same of a function that may return null.
///
/// # Safety
/// As above.
pub unsafe fn call_or_null(
    function: *mut pg_sys::FmgrInfo,
    arguments: &[pg_sys::NullableDatum],
) -> Option<pg_sys::Datum> {
    let mut nobody = pg_sys::FunctionCallInfoBaseData::default();
    // SAFETY: the caller's promise.
    let result = unsafe { call_for(&mut nobody, function, arguments) };
    (!nobody.isnull).then_some(result)
}

/// As many as any function may have.
const MOST_ARGUMENTS: usize = pg_sys::FUNC_MAX_ARGS as usize;

/// The same in the place of another call: with its place for a set of rows, and returning its nulls.
unsafe fn call_for(
    fcinfo: pg_sys::FunctionCallInfo,
    function: *mut pg_sys::FmgrInfo,
    arguments: &[pg_sys::NullableDatum],
) -> pg_sys::Datum {
    // The header of a call and room for its arguments, as LOCAL_FCINFO lays it out.
    #[repr(C)]
    struct Call {
        header: pg_sys::FunctionCallInfoBaseData,
        arguments: [pg_sys::NullableDatum; MOST_ARGUMENTS],
    }
    // SAFETY: the arguments stand right behind the header, whose last field is an array of no length.
    unsafe {
        let mut call = std::mem::MaybeUninit::<Call>::uninit();
        let header = call.as_mut_ptr().cast::<pg_sys::FunctionCallInfoBaseData>();
        (*header).flinfo = function;
        (*header).context = std::ptr::null_mut();
        (*header).resultinfo = (*fcinfo).resultinfo;
        (*header).fncollation = (*fcinfo).fncollation;
        (*header).isnull = false;
        (*header).nargs = arguments.len() as i16;
        std::ptr::copy_nonoverlapping(arguments.as_ptr(), (&raw mut (*header).args).cast(), arguments.len());
        let result = match (*function).fn_addr {
            Some(address) => address(header),
            None => pg_sys::Datum::from(0),
        };
        (*fcinfo).isnull = (*header).isnull;
        result
    }
}

/// The core's function of the same name and arguments, or its `claim`; found once for each query.
#[pg_guard]
unsafe extern "C-unwind" fn core_of(fcinfo: pg_sys::FunctionCallInfo, claim: bool) -> *mut pg_sys::FmgrInfo {
    // SAFETY: fn_extra is the function's own, in memory that lives as long as the query's plan.
    unsafe {
        let info = (*fcinfo).flinfo;
        if (*info).fn_extra.is_null() {
            let size = 2 * size_of::<pg_sys::FmgrInfo>();
            (*info).fn_extra = pg_sys::MemoryContextAllocZero((*info).fn_mcxt, size);
        }
        let core = (*info).fn_extra.cast::<pg_sys::FmgrInfo>().add(usize::from(claim));
        if (*core).fn_oid == pg_sys::InvalidOid {
            pg_sys::fmgr_info_cxt(arguments::core_for((*info).fn_oid, claim), core, (*info).fn_mcxt);
        }
        point!(CoreFound);
        core
    }
}
