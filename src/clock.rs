//! The server's clock, as a TimestampTz: microseconds since 2000-01-01 UTC.

use pgrx::prelude::*;

/// The current time, as `clock_timestamp()` returns it.
pub fn now() -> i64 {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}
