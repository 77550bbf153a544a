//! What the launcher and the background workers share: signals, sleeping, settings, transactions.

use pgrx::prelude::*;
use std::time::Duration;

unsafe extern "C-unwind" {
    // Declared here because pgrx would wrap the server's handlers in Rust functions.
    fn die(signal: i32);
    #[link_name = "SignalHandlerForConfigReload"]
    fn note_reload(signal: i32);
}

/// Connects the process to the database `oid`, or only to the shared catalogs if it is invalid, and unblocks signals.
/// Reads the settings again, because a SIGHUP may have come before that.
pub fn start(oid: pg_sys::Oid) {
    start_as(oid, pg_sys::InvalidOid);
}

/// The same, as a role instead of as a superuser. Ends the process if the role may not connect.
pub fn start_as(oid: pg_sys::Oid, role: pg_sys::Oid) {
    // SAFETY: called first in a background worker, with the handlers of the server's own processes: `die` ends the
    // process at the next CHECK_FOR_INTERRUPTS.
    unsafe {
        handle(pg_sys::SIGHUP as i32, note_reload);
        handle(pg_sys::SIGTERM as i32, die);
        pg_sys::BackgroundWorkerUnblockSignals();
        pg_sys::BackgroundWorkerInitializeConnectionByOid(oid, role, 0);
        pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
    }
}

/// # Safety
/// The handler must be async-signal-safe.
unsafe fn handle(signal: i32, handler: unsafe extern "C-unwind" fn(i32)) {
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(feature = "pg18")]
        pg_sys::pqsignal_be(signal, Some(handler));
        #[cfg(not(feature = "pg18"))]
        pg_sys::pqsignal(signal, Some(handler));
    }
}

/// What a process sleeps for. From PostgreSQL 17 on, each has its own wait event; before, all of them are Extension.
#[derive(Clone, Copy)]
pub enum Sleep {
    /// The launcher or a worker in its main loop.
    Main,
    /// A session in queue.wait or queue.wait_result.
    Wait,
    /// A command that waits until the worker has disconnected from a database.
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

/// Sleeps until the latch is set or the time has passed. Raises on an interrupt; exits if the postmaster has died.
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

/// Reads the settings again after a SIGHUP.
pub fn reload_settings() {
    // SAFETY: a flag of this process, which its main loop handles.
    unsafe {
        if pg_sys::ConfigReloadPending != 0 {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
}

/// Runs `body` in a transaction of its own. An ERROR that is not caught ends the process, and the launcher starts a new
/// one with fresh memory.
pub fn transaction<R>(body: impl FnOnce() -> R) -> R {
    // SAFETY: start and commit are paired; an ERROR in between does not return here.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let result = body();
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
        // Otherwise autovacuum would not see the rows that the worker changed.
        pg_sys::pgstat_report_stat(false);
        result
    }
}

/// Rolls back the transaction of [`transaction`], after an ERROR in it was caught.
pub fn roll_back() {
    // SAFETY: as in the main loops of the server's own processes after an ERROR.
    unsafe {
        pg_sys::AbortCurrentTransaction();
        pg_sys::pgstat_report_stat(false);
    }
}

/// Sets the activity in pg_stat_activity; `None` means idle.
pub fn report(activity: Option<&std::ffi::CStr>) {
    // SAFETY: the string is static or outlives the call, which copies it.
    unsafe {
        match activity {
            Some(text) => pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, text.as_ptr()),
            None => pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null()),
        }
    }
}
