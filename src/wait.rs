//! Waiting without a transaction: queue.wait and queue.wait_result.
//!
//! `pg_sleep` runs in a query, and a query holds a snapshot: a session that waits in it keeps vacuum from removing dead
//! tuples. But a procedure can commit if it was called outside a transaction block. After the commit these procedures
//! wait on the latch without a snapshot, and without a transaction if the client itself sent the CALL.
//!
//! A session first enters a list of waiters, then checks once more, and then sleeps: a transaction that commits after
//! the check finds it in the list. Waking a session removes it from the list; if it then finds nothing, because another
//! one was quicker, it enters again. Correctness does not depend on being woken, because waiting sessions also check by
//! themselves.

mod call;
mod lists;
mod process;
mod sleep;
mod workers;

use crate::clock::now;
use crate::datum::text_of;
use crate::names::elements;
use crate::rights;
use crate::settings;
use crate::shared::NEVER;
use crate::verbs::ready;
use call::{Call, Kind, begin_check, prepare, row_of};
use lists::Standing;
use pgrx::prelude::*;
pub use process::Waiting;
use std::cell::Cell;

/// The first and the longest pause of a session that is not in the lists, such as without preloading, in microseconds.
/// Each pause is half as long again as the one before.
const FIRST_PAUSE: i64 = 5_000;
const LONGEST_PAUSE: i64 = 200_000;

declare_symbol!(pg_finfo_queue_wait);
declare_symbol!(pg_finfo_queue_wait_any);
declare_symbol!(pg_finfo_queue_wait_result);

thread_local! {
    /// The time that the last check set with `retry_at`.
    static RETRY_AT: Cell<i64> = const { Cell::new(NEVER) };
    /// When the transaction began in which the last wait of this session returned that there is a task.
    static READY_IN: Cell<i64> = const { Cell::new(NEVER) };
    /// What SQL found for the last wait of this session, and the pause before it is returned again.
    static LAST: Cell<Option<(i64, i64)>> = const { Cell::new(None) };
}

/// Sets the time at which a rate bucket has a start again, because no session will wake this one then.
pub fn retry_at(time: i64) {
    RETRY_AT.set(RETRY_AT.get().min(time));
}

/// `queue.wait(queue, timeout, INOUT ready, worker)`. Without pgrx's guard, for the reason given in verbs.rs: the checks in SQL
/// raise errors with their own SQLSTATEs, which jump over these frames; nothing in them has to be dropped.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn queue_wait(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by Postgres as the procedure that wait.sql declares.
    unsafe { wait_for_task(fcinfo, false) }
}

/// `queue.wait(queues, timeout, INOUT ready, worker)`.
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
        let deadline = (*call).check_arguments();
        loop {
            begin_check(call);
            let mut hint = Hint::Unknown;
            let entered = rights::enter(fcinfo);
            check_lanes((*call).subject.value, &mut hint);
            rights::leave(&entered);
            (*call).asked_lanes = hint != Hint::Unknown;
            let ready = match hint {
                Hint::Ready => true,
                Hint::NotReady => false,
                Hint::Unknown => {
                    if (*call).checked {
                        // The queue may have been dropped.
                        (*call).check_arguments();
                    }
                    (*call).find_first()
                }
            };
            // queue.take has claimed in vain since. The pause is in another transaction, so that take does not give up.
            let transaction = pg_sys::GetCurrentTransactionStartTimestamp();
            (*call).repeated |= ready && !(*call).slept && READY_IN.get() == transaction;
            if !wait_step(call, ready, deadline) {
                READY_IN.set(if ready { pg_sys::GetCurrentTransactionStartTimestamp() } else { NEVER });
                lists::leave(ready, (*call).checks_for_all);
                return row_of((*call).descriptor, ready);
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
        let deadline = (*call).check_arguments();
        loop {
            begin_check(call);
            let outcome = (*call).find().unwrap_or(pg_sys::Datum::null());
            if !wait_step(call, is_final(outcome), deadline) {
                lists::leave(true, false);
                (*fcinfo).isnull = false;
                return outcome;
            }
        }
    }
}

/// A claim has succeeded: what the last wait found was no false hint.
pub fn claimed() {
    READY_IN.set(NEVER);
    LAST.set(None);
}

