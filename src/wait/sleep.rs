//! Sleeping without a transaction: ends the current one, waits on the latch, and starts another.

use super::call::{Call, descriptor_of, row_of};
use super::{NextCheck, lists};
use crate::clock::now;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::time::Duration;

unsafe extern "C-unwind" {
    /// Whether the client is still connected; pgrx does not export it.
    fn pq_check_connection() -> bool;
}

declare_symbol!(pg_finfo_try_commit);

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
        row_of(descriptor_of(fcinfo), committed)
    }
}

/// How often, one after the other, a session leaves the check to another one. Then it checks by itself that it may still
/// wait. Not all sessions at the same time.
fn left_to_others() -> u32 {
    // SAFETY: a plain read of a constant of the process.
    9 + unsafe { pg_sys::MyProcPid }.unsigned_abs() % 8
}

/// Ends the transaction, sleeps until the next check or until the latch is set, and starts another one.
pub unsafe fn sleep(call: &mut Call, mut check: NextCheck) {
    // SAFETY: a procedure may commit. If the client itself sent the CALL, nothing uses the transaction that SPI_commit
    // has started, so it can end as well; otherwise an empty transaction stays open.
    unsafe {
        spi(pg_sys::SPI_connect_ext(pg_sys::SPI_OPT_NONATOMIC as i32));
        pg_sys::SPI_commit();
        spi(pg_sys::SPI_finish());
        let alone = !pg_sys::SPI_inside_nonatomic_context();
        if alone {
            pg_sys::CommitTransactionCommand();
        }
        lists::checking(false);
        let left = Leaving;
        point!(WaitSleeps);
        call.checks_for_all = false;
        let mut left_to_others = left_to_others();
        loop {
            sleep_until(check.time());
            point!(WaitWoken);
            end_if_client_is_gone();
            let moment = now();
            if check.alone <= moment || lists::is_woken() {
                break;
            } else if moment < check.for_all {
                // A latch is also set for other reasons, and the clock may be slower than the timer.
                continue;
            }
            let until = lists::checked_until(check.interval);
            call.checks_for_all = until.is_none();
            match until {
                Some(until) if left_to_others > 0 => check.for_all = until,
                _ => break,
            }
            left_to_others -= 1;
        }
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
        lists::leave_lists(false);
    }
}

/// Sleeps until the latch is set or the time has passed.
pub fn sleep_until(time: i64) {
    let left = u64::try_from(time.saturating_sub(now())).unwrap_or(0);
    // The latch counts whole milliseconds.
    let left = Duration::from_millis(left.div_ceil(1000).max(1));
    crate::process::sleep(crate::process::Sleep::Wait, left);
}

/// Ends the session if its client has disconnected, so that another waiter gets the task for which it was woken.
fn end_if_client_is_gone() {
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
pub unsafe fn can_commit(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: the cast follows the node's tag.
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
