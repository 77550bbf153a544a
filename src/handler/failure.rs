//! ERRORs of handlers and of the public functions, with their SQLSTATEs.

use crate::names::shown;
use crate::process;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::c_void;
use std::panic::AssertUnwindSafe;

pub const LEASE_LOST: &str = "QX001";
pub const QUERY_CANCELED: &str = "57014";
/// queue.fail keeps only the beginning of a longer error.
const LONGEST_MESSAGE: usize = 65_536;
/// Raised when another session has the extension locked, or has dropped it.
const LOCKED: &str = "55006";
const LOCKED_MESSAGE: &str = "the extension is being altered or dropped";

/// An ERROR that was caught.
pub struct Failure {
    pub sqlstate: String,
    pub message: String,
    code: PgSqlErrorCode,
}

/// Runs `body` in a transaction, which an ERROR rolls back.
pub fn attempt<R>(body: impl FnOnce() -> R) -> Result<R, Failure> {
    catch(|| process::transaction(body))
}

/// Runs `body`; an ERROR rolls back the transaction, if there is one.
pub fn catch<R>(body: impl FnOnce() -> R) -> Result<R, Failure> {
    PgTryBuilder::new(AssertUnwindSafe(|| {
        let _noting = Noting::begin();
        Ok(body())
    }))
    .catch_others(|error| {
        process::roll_back();
        Err(Failure::of(&error))
    })
    .execute()
}

/// Raises the ERROR of a completion while another session alters or drops the extension.
pub fn raise_locked() -> ! {
    ereport!(PgLogLevel::ERROR, PgSqlErrorCode::ERRCODE_OBJECT_IN_USE, LOCKED_MESSAGE);
    unreachable!("an ERROR does not return")
}

impl Failure {
    fn of(error: &CaughtError) -> Self {
        let (CaughtError::PostgresError(error)
        | CaughtError::ErrorReport(error)
        | CaughtError::RustPanic { ereport: error, .. }) = error;
        let code = error.sql_error_code();
        // pgrx replaces SQLSTATEs that it does not know by this one.
        let sqlstate = match code {
            PgSqlErrorCode::ERRCODE_INTERNAL_ERROR => NOTED.get(),
            known => known as i32,
        };
        Self { sqlstate: unpacked(sqlstate), message: error.message().to_owned(), code }
    }

    /// The failure of a task whose handling was interrupted before it began.
    pub fn interrupted() -> Self {
        let code = PgSqlErrorCode::ERRCODE_QUERY_CANCELED;
        Self { sqlstate: QUERY_CANCELED.to_owned(), message: String::new(), code }
    }

    /// What is stored with the task, in the encoding of the database.
    pub fn text(&self) -> Vec<u8> {
        let message: String = self.message.chars().take(LONGEST_MESSAGE).collect();
        format!("{}: {}", self.sqlstate, shown(message.as_bytes())).into_bytes()
    }

    /// Whether a repetition may succeed: after a deadlock, or an interrupt that was meant for a task that has just ended or
    /// came from pg_cancel_backend.
    pub fn is_passing(&self) -> bool {
        self.sqlstate == QUERY_CANCELED || self.sqlstate.starts_with("40")
    }

    pub fn is_lock_on_extension(&self) -> bool {
        self.sqlstate == LOCKED && self.message == LOCKED_MESSAGE
    }

    /// The failure of a handler that was cancelled at the end of its lease.
    pub fn timed_out(&self) -> Self {
        let message = "the handler did not return before the end of its lease".to_owned();
        Self { sqlstate: self.sqlstate.clone(), message, code: self.code }
    }

    /// Logs it.
    pub fn warn(&self, activity: &str, queue: &[u8]) {
        let message =
            format!("the handler of queue \"{}\" stops: {activity} failed: {}", shown(queue), self.message);
        ErrorReport::new(self.code, message, "queue_ext")
            .set_hint("The background worker starts it again, after pauses of up to a minute.")
            .report(PgLogLevel::WARNING);
    }
}

thread_local! {
    /// The SQLSTATE of the last ERROR, as the server packs it.
    static NOTED: Cell<i32> = const { Cell::new(0) };
}

/// Notes the SQLSTATE of each ERROR while it exists. The server calls the function for every message that is raised.
struct Noting {
    /// At an address of its own, because the server's list refers to it.
    _callback: Box<pg_sys::ErrorContextCallback>,
    previous: *mut pg_sys::ErrorContextCallback,
}

impl Noting {
    fn begin() -> Self {
        NOTED.set(PgSqlErrorCode::ERRCODE_INTERNAL_ERROR as i32);
        // SAFETY: a process has one thread, and `drop` removes the callback before it is freed.
        unsafe {
            let previous = pg_sys::error_context_stack;
            let mut callback = Box::new(pg_sys::ErrorContextCallback {
                previous,
                callback: Some(note),
                arg: std::ptr::null_mut(),
            });
            pg_sys::error_context_stack = &raw mut *callback;
            Self { _callback: callback, previous }
        }
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        // SAFETY: after an ERROR too, this is the list as it was before.
        unsafe { pg_sys::error_context_stack = self.previous };
    }
}

unsafe extern "C-unwind" fn note(_argument: *mut c_void) {
    unsafe extern "C-unwind" {
        fn geterrcode() -> i32;
    }
    // SAFETY: the server is processing a message.
    let code = unsafe { geterrcode() };
    // Notices and warnings have the classes 00, 01 and 02.
    if unpacked(code).as_str() >= "03" {
        NOTED.set(code);
    }
}

/// The five characters of an SQLSTATE, each of which the server packs into six bits.
fn unpacked(code: i32) -> String {
    (0..5).map(|place| char::from(b'0' + (code >> (6 * place) & 0x3f) as u8)).collect()
}
