//! How a procedure commits and then waits without a transaction.
//!
//! What SQL waits with, `pg_sleep`, runs in a query, and a query holds a snapshot: a waiting session
//! would keep vacuum from cleaning up behind everybody. A procedure may commit where CALL was said
//! outside a transaction block; after that, this waits on the latch with nothing in its hands.

use pgrx::prelude::*;
use std::ffi::CStr;
use std::time::{Duration, Instant};

#[unsafe(no_mangle)]
extern "C" fn pg_finfo_commit_and_wait() -> &'static pg_sys::Pg_finfo_record {
    const V1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &V1
}

/// `queue_internal.commit_and_wait`: commits and waits, if the caller's CALL can commit; does
/// nothing if not. The answer says which it was.
#[unsafe(no_mangle)]
#[pg_guard]
unsafe extern "C-unwind" fn commit_and_wait(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by Postgres as the procedure that engine.sql declares, with two arguments.
    // Nothing that belongs to the transaction is held across the commit; after it the
    // memory context is the caller's again, which outlives transactions as the caller does.
    unsafe {
        let committed = can_commit(fcinfo);
        if committed {
            let seconds = (*fcinfo).args.as_slice(2)[0];
            let seconds = f64::from_datum(seconds.value, seconds.isnull).unwrap_or_default();
            spi(pg_sys::SPI_connect_ext(pg_sys::SPI_OPT_NONATOMIC as i32));
            // Starts the next transaction at once, but one without a snapshot or an id.
            pg_sys::SPI_commit();
            wait(Duration::try_from_secs_f64(seconds).unwrap_or_default());
            spi(pg_sys::SPI_finish());
        }
        row_of(fcinfo, committed)
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

/// Waits on the latch; a cancelled or terminated session stops at once.
fn wait(time: Duration) {
    let end = Instant::now() + time;
    while let left = end.saturating_duration_since(Instant::now())
        && !left.is_zero()
    {
        // The latch counts whole milliseconds.
        crate::process::sleep(left.max(Duration::from_millis(1)));
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
unsafe fn row_of(fcinfo: pg_sys::FunctionCallInfo, value: bool) -> pg_sys::Datum {
    // SAFETY: the descriptor has the one column that engine.sql declares.
    unsafe {
        let mut shape = std::ptr::null_mut();
        pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &mut shape);
        let (mut values, mut nulls) = ([pg_sys::Datum::from(value)], [false]);
        let row =
            pg_sys::heap_form_tuple(pg_sys::BlessTupleDesc(shape), values.as_mut_ptr(), nulls.as_mut_ptr());
        pg_sys::HeapTupleHeaderGetDatum((*row).t_data)
    }
}
