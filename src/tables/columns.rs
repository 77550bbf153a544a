//! The columns that this library knows, by name and type. Tables that have others are a user's, or those of
//! another version of the extension, and not a single row of them may be read or written natively.

use pg_sys::{BOOLOID, FLOAT8OID, INT2OID, INT4OID, INT8OID, INTERVALOID, JSONBOID, TEXTOID, TIMESTAMPTZOID};
use pgrx::prelude::*;
use std::ffi::CStr;

/// A column: its name and type.
pub type Column = (&'static CStr, pg_sys::Oid);

/// Whether a table or an index begins with these columns, whatever comes behind them.
///
/// # Safety
/// The shape of an open relation.
pub unsafe fn begins_with(shape: pg_sys::TupleDesc, columns: &[Column]) -> bool {
    // SAFETY: the caller's promise; the columns are counted first.
    unsafe {
        (*shape).natts as usize >= columns.len()
            && columns.iter().enumerate().all(|(i, (name, kind))| {
                let attribute = super::rows::attribute(shape, i);
                // One that was dropped has no type.
                (*attribute).atttypid == *kind && CStr::from_ptr((*attribute).attname.data.as_ptr()) == *name
            })
    }
}

pub const TASKS: &[Column] = &[
    (c"id", INT8OID),
    (c"queue", TEXTOID),
    (c"state", TEXTOID),
    (c"priority", INT4OID),
    (c"run_at", TIMESTAMPTZOID),
    (c"attempt", INT4OID),
    (c"max_attempts", INT4OID),
    (c"token", INT8OID),
    (c"gate", INT2OID),
    (c"lease_until", TIMESTAMPTZOID),
    (c"worker", TEXTOID),
    (c"claimed_at", TIMESTAMPTZOID),
    (c"updated_at", TIMESTAMPTZOID),
    (c"created_at", TIMESTAMPTZOID),
    (c"cancel_requested_at", TIMESTAMPTZOID),
    (c"key", TEXTOID),
    (c"group_key", TEXTOID),
    (c"backoff", JSONBOID),
    (c"headers", JSONBOID),
    (c"payload", JSONBOID),
    (c"progress", JSONBOID),
    (c"errors", JSONBOID),
];
pub const HISTORY: &[Column] = &[
    (c"id", INT8OID),
    (c"queue", TEXTOID),
    (c"state", TEXTOID),
    (c"priority", INT4OID),
    (c"run_at", TIMESTAMPTZOID),
    (c"attempt", INT4OID),
    (c"max_attempts", INT4OID),
    (c"token", INT8OID),
    (c"worker", TEXTOID),
    (c"claimed_at", TIMESTAMPTZOID),
    (c"created_at", TIMESTAMPTZOID),
    (c"finished_at", TIMESTAMPTZOID),
    (c"key", TEXTOID),
    (c"group_key", TEXTOID),
    (c"headers", JSONBOID),
    (c"payload", JSONBOID),
    (c"progress", JSONBOID),
    (c"errors", JSONBOID),
    (c"result", JSONBOID),
];
pub const QUEUES: &[Column] = &[
    (c"name", TEXTOID),
    (c"lease", INTERVALOID),
    (c"max_attempts", INT4OID),
    (c"backoff_kind", TEXTOID),
    (c"backoff_base", INTERVALOID),
    (c"backoff_max", INTERVALOID),
    (c"backoff_jitter", FLOAT8OID),
    (c"paused_at", TIMESTAMPTZOID),
    (c"max_running", INT4OID),
    (c"max_running_per_group", INT4OID),
    (c"rate_limit", INT4OID),
    (c"rate_period", INTERVALOID),
    (c"delayed_head", TEXTOID),
    (c"fair_groups", BOOLOID),
    (c"ageing", INTERVALOID),
    (c"key_ttl", INTERVALOID),
    (c"on_predecessor_failure", TEXTOID),
    (c"keep_history", BOOLOID),
    (c"created_at", TIMESTAMPTZOID),
];
/// As far as triggers look.
pub const DEAD_LETTERS: &[Column] = &[
    (c"id", INT8OID),
    (c"queue", TEXTOID),
    (c"priority", INT4OID),
    (c"run_at", TIMESTAMPTZOID),
    (c"attempt", INT4OID),
    (c"max_attempts", INT4OID),
    (c"token", INT8OID),
    (c"worker", TEXTOID),
    (c"claimed_at", TIMESTAMPTZOID),
    (c"created_at", TIMESTAMPTZOID),
    (c"failed_at", TIMESTAMPTZOID),
];
/// The mark of tokens.
pub const TOKEN_MARK: &[Column] = &[(c"reached", INT8OID), (c"timeline", INT8OID)];
/// As far as triggers look.
pub const EVENTS: &[Column] = &[(c"id", INT8OID), (c"queue", TEXTOID)];
/// What native claims read of an event.
pub mod event {
    pub const DUE_AT: usize = 4;
    pub const COUNT: usize = 5;
}
/// The events as far as native claims read them.
pub const EVENTS_READ: [Column; event::COUNT] = [
    (c"id", INT8OID),
    (c"queue", TEXTOID),
    (c"group_key", TEXTOID),
    (c"task_id", INT8OID),
    (c"due_at", TIMESTAMPTZOID),
];
/// What the primary key of the events begins with.
pub const EVENTS_KEY: [Column; 2] = [(c"queue", TEXTOID), (c"due_at", TIMESTAMPTZOID)];
/// What the primary key of the dependencies begins with.
pub const DEPENDENCIES_KEY: [Column; 1] = [(c"predecessor_id", INT8OID)];
