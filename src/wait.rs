//! Waiting without a transaction: queue.wait and queue.wait_result.
//!
//! What SQL waits with, `pg_sleep`, runs in a query, and a query holds a snapshot: a waiting session
//! would keep vacuum from cleaning up behind everybody. A procedure may commit where CALL was said
//! outside a transaction block. After that, these wait on the latch with nothing in their hands: not
//! even a transaction, if it was the client who said CALL.
//!
//! Who waits first enters a list, then looks once more, and then sleeps: whatever commits after the look
//! finds the list. Being woken takes one out of it; who then finds nothing, because somebody else was
//! quicker, enters again. Nothing depends on being woken; they look again by themselves, too.

mod lists;
mod rest;

use crate::clock::now;
use crate::datum::text_of;
use crate::extension;
use crate::names::elements;
use crate::rights;
use crate::settings;
use crate::shared::NEVER;
use crate::verbs::{ready, sql};
use pgrx::prelude::*;
use std::cell::Cell;

/// Without the lists, for instance without the library preloaded: how long the first pause is, and how
/// long those after it become, each half as long again as the one before. In microseconds.
const FIRST_PAUSE: i64 = 5_000;
const LONGEST_PAUSE: i64 = 200_000;

declare_symbol!(pg_finfo_queue_wait);
declare_symbol!(pg_finfo_queue_wait_any);
declare_symbol!(pg_finfo_queue_wait_result);

thread_local! {
    /// When what the last look has found missing is there again, as the core has said: see `comes`.
    static COMES: Cell<i64> = const { Cell::new(NEVER) };
    /// What the core found for the last wait of this session, and the pause before it is returned once more.
    static LAST: Cell<Option<(i64, i64)>> = const { Cell::new(None) };
}

/// What this session is looking for comes at that time, and nobody will tell it: a token of a rate limit.
pub fn comes(time: i64) {
    COMES.set(COMES.get().min(time));
}

/// A CALL that waits, with the core's functions by which it checks its arguments and looks.
struct Call {
    fcinfo: pg_sys::FunctionCallInfo,
    check: pg_sys::FmgrInfo,
    look: pg_sys::FmgrInfo,
    /// The first argument as `look` wants it.
    subject: pg_sys::NullableDatum,
    /// The memory of the CALL, which outlives its transactions.
    context: pg_sys::MemoryContext,
    /// That of one look.
    scratch: pg_sys::MemoryContext,
    /// The extension that the procedure is of.
    extension: pg_sys::Oid,
    /// Of what `queue.wait` returns, which cannot be looked up any more once somebody has dropped it.
    shape: pg_sys::TupleDesc,
    kind: Kind,
    pause: i64,
    /// Whether the first look is over.
    looked: bool,
    /// Whether it has slept, or was woken, since the call began.
    rested: bool,
    /// Whether the last look found only what the last wait of this session had found: see `look_for_first`.
    vain: bool,
}

/// `queue.wait(queue, timeout, INOUT ready)`. Not guarded by pgrx, for the reason given in verbs.rs: the
/// core's checks raise errors of their own, which pass through these frames; nothing in them has to be
/// dropped.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn queue_wait(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by Postgres as the procedure that wait.sql declares.
    unsafe { wait_for_task(fcinfo, false) }
}

/// `queue.wait(queues, timeout, INOUT ready)`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn queue_wait_any(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by Postgres as the procedure that wait.sql declares.
    unsafe { wait_for_task(fcinfo, true) }
}