/// The pause after this one.
fn longer(pause: i64) -> i64 {
    (pause + pause / 2).min(LONGEST_PAUSE)
}

/// Sleeps, unless the wait is over; returns whether to check again.
#[pg_guard]
unsafe extern "C-unwind" fn wait_step(call: *mut Call, over: bool, deadline: i64) -> bool {
    // SAFETY: the caller's own call.
    let call = unsafe { &mut *call };
    call.checked = true;
    let moment = now();
    if over && !call.repeated || moment >= deadline {
        return false;
    }
    // SAFETY: as above.
    if !unsafe { sleep::can_commit(call.fcinfo) } {
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
    // SAFETY: the first argument, as declared. With the rights of the owner: the caller has none on the tables.
    let standing = unsafe {
        let entered = rights::enter(call.fcinfo);
        let standing = lists::enter(call.kind, call.subject.value);
        if call.kind != Kind::Result {
            lists::show(call.worker(), call.began);
        }
        rights::leave(&entered);
        standing
    };
    point!(WaitEntered);
    if standing.new {
        return true;
    }
    let mut check = next_check(&standing, call.repeated, &mut call.pause, moment);
    check.alone = check.alone.min(deadline);
    if !call.asked_lanes {
        // SQL finds one task, and does not say whether there are more, for which the next session would have to be woken.
        check.alone = check.time();
    }
    // SAFETY: nothing of this transaction is in use by the frames above.
    unsafe { sleep::sleep(call, check) };
    call.slept = true;
    true
}

/// When a session in the lists checks again by itself.
struct NextCheck {
    /// Whatever others do.
    alone: i64,
    /// Unless another session that waits for the same queues has checked within the interval: one check is enough for all.
    for_all: i64,
    interval: i64,
}

impl NextCheck {
    fn time(&self) -> i64 {
        self.alone.min(self.for_all)
    }
}

/// `repeated` means that the session should not sleep for long, although it is in the lists. The pause grows.
fn next_check(standing: &Standing, repeated: bool, pause: &mut i64, moment: i64) -> NextCheck {
    let interval = i64::try_from(settings::sweep_interval().as_micros()).unwrap_or(LONGEST_PAUSE);
    let next = lists::next_time();
    // Without a worker, the lane of a queue whose claims fall back to SQL is not refilled.
    let is_woken = standing.everywhere && next > moment && !repeated;
    let paused = if is_woken { NEVER } else { moment.saturating_add(*pause) };
    // A session in all lists is usually woken, and rarely has to check by itself.
    let for_all = if is_woken { moment.saturating_add(interval) } else { NEVER };
    // Many sessions may wait for the same task: those that do not get it pause longer each time.
    let retry_at = match RETRY_AT.get() {
        NEVER => NEVER,
        time => time.max(moment.saturating_add(*pause)),
    };
    *pause = longer(*pause);
    let next = if next > moment { next } else { NEVER };
    NextCheck { alone: paused.min(next).min(retry_at), for_all, interval }
}

/// Whether a task with this outcome has ended.
#[pg_guard]
unsafe extern "C-unwind" fn is_final(outcome: pg_sys::Datum) -> bool {
    // SAFETY: a row of queue_internal.outcome, whose first column is a text.
    unsafe {
        let mut null = false;
        let state = pg_sys::GetAttributeByNum(outcome.cast_mut_ptr(), 1, &mut null);
        null || [&b"completed"[..], b"cancelled", b"failed"].contains(&text_of(state))
    }
}

/// Whether the lanes of the queues have a task.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
enum Hint {
    Ready,
    NotReady,
    /// SQL has to check.
    Unknown,
}

/// Checks the lanes of the queues, and refills them if needed.
#[pg_guard]
unsafe extern "C-unwind" fn check_lanes(queues: pg_sys::Datum, hint: *mut Hint) {
    // SAFETY: an array of texts, which SQL has checked.
    unsafe {
        *hint = match elements(queues).map(|name| ready::is_ready(name)).collect::<Result<Vec<_>, _>>() {
            Ok(ready) if ready.contains(&true) => Hint::Ready,
            Ok(_) => Hint::NotReady,
            Err(_) => Hint::Unknown,
        };
    }
}
