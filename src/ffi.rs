//! Calling functions of the server that pgrx does not wrap.

use pgrx::prelude::*;

/// Calls a function of the server that may raise.
///
/// # Safety
/// The call is sound, and what it holds need not be dropped if it raises.
pub unsafe fn guarded<R>(call: impl FnOnce() -> R) -> R {
    // SAFETY: the caller's promise.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(call) }
}
