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

use crate::clock::now;
use crate::lanes::{self, Place, Queue, Wake};
use crate::settings;
use crate::shared::{self, NEVER};
use crate::tables::rows::text_of;
use crate::tables::{self, Use};
use crate::verbs::claim;
use pgrx::prelude::*;
use std::cell::RefCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Without the lists, for instance without the library preloaded: how long the first pause is, by how
/// much the others grow, and how long they become. In microseconds.
const FIRST_PAUSE: i64 = 5_000;
const LONGEST_PAUSE: i64 = 200_000;

unsafe extern "C-unwind" {
    /// Whether the client is still there; not among what pgrx exports.
    fn pq_check_connection() -> bool;
}

declare_symbol!(pg_finfo_queue_wait);
declare_symbol!(pg_finfo_queue_wait_any);
declare_symbol!(pg_finfo_queue_wait_result);
declare_symbol!(pg_finfo_try_commit);

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
    kind: Kind,
    pause: i64,
    /// Whether the first look is over.
    looked: bool,
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
            (*call).begin_look();
            let mut hint = Hint::Nothing;
            look_at_lanes((*call).subject.value, &mut hint);
            let ready = match hint {
                Hint::Ready => true,
                Hint::NotReady => false,
                Hint::Nothing => {
                    if (*call).looked {
                        // The queue may have been dropped.
                        (*call).check();
                    }
                    (*call).look().value() & 1 == 1
                }
            };
            if !go_on(call, ready, deadline) {
                leave(ready);
                return row_of(fcinfo, ready);
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
            (*call).begin_look();
            let outcome = (*call).look();
            if !go_on(call, is_over(outcome), deadline) {
                leave(true);
                (*fcinfo).isnull = false;
                return outcome;
            }
        }
    }
}

/// `queue_internal.try_commit(INOUT committed)`: commits, if the caller's CALL can.
#[unsafe(no_mangle)]
#[pg_guard]
unsafe extern "C-unwind" fn try_commit(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by Postgres as the procedure that engine.sql declares. Nothing that belongs to the
    // transaction is held across the commit.
    unsafe {
        let committed = can_commit(fcinfo);
        if committed {
            spi(pg_sys::SPI_connect_ext(pg_sys::SPI_OPT_NONATOMIC as i32));
            pg_sys::SPI_commit();
            spi(pg_sys::SPI_finish());
        }
        row_of(fcinfo, committed)
    }
}

impl Call {
    /// Has the core check the arguments; returns until when to wait.
    unsafe fn check(&mut self) -> i64 {
        // SAFETY: `prepare` has found the function, which takes the first two arguments.
        unsafe {
            let arguments = (*self.fcinfo).args.as_slice(2);
            crate::verbs::call(&mut self.check, arguments).value() as i64
        }
    }

    /// Forgets what the last look left in memory: there may be many.
    unsafe fn begin_look(&mut self) {
        // SAFETY: the context is this call's own, and holds nothing that is still in use.
        unsafe {
            pg_sys::MemoryContextReset(self.scratch);
            pg_sys::MemoryContextSwitchTo(self.scratch);
        }
    }

    /// Has the core look, at what is there now.
    unsafe fn look(&mut self) -> pg_sys::Datum {
        // SAFETY: `prepare` has found the function. An ERROR in it takes the snapshot with it.
        unsafe {
            see(true);
            let found = crate::verbs::call(&mut self.look, &[self.subject]);
            see(false);
            found
        }
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
        let (check, first, look) = match kind {
            Kind::Queue => (c"check_wait", pg_sys::TEXTOID, c"is_ready"),
            Kind::Queues => (c"check_wait", pg_sys::TEXTARRAYOID, c"is_ready"),
            Kind::Result => (c"check_wait_result", pg_sys::INT8OID, c"outcome"),
        };
        let wanted = if kind == Kind::Result { pg_sys::INT8OID } else { pg_sys::TEXTARRAYOID };
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
        (*call).pause = FIRST_PAUSE;
        let find = |name, types: &[pg_sys::Oid], info: *mut pg_sys::FmgrInfo| {
            pg_sys::fmgr_info_cxt(crate::verbs::core_oid(name, types), info, pg_sys::CurrentMemoryContext);
        };
        find(check, &[first, pg_sys::INTERVALOID], &raw mut (*call).check);
        find(look, &[wanted], &raw mut (*call).look);
        point!(WaitPrepared);
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
    if over || moment >= deadline {
        return false;
    }
    // SAFETY: as above.
    if !unsafe { can_commit(call.fcinfo) } {
        ereport!(
            PgLogLevel::NOTICE,
            PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
            "not waited, since the transaction cannot be committed here",
            "CALL it outside a transaction block."
        );
        return false;
    }
    // SAFETY: the first argument, as declared.
    let standing = unsafe { enter(call) };
    point!(WaitEntered);
    if standing.new {
        return true;
    }
    // Where there are lists, being woken is the rule, and looking again the exception.
    let sweep = i64::try_from(settings::sweep_interval().as_micros()).unwrap_or(LONGEST_PAUSE);
    let next = next_time();
    // Without a worker, nobody reads tasks for later into the lane of a queue that the core serves.
    let pause = if standing.everywhere && next > moment { sweep } else { call.pause };
    call.pause = (call.pause + call.pause / 2).min(LONGEST_PAUSE);
    let next = if next > moment { next } else { NEVER };
    let until = deadline.min(moment.saturating_add(pause)).min(next);
    // SAFETY: nothing of this transaction is in use by the frames above.
    unsafe { rest(call, until) };
    true
}

/// When this process has to look by itself because no worker will wake it: tasks come due, leases end.
fn next_time() -> i64 {
    // SAFETY: a plain read of a constant of the process.
    let database = shared::get().and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }));
    if database.is_some_and(|database| database.worker.pid() != 0) {
        return NEVER;
    }
    let next = |hash: &u64| lanes::with(*hash, |slot| slot.next_time()).unwrap_or(NEVER);
    LISTS.with_borrow(|lists| lists.iter().map(next).min().unwrap_or(NEVER))
}