unsafe fn wait_for_task(fcinfo: pg_sys::FunctionCallInfo, many: bool) -> pg_sys::Datum {
    // SAFETY: the callers' promise.
    unsafe {
        let mut call = std::mem::MaybeUninit::<Call>::zeroed();
        let call = call.as_mut_ptr();
        prepare(call, fcinfo, if many { Kind::Queues } else { Kind::Queue });
        let deadline = (*call).check();
        loop {
            begin_look(call);
            let mut hint = Hint::Nothing;
            let entered = rights::enter(fcinfo);
            look_at_lanes((*call).subject.value, &mut hint);
            rights::leave(&entered);
            let ready = match hint {
                Hint::Ready => true,
                Hint::NotReady => false,
                Hint::Nothing => {
                    if (*call).looked {
                        // The queue may have been dropped.
                        (*call).check();
                    }
                    (*call).look_for_first()
                }
            };
            if !go_on(call, ready, deadline) {
                lists::leave(ready);
                return row_of((*call).shape, ready);
            }
        }
    }
}

/// `queue.wait_result(id, timeout, INOUT state, INOUT result)`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn queue_wait_result(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by Postgres as the procedure that wait_result.sql declares.
    unsafe {
        let mut call = std::mem::MaybeUninit::<Call>::zeroed();
        let call = call.as_mut_ptr();
        prepare(call, fcinfo, Kind::Result);
        let deadline = (*call).check();
        loop {
            begin_look(call);
            let outcome = (*call).look().unwrap_or(pg_sys::Datum::null());
            if !go_on(call, is_over(outcome), deadline) {
                lists::leave(true);
                (*fcinfo).isnull = false;
                return outcome;
            }
        }
    }
}

impl Call {
    /// Has the core check the arguments; returns until when to wait.
    unsafe fn check(&mut self) -> i64 {
        // SAFETY: `prepare` has found the function, which takes the first two arguments.
        unsafe {
            let arguments = (*self.fcinfo).args.as_slice(2);
            let entered = rights::enter(self.fcinfo);
            let until = sql::call(&mut self.check, arguments).map_or(0, |until| until.value() as i64);
            rights::leave(&entered);
            until
        }
    }

    /// Has the core look, at what is there now.
    unsafe fn look(&mut self) -> Option<pg_sys::Datum> {
        // SAFETY: `prepare` has found the function. An ERROR in it takes the snapshot with it.
        unsafe {
            see(true);
            let entered = rights::enter(self.fcinfo);
            let found = sql::call(&mut self.look, &[self.subject]);
            rights::leave(&entered);
            see(false);
            found
        }
    }

    /// Whether a claim would get something, from queues that the core serves.
    ///
    /// The core cannot see whether another transaction has that locked. If the last wait of this session returned because
    /// of the same task or event, then the claim after it came to nothing, as a rule because of such a lock. So that a
    /// session that waits and claims in turn does not spin, it pauses first, longer each time, unless it is woken.
    unsafe fn look_for_first(&mut self) -> bool {
        // SAFETY: `prepare` has found the function, which returns a bigint.
        let Some(first) = (unsafe { self.look() }).map(|first| first.value() as i64) else { return false };
        let pause = LAST.get().filter(|last| last.0 == first).map(|last| last.1);
        self.vain = !self.rested && pause.is_some();
        if self.vain {
            self.pause = pause.unwrap_or(FIRST_PAUSE);
        } else {
            LAST.set(Some((first, pause.map_or(FIRST_PAUSE, longer))));
        }
        true
    }
}

/// The pause after this one.
fn longer(pause: i64) -> i64 {
    (pause + pause / 2).min(LONGEST_PAUSE)
}

/// Forgets what the last look left in memory, since there may be many, and makes sure that the extension is still
/// there and stays so until the transaction ends.
#[pg_guard]
unsafe extern "C-unwind" fn begin_look(call: *mut Call) {
    COMES.set(NEVER);
    // SAFETY: the context is this call's own, and holds nothing that is still in use.
    unsafe {
        (*call).vain = false;
        pg_sys::MemoryContextReset((*call).scratch);
        pg_sys::MemoryContextSwitchTo((*call).scratch);
        // At the first look, this is still the transaction in which the functions were found.
        if (*call).looked {
            hold_extension((*call).extension);
            find_functions(call);
            point!(WaitFound);
        }
    }
}

