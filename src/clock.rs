//! The server's clock, in Postgres's own measure: microseconds since 2000-01-01 UTC.

use pgrx::prelude::*;

/// The time now, as `clock_timestamp()` has it.
pub fn now() -> i64 {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}
