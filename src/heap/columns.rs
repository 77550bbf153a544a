//! The columns that this library knows, by name, type and number. A table with other columns was altered by a user or
//! belongs to another version of the extension; the native fast path does not read or write it.

use crate::datum::attribute;
use pg_sys::{BOOLOID, FLOAT8OID, INT2OID, INT4OID, INT8OID, INTERVALOID, JSONBOID, TEXTOID, TIMESTAMPTZOID};
use pgrx::prelude::*;
use std::ffi::CStr;

/// A column: its name and type.
pub type Column = (&'static CStr, pg_sys::Oid);

/// Whether these are the first columns of a table or an index.
///
/// # Safety
/// The descriptor of an open relation.
pub unsafe fn begins_with(descriptor: pg_sys::TupleDesc, columns: &[Column]) -> bool {
    // SAFETY: the caller's promise; the columns are counted first.
    unsafe {
        (*descriptor).natts as usize >= columns.len()
            && columns.iter().enumerate().all(|(i, (name, kind))| {
                let attribute = attribute(descriptor, i);
                // A dropped column has no type.
                (*attribute).atttypid == *kind && CStr::from_ptr((*attribute).attname.data.as_ptr()) == *name
            })
    }
}

/// Defines the columns of a table: the list of their names and types, and a module with their numbers, counted from 0.
macro_rules! columns {
    ($($(#[$doc:meta])* $list:ident, $numbers:ident: { $($number:ident $name:literal $kind:ident),+ $(,)? })+) => {$(
        $(#[$doc])*
        pub const $list: &[Column] = &[$(($name, $kind)),+];

        $(#[$doc])*
        #[allow(dead_code)]
        pub mod $numbers {
            #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
            enum Number { $($number),+ }
            $(pub const $number: usize = Number::$number as usize;)+
            pub const COUNT: usize = super::$list.len();
        }
    )+};
}

columns! {
    /// The columns of `queue.tasks`.
    TASKS, task: {
        ID c"id" INT8OID,
        QUEUE c"queue" TEXTOID,
        STATE c"state" TEXTOID,
        PRIORITY c"priority" INT4OID,
        RUN_AT c"run_at" TIMESTAMPTZOID,
        ATTEMPT c"attempt" INT4OID,
        MAX_ATTEMPTS c"max_attempts" INT4OID,
        TOKEN c"token" INT8OID,
        ADMISSION c"admission" INT2OID,
        LEASE_UNTIL c"lease_until" TIMESTAMPTZOID,
        WORKER c"worker" TEXTOID,
        CLAIMED_AT c"claimed_at" TIMESTAMPTZOID,
        UPDATED_AT c"updated_at" TIMESTAMPTZOID,
        CREATED_AT c"created_at" TIMESTAMPTZOID,
        CANCEL_REQUESTED_AT c"cancel_requested_at" TIMESTAMPTZOID,
        KEY c"key" TEXTOID,
        GROUP_KEY c"group_key" TEXTOID,
        BACKOFF c"backoff" JSONBOID,
        KIND c"kind" TEXTOID,
        LEASE c"lease" INTERVALOID,
        TIMEOUT c"timeout" INTERVALOID,
        START_BY c"start_by" TIMESTAMPTZOID,
        WEIGHT c"weight" INT4OID,
        HEADERS c"headers" JSONBOID,
        PAYLOAD c"payload" JSONBOID,
        PROGRESS c"progress" JSONBOID,
        ERRORS c"errors" JSONBOID,
    }
    /// The columns of `queue.history`.
    HISTORY, history: {
        ID c"id" INT8OID,
        QUEUE c"queue" TEXTOID,
        STATE c"state" TEXTOID,
        PRIORITY c"priority" INT4OID,
        RUN_AT c"run_at" TIMESTAMPTZOID,
        ATTEMPT c"attempt" INT4OID,
        MAX_ATTEMPTS c"max_attempts" INT4OID,
        TOKEN c"token" INT8OID,
        WORKER c"worker" TEXTOID,
        CLAIMED_AT c"claimed_at" TIMESTAMPTZOID,
        CREATED_AT c"created_at" TIMESTAMPTZOID,
        FINISHED_AT c"finished_at" TIMESTAMPTZOID,
        KEY c"key" TEXTOID,
        GROUP_KEY c"group_key" TEXTOID,
        KIND c"kind" TEXTOID,
        LEASE c"lease" INTERVALOID,
        TIMEOUT c"timeout" INTERVALOID,
        START_BY c"start_by" TIMESTAMPTZOID,
        WEIGHT c"weight" INT4OID,
        HEADERS c"headers" JSONBOID,
        PAYLOAD c"payload" JSONBOID,
        PROGRESS c"progress" JSONBOID,
        ERRORS c"errors" JSONBOID,
        RESULT c"result" JSONBOID,
    }
    /// The columns of `queue.queues`.
    QUEUES, queue: {
        NAME c"name" TEXTOID,
        LEASE c"lease" INTERVALOID,
        TIMEOUT c"timeout" INTERVALOID,
        TTL c"ttl" INTERVALOID,
        ON_EXPIRED c"on_expired" TEXTOID,
        MAX_QUEUED c"max_queued" INT4OID,
        MAX_ATTEMPTS c"max_attempts" INT4OID,
        BACKOFF_KIND c"backoff_kind" TEXTOID,
        BACKOFF_BASE c"backoff_base" INTERVALOID,
        BACKOFF_MAX c"backoff_max" INTERVALOID,
        BACKOFF_JITTER c"backoff_jitter" FLOAT8OID,
        PAUSED_AT c"paused_at" TIMESTAMPTZOID,
        MAX_RUNNING c"max_running" INT4OID,
        MAX_RUNNING_PER_GROUP c"max_running_per_group" INT4OID,
        RATE_LIMIT c"rate_limit" INT4OID,
        GROUP_RATE_LIMIT c"group_rate_limit" INT4OID,
        RATE_PERIOD c"rate_period" INTERVALOID,
        DELAYED_HEAD c"delayed_head" TEXTOID,
        FAIR_GROUPS c"fair_groups" BOOLOID,
        AGEING c"ageing" INTERVALOID,
        KEY_TTL c"key_ttl" INTERVALOID,
        ON_PREDECESSOR_FAILURE c"on_predecessor_failure" TEXTOID,
        KEEP_HISTORY c"keep_history" BOOLOID,
        KEEP_PAYLOADS c"keep_payloads" BOOLOID,
        DURABLE_LEASES c"durable_leases" TEXTOID,
        CREATED_AT c"created_at" TIMESTAMPTZOID,
    }
    /// The first columns of `queue.dead_letters`, which triggers read.
    DEAD_LETTERS, dead_letter: {
        ID c"id" INT8OID,
        QUEUE c"queue" TEXTOID,
        PRIORITY c"priority" INT4OID,
        RUN_AT c"run_at" TIMESTAMPTZOID,
        ATTEMPT c"attempt" INT4OID,
        MAX_ATTEMPTS c"max_attempts" INT4OID,
        TOKEN c"token" INT8OID,
        WORKER c"worker" TEXTOID,
        CLAIMED_AT c"claimed_at" TIMESTAMPTZOID,
        CREATED_AT c"created_at" TIMESTAMPTZOID,
        FAILED_AT c"failed_at" TIMESTAMPTZOID,
    }
    /// The columns of `queue_internal.token_mark`.
    TOKEN_MARK, token_mark: {
        REACHED c"reached" INT8OID,
        TIMELINE c"timeline" INT8OID,
    }
    /// The first columns of `queue_internal.events`, which claims read.
    EVENTS, event: {
        ID c"id" INT8OID,
        QUEUE c"queue" TEXTOID,
        GROUP_KEY c"group_key" TEXTOID,
        TASK_ID c"task_id" INT8OID,
        DUE_AT c"due_at" TIMESTAMPTZOID,
    }
}

/// The columns of an event that triggers read.
pub const EVENT_QUEUE: &[Column] = EVENTS.split_at(event::QUEUE + 1).0;
/// The first columns of the primary key of the events.
pub const EVENTS_KEY: [Column; 2] = [(c"queue", TEXTOID), (c"due_at", TIMESTAMPTZOID)];
/// The first column of the primary key of the dependencies.
pub const DEPENDENCIES_KEY: [Column; 1] = [(c"predecessor_id", INT8OID)];