/// Keeps the extension to the end of the transaction. Raises if somebody has dropped it, also if there is another one by
/// now: the procedure that runs here is gone with it.
fn hold_extension(extension: pg_sys::Oid) {
    extension::hold(extension, true);
    if extension::oid() != extension {
        ereport!(
            ERROR,
            PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
            "extension \"queue_ext\" does not exist any more",
            "It was dropped while this session waited."
        );
    }
}

/// Begins or ends to look at what is there now.
#[pg_guard]
unsafe extern "C-unwind" fn see(begin: bool) {
    // SAFETY: the caller pairs them.
    unsafe {
        if begin {
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            point!(WaitSees);
        } else {
            pg_sys::PopActiveSnapshot();
        }
    }
}

/// What a CALL waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
enum Kind {
    Queue,
    Queues,
    Result,
}

/// Finds the core's functions and brings the first argument into their form.
#[pg_guard]
unsafe extern "C-unwind" fn prepare(call: *mut Call, fcinfo: pg_sys::FunctionCallInfo, kind: Kind) {
    // SAFETY: catalog lookups; what is found lives in the memory of the CALL.
    unsafe {
        let argument = (*fcinfo).args.as_slice(1)[0];
        (*call).fcinfo = fcinfo;
        (*call).kind = kind;
        let context = pg_sys::CurrentMemoryContext;
        (*call).context = context;
        (*call).scratch = pg_sys::AllocSetContextCreateInternal(
            context,
            c"queue_ext wait".as_ptr(),
            pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
        );
        (*call).subject = if kind == Kind::Queue { in_array(argument) } else { argument };
        (*call).shape = shape_of(fcinfo);
        (*call).extension = extension::oid();
        (*call).pause = FIRST_PAUSE;
        find_functions(call);
        point!(WaitPrepared);
    }
}

/// Finds the core's functions, which may be others than before if the extension was updated.
unsafe fn find_functions(call: *mut Call) {
    // SAFETY: catalog lookups; what is found lives in the memory of the CALL.
    unsafe {
        let (check, first, look) = match (*call).kind {
            Kind::Queue => (c"check_wait", pg_sys::TEXTOID, c"first_ready"),
            Kind::Queues => (c"check_wait", pg_sys::TEXTARRAYOID, c"first_ready"),
            Kind::Result => (c"check_wait_result", pg_sys::INT8OID, c"outcome"),
        };
        let wanted = if (*call).kind == Kind::Result { pg_sys::INT8OID } else { pg_sys::TEXTARRAYOID };
        let context = (*call).context;
        let find = |name, types: &[pg_sys::Oid], info: *mut pg_sys::FmgrInfo| {
            let found = sql::oid(name, types);
            if (*info).fn_oid != found {
                pg_sys::fmgr_info_cxt(found, info, context);
            }
        };
        find(check, &[first, pg_sys::INTERVALOID], &raw mut (*call).check);
        find(look, &[wanted], &raw mut (*call).look);
    }
}

/// An array with this text as its only element.
unsafe fn in_array(element: pg_sys::NullableDatum) -> pg_sys::NullableDatum {
    // SAFETY: the properties are those of the type text.
    unsafe {
        let (mut value, mut null, mut count, mut lower) = (element.value, element.isnull, 1, 1);
        let align = pg_sys::TYPALIGN_INT as std::ffi::c_char;
        let array = pg_sys::construct_md_array(
            &mut value,
            &mut null,
            1,
            &mut count,
            &mut lower,
            pg_sys::TEXTOID,
            -1,
            false,
            align,
        );
        pg_sys::NullableDatum { value: pg_sys::Datum::from(array), isnull: false }
    }
}