/// Ends the transaction, sleeps until the time or until woken, and begins another one.
unsafe fn rest(call: &Call, until: i64) {
    // SAFETY: as a procedure may. Where CALL came from the client itself, nobody keeps anything in the
    // transaction that SPI_commit has begun, and it can end as well; else an empty one stays open.
    unsafe {
        spi(pg_sys::SPI_connect_ext(pg_sys::SPI_OPT_NONATOMIC as i32));
        pg_sys::SPI_commit();
        spi(pg_sys::SPI_finish());
        let alone = !pg_sys::SPI_inside_nonatomic_context();
        if alone {
            pg_sys::CommitTransactionCommand();
        }
        let left = Leaving;
        point!(WaitSleeps);
        sleep_until(until);
        point!(WaitWoken);
        end_if_alone();
        std::mem::forget(left);
        if alone {
            pg_sys::StartTransactionCommand();
        }
        pg_sys::MemoryContextSwitchTo(call.context);
        pg_sys::EnsurePortalSnapshotExists();
        point!(WaitBegins);
    }
}

/// Leaves the lists when a session that sleeps is cancelled or terminated.
struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        leave_lists(false);
    }
}

/// Sleeps until the latch is set or the time has come.
fn sleep_until(time: i64) {
    let left = u64::try_from(time.saturating_sub(now())).unwrap_or(0);
    // The latch counts whole milliseconds.
    crate::process::sleep(
        crate::process::Sleep::Wait,
        Duration::from_micros(left).max(Duration::from_millis(1)),
    );
}

/// Ends the session if its client is gone: what it was woken for is the next one's.
fn end_if_alone() {
    // SAFETY: a check of the session's own socket, if it has one; the flags are what the server's own check
    // sets, and the interrupt raises the FATAL that goes with them.
    unsafe {
        if !pg_sys::MyProcPort.is_null() && !pq_check_connection() {
            pg_sys::ClientConnectionLost = 1;
            pg_sys::InterruptPending = 1;
            pgrx::check_for_interrupts!();
        }
    }
}

/// Whether the procedure was called outside a transaction block, and by nothing but procedures
/// that could commit themselves.
unsafe fn can_commit(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: a node's tag tells its type.
    unsafe {
        let context = (*fcinfo).context;
        !context.is_null()
            && (*context).type_ == pg_sys::NodeTag::T_CallContext
            && !(*context.cast::<pg_sys::CallContext>()).atomic
            && !pg_sys::IsSubTransaction()
    }
}

fn spi(code: i32) {
    if code < 0 {
        // SAFETY: the function returns a constant string.
        let name = unsafe { CStr::from_ptr(pg_sys::SPI_result_code_string(code)) };
        error!("SPI failed: {}", name.to_string_lossy());
    }
}

/// What a procedure with one INOUT argument returns: a row of one column.
#[pg_guard]
unsafe extern "C-unwind" fn row_of(fcinfo: pg_sys::FunctionCallInfo, value: bool) -> pg_sys::Datum {
    // SAFETY: the descriptor has the one column that the SQL declares.
    unsafe {
        let mut shape = std::ptr::null_mut();
        pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &mut shape);
        let (mut values, mut nulls) = ([pg_sys::Datum::from(value)], [false]);
        let row =
            pg_sys::heap_form_tuple(pg_sys::BlessTupleDesc(shape), values.as_mut_ptr(), nulls.as_mut_ptr());
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
        *hint = match elements(queues).map(|name| claim::is_ready(name)).collect::<Result<Vec<_>, _>>() {
            Ok(ready) if ready.contains(&true) => Hint::Ready,
            Ok(_) => Hint::NotReady,
            Err(_) => Hint::Nothing,
        };
    }
}

