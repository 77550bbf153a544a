//! What the launcher and the workers have in common: signals, sleeping, settings, transactions.

use pgrx::prelude::*;
use std::time::Duration;

unsafe extern "C-unwind" {
    // The server's own handlers, as they are: pgrx wraps what it exports in Rust functions.
    fn die(signal: i32);
    #[link_name = "SignalHandlerForConfigReload"]
    fn note_reload(signal: i32);
}

/// Connects the process to the database `oid`, or only to the shared catalogs if it is invalid,
/// and lets signals through. Settings are read anew, because a SIGHUP may have come too early.
pub fn start(oid: pg_sys::Oid) {
    // SAFETY: the first thing a background worker does, with handlers that Postgres's own
    // processes use: `die` ends the process at the next safe point, also within a query.
    unsafe {
        handle(pg_sys::SIGHUP as i32, note_reload);
        handle(pg_sys::SIGTERM as i32, die);
        pg_sys::BackgroundWorkerUnblockSignals();
        pg_sys::BackgroundWorkerInitializeConnectionByOid(oid, pg_sys::InvalidOid, 0);
        pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
    }
}

/// # Safety
/// The handler must be fit to run at any point of the program.
unsafe fn handle(signal: i32, handler: unsafe extern "C-unwind" fn(i32)) {
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(feature = "pg18")]
        pg_sys::pqsignal_be(signal, Some(handler));
        #[cfg(not(feature = "pg18"))]
        pg_sys::pqsignal(signal, Some(handler));
    }
}

/// What a process sleeps for, as pg_stat_activity shows it from PostgreSQL 17 on; before, all of them are
/// called Extension.
#[derive(Clone, Copy)]
pub enum Sleep {
    /// The launcher or a worker, until something is due.
    Main,
    /// A session in queue.wait or queue.wait_result.
    Wait,
    /// A command that needs a database for itself, until the worker has left it.
    Leave,
}

/// The server's number for a wait event.
fn wait_event(_sleep: Sleep) -> u32 {
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    {
        use std::cell::Cell;
        thread_local! {
            static NUMBERS: [Cell<u32>; 3] = const { [Cell::new(0), Cell::new(0), Cell::new(0)] };
        }
        let names = [c"QueueExtMain", c"QueueExtWait", c"QueueExtLeave"];
        NUMBERS.with(|numbers| {
            let number = &numbers[_sleep as usize];
            if number.get() == 0 {
                // SAFETY: a constant name; the same one gets the same number in every process.
                number.set(unsafe { pg_sys::WaitEventExtensionNew(names[_sleep as usize].as_ptr()) });
            }
            number.get()
        })
    }
    #[cfg(not(any(feature = "pg17", feature = "pg18")))]
    pg_sys::PG_WAIT_EXTENSION
}

/// Sleeps until the latch is set or the time is over. Raises if the process shall end; ends it if
/// the postmaster is gone.
pub fn sleep(sleep: Sleep, time: Duration) {
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    let milliseconds = i64::try_from(time.as_millis()).unwrap_or(i64::MAX).min(86_400_000);
    // SAFETY: MyLatch is this process's own.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            events as i32,
            milliseconds as std::ffi::c_long,
            wait_event(sleep),
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    pgrx::check_for_interrupts!();
}

/// Reads the settings again if a SIGHUP asked for it.
pub fn reload_settings() {
    // SAFETY: the flag belongs to this process; its main loop is where it is to be acted on.
    unsafe {
        if pg_sys::ConfigReloadPending != 0 {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
}

/// Runs `body` in a transaction of its own. An ERROR in it that nobody catches ends the process, which the
/// launcher starts again: nothing half-done survives in its memory.
pub fn transaction<R>(body: impl FnOnce() -> R) -> R {
    // SAFETY: start and commit are paired; an ERROR in between does not come back here.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let result = body();
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
        // Otherwise autovacuum would never learn of the rows that the worker touched.
        pg_sys::pgstat_report_stat(false);
        result
    }
}

/// Rolls back the transaction of [`transaction`], after an ERROR in it was caught.
pub fn roll_back() {
    // SAFETY: what the main loops of Postgres's own processes do after an ERROR.
    unsafe {
        pg_sys::AbortCurrentTransaction();
        pg_sys::pgstat_report_stat(false);
    }
}

/// Says in pg_stat_activity what the process does; `None` while it waits.
pub fn report(activity: Option<&std::ffi::CStr>) {
    // SAFETY: the string is static or outlives the call, which copies it.
    unsafe {
        match activity {
            Some(text) => pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, text.as_ptr()),
            None => pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null()),
        }
    }
}