/// Waits a while, unless it is over; says whether to look again.
#[pg_guard]
unsafe extern "C-unwind" fn go_on(call: *mut Call, over: bool, deadline: i64) -> bool {
    // SAFETY: the caller's own call.
    let call = unsafe { &mut *call };
    call.looked = true;
    let moment = now();
    if over && !call.vain || moment >= deadline {
        return false;
    }
    // SAFETY: as above.
    if !unsafe { rest::can_commit(call.fcinfo) } {
        if over {
            return false;
        }
        ereport!(
            PgLogLevel::NOTICE,
            PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
            "not waited, since the transaction cannot be committed here",
            "CALL it outside a transaction block."
        );
        return false;
    }
    // SAFETY: the first argument, as declared. With the rights that every look has: the caller has none on the tables.
    let standing = unsafe {
        let entered = rights::enter(call.fcinfo);
        let standing = lists::enter(call);
        rights::leave(&entered);
        standing
    };
    point!(WaitEntered);
    if standing.new {
        return true;
    }
    // Where there are lists, being woken is the rule, and looking again the exception.
    let sweep = i64::try_from(settings::sweep_interval().as_micros()).unwrap_or(LONGEST_PAUSE);
    let next = lists::next_time();
    // Without a worker, nobody reads tasks for later into the lane of a queue that the core serves.
    let pause = if standing.everywhere && next > moment && !call.vain { sweep } else { call.pause };
    // Many may wait for the same one: those who find nothing then wait longer and longer.
    let comes = match COMES.get() {
        NEVER => NEVER,
        time => time.max(moment.saturating_add(call.pause)),
    };
    call.pause = longer(call.pause);
    let next = if next > moment { next } else { NEVER };
    let until = deadline.min(moment.saturating_add(pause)).min(next).min(comes);
    // SAFETY: nothing of this transaction is in use by the frames above.
    unsafe { rest::rest(call, until) };
    call.rested = true;
    true
}

/// The shape of the row that a procedure with INOUT arguments returns.
unsafe fn shape_of(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::TupleDesc {
    // SAFETY: a catalog lookup for the procedure that was called.
    unsafe {
        let mut shape = std::ptr::null_mut();
        pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &mut shape);
        pg_sys::BlessTupleDesc(shape)
    }
}

/// Such a row of one column.
#[pg_guard]
unsafe extern "C-unwind" fn row_of(shape: pg_sys::TupleDesc, value: bool) -> pg_sys::Datum {
    // SAFETY: the descriptor has the one column that the SQL declares.
    unsafe {
        let (mut values, mut nulls) = ([pg_sys::Datum::from(value)], [false]);
        let row = pg_sys::heap_form_tuple(shape, values.as_mut_ptr(), nulls.as_mut_ptr());
        pg_sys::HeapTupleHeaderGetDatum((*row).t_data)
    }
}

/// Whether an outcome is one that stays.
#[pg_guard]
unsafe extern "C-unwind" fn is_over(outcome: pg_sys::Datum) -> bool {
    // SAFETY: a row of queue_internal.outcome, whose first column is a text.
    unsafe {
        let mut null = false;
        let state = pg_sys::GetAttributeByNum(outcome.cast_mut_ptr(), 1, &mut null);
        null || [&b"completed"[..], b"cancelled", b"failed"].contains(&text_of(state))
    }
}

/// What the lanes say of queues.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
enum Hint {
    Ready,
    NotReady,
    /// The core has to look.
    Nothing,
}

/// Looks at the lanes of the queues, refilled if need be.
#[pg_guard]
unsafe extern "C-unwind" fn look_at_lanes(queues: pg_sys::Datum, hint: *mut Hint) {
    // SAFETY: an array of texts, which the core has checked.
    unsafe {
        *hint = match elements(queues).map(|name| ready::is_ready(name)).collect::<Result<Vec<_>, _>>() {
            Ok(ready) if ready.contains(&true) => Hint::Ready,
            Ok(_) => Hint::NotReady,
            Err(_) => Hint::Nothing,
        };
    }
}