unsafe fn elements<'a>(queues: pg_sys::Datum) -> impl Iterator<Item = &'a [u8]> {
    // SAFETY: an array of texts without nulls.
    unsafe {
        let (mut values, mut count) = (std::ptr::null_mut(), 0);
        let array = pg_sys::pg_detoast_datum(queues.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
        let align = pg_sys::TYPALIGN_INT as std::ffi::c_char;
        pg_sys::deconstruct_array(
            array,
            pg_sys::TEXTOID,
            -1,
            false,
            align,
            &mut values,
            std::ptr::null_mut(),
            &mut count,
        );
        (0..count as usize).map(move |i| text_of(*values.add(i)))
    }
}

thread_local! {
    /// The lanes in whose lists this process stands.
    static LISTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Where a process stands that waits.
struct Standing {
    /// In a list in which it did not stand before.
    new: bool,
    /// In all the lists that there should be.
    everywhere: bool,
}

/// Enters the lists of those who wait for what the call waits for.
unsafe fn enter(call: &Call) -> Standing {
    leave_in_any_case();
    // SAFETY: the arguments were checked.
    unsafe {
        if call.kind == Kind::Result {
            let place = shared::get().map(|shared| shared.results.enter(call.subject.value.value() as i64));
            return place.map_or(Standing { new: false, everywhere: false }, Standing::from);
        }
        let mut standing = Standing { new: false, everywhere: true };
        let tables = if lanes::available() { tables::open(Use::Claim).ok() } else { None };
        let Some(tables) = tables else { return Standing { everywhere: false, ..standing } };
        for name in elements(call.subject.value) {
            let queue = Queue::new(tables.tasks, name);
            let place = lanes::with_or_new(&queue, |slot| slot.waiters.enter()).unwrap_or(Place::None);
            if place == Place::New {
                expect(&queue);
                LISTS.with_borrow_mut(|lists| {
                    if !lists.contains(&queue.hash()) {
                        lists.push(queue.hash());
                    }
                });
            }
            let Standing { new, everywhere } = Standing::from(place);
            standing = Standing { new: standing.new | new, everywhere: standing.everywhere & everywhere };
        }
        standing
    }
}

impl From<Place> for Standing {
    fn from(place: Place) -> Self {
        Self { new: place == Place::New, everywhere: place != Place::None }
    }
}

/// Has the lists be left when a transaction fails, and when a session is terminated while it sleeps and has no
/// transaction.
fn leave_in_any_case() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the functions only touch shared memory, which is there until later; the library is never
        // unloaded.
        unsafe {
            pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::from(0));
            pg_sys::RegisterXactCallback(Some(at_end_of_transaction), std::ptr::null_mut());
        }
    }
}

unsafe extern "C-unwind" fn at_exit(_code: i32, _argument: pg_sys::Datum) {
    leave_lists(false);
}

unsafe extern "C-unwind" fn at_end_of_transaction(
    event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    if event == pg_sys::XactEvent::XACT_EVENT_ABORT {
        leave_lists(false);
    }
}

/// Has the worker wake the waiters of a lane when a task comes due.
fn expect(queue: &Queue<'_>) {
    let next = lanes::with(queue.hash(), |slot| slot.next_time());
    // SAFETY: a plain read of a constant of the process.
    let database = shared::get().and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }));
    if let (Some(next), Some(database)) = (next, database) {
        database.lane_time(next);
    }
}

/// Leaves all lists. `served` says whether this process takes what it was woken for.
#[pg_guard]
unsafe extern "C-unwind" fn leave(served: bool) {
    leave_lists(served);
    point!(WaitLeft);
}

/// The same, also for the end of a transaction that failed.
pub fn leave_lists(served: bool) {
    if let Some(shared) = shared::get() {
        shared.results.leave();
    }
    LISTS.with_borrow_mut(|lists| {
        // Who waits for several queues may claim from any of them, also from one that gets a task this very
        // moment: what it was woken for is left to the next one in each, who may look in vain.
        let takes = served && lists.len() == 1;
        for hash in lists.drain(..) {
            let next = lanes::with(hash, |slot| slot.leave(takes));
            next.flatten().into_iter().for_each(Wake::now);
        }
    });
}
