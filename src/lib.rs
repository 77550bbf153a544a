//! A job queue that lives inside Postgres.
//!
//! The functions are implemented in SQL (`sql/`, listed in [`schema`]). This library adds what SQL cannot do, or not as
//! fast: lanes, which cache the next tasks of each queue in shared memory; a native fast path for the functions on the
//! hot path; waiting without a transaction; and a background worker.

#[macro_use]
mod injection;
#[macro_use]
mod symbols;

mod bounds;
mod catalog;
mod clock;
mod counting;
mod cron;
mod datum;
mod durability;
mod expiry;
mod extension;
mod fallback;
mod ffi;
mod guard;
mod handler;
mod heap;
mod hooks;
mod invalidation;
mod lanes;
mod launcher;
mod names;
mod process;
mod refill;
mod rights;
mod running;
mod schema;
mod settings;
mod shared;
mod stats;
mod tokens;
mod transaction;
mod triggers;
mod verbs;
mod wait;
mod worker;

use pgrx::prelude::*;

#[cfg(not(panic = "unwind"))]
compile_error!("queue_ext must be built with panic = \"unwind\": a panic has to become an ERROR");

pgrx::pg_module_magic!(name, version);

/// Called by Postgres when it loads the library: once in the postmaster if the library is in
/// `shared_preload_libraries`, otherwise in each session that first calls a native function.
#[pg_guard]
extern "C-unwind" fn _PG_init() {
    // SAFETY: plain reads of flags that the postmaster sets before it loads any library.
    let (upgrading, preloading) =
        unsafe { (pg_sys::IsBinaryUpgrade, pg_sys::process_shared_preload_libraries_in_progress) };
    // pg_upgrade drops and creates databases, to which no worker may be connected.
    if upgrading {
        return;
    }
    if preloading {
        settings::define_for_preload();
    }
    ffi::without_backtraces();
    #[cfg(feature = "injection")]
    injection::define();
    settings::define();
    guard::install();
    if preloading {
        shared::request();
        lanes::request();
        hooks::install();
        launcher::register();
    }
}
