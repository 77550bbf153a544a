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

/// Prevents that pgrx adds a backtrace to the detail of each ERROR that passes through this library, where the environment of
/// the server has RUST_BACKTRACE. It would take 40 MB in every session that is cancelled once, and show clients the paths of
/// the build.
pub fn without_backtraces() {
    // Each library has its own copy of the standard library, which looks at these variables once.
    const VARIABLES: [&str; 2] = ["RUST_LIB_BACKTRACE", "RUST_BACKTRACE"];
    let values = VARIABLES.map(std::env::var_os);
    // SAFETY: a process of PostgreSQL that loads a library has one thread.
    unsafe {
        VARIABLES.iter().for_each(|name| std::env::remove_var(name));
        drop(std::backtrace::Backtrace::capture());
        for (name, value) in VARIABLES.iter().zip(&values) {
            value.iter().for_each(|value| std::env::set_var(name, value));
        }
    }
}
