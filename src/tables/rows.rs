//! The columns of the tables, by number, and rows as arrays of them.

use crate::lanes::Item;
use pgrx::prelude::*;

/// The columns of `queue.tasks`, counted from 0.
pub mod task {
    pub const ID: usize = 0;
    pub const QUEUE: usize = 1;
    pub const STATE: usize = 2;
    pub const PRIORITY: usize = 3;
    pub const RUN_AT: usize = 4;
    pub const ATTEMPT: usize = 5;
    pub const MAX_ATTEMPTS: usize = 6;
    pub const TOKEN: usize = 7;
    pub const GATE: usize = 8;
    pub const LEASE_UNTIL: usize = 9;
    pub const WORKER: usize = 10;
    pub const CLAIMED_AT: usize = 11;
    pub const UPDATED_AT: usize = 12;
    pub const CREATED_AT: usize = 13;
    pub const CANCEL_REQUESTED_AT: usize = 14;
    pub const KEY: usize = 15;
    pub const GROUP_KEY: usize = 16;
    pub const HEADERS: usize = 18;
    pub const PAYLOAD: usize = 19;
    pub const PROGRESS: usize = 20;
    pub const ERRORS: usize = 21;
    pub const COUNT: usize = 22;
}

/// A row: its values, and which of them are null.
pub struct Row<const N: usize> {
    pub values: [pg_sys::Datum; N],
    pub nulls: [bool; N],
}

impl<const N: usize> Row<N> {
    /// All null.
    pub fn empty() -> Self {
        Self { values: [pg_sys::Datum::from(0); N], nulls: [true; N] }
    }

    /// What the slot holds. The values by reference stay the slot's.
    ///
    /// # Safety
    /// The slot has been deformed and has at least as many columns.
    pub unsafe fn of(slot: *mut pg_sys::TupleTableSlot) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let values = std::slice::from_raw_parts((*slot).tts_values, N);
            let nulls = std::slice::from_raw_parts((*slot).tts_isnull, N);
            Self { values: std::array::from_fn(|i| values[i]), nulls: std::array::from_fn(|i| nulls[i]) }
        }
    }

    /// Sets a column.
    pub fn set(&mut self, column: usize, value: impl Into<pg_sys::Datum>) {
        self.values[column] = value.into();
        self.nulls[column] = false;
    }

    /// Sets a column to a value that may be null.
    pub fn set_option(&mut self, column: usize, value: Option<pg_sys::Datum>) {
        self.nulls[column] = value.is_none();
        self.values[column] = value.unwrap_or_else(|| pg_sys::Datum::from(0));
    }

    /// The value of a column, unless it is null.
    pub fn get(&self, column: usize) -> Option<pg_sys::Datum> {
        (!self.nulls[column]).then_some(self.values[column])
    }

    /// The integer in a column; 0 for null.
    pub fn int(&self, column: usize) -> i32 {
        self.get(column).map_or(0, |value| value.value() as i32)
    }

    /// The bigint or time in a column; 0 for null.
    pub fn long(&self, column: usize) -> i64 {
        self.get(column).map_or(0, |value| value.value() as i64)
    }

    /// Whether the text in a column is this; false for null.
    pub fn is(&self, column: usize, text: &[u8]) -> bool {
        // SAFETY: callers name a column of type text.
        self.get(column).is_some_and(|value| unsafe { text_of(value) } == text)
    }
}

/// What the account of its queue has a task as.
pub fn item_of<const N: usize>(row: &Row<N>) -> Option<Item> {
    const { assert!(N > task::GATE) };
    match row.int(task::GATE) {
        _ if row.is(task::STATE, b"running") => Some(Item::RUNNING),
        _ if row.is(task::STATE, b"waiting") => Some(Item::WAITING),
        _ if !row.is(task::STATE, b"queued") => None,
        0 | 1 => Some(Item::queued(row.long(task::RUN_AT))),
        _ => Some(Item::BEHIND),
    }
}

/// A column of a table's shape, counted from 0.
///
/// # Safety
/// The shape has that column.
pub unsafe fn attribute(shape: pg_sys::TupleDesc, number: usize) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: the caller's promise. From 18 on, the attributes stand behind their compact forms.
    unsafe {
        #[cfg(feature = "pg18")]
        let first = (*shape)
            .compact_attrs
            .as_ptr()
            .add((*shape).natts as usize)
            .cast::<pg_sys::FormData_pg_attribute>();
        #[cfg(not(feature = "pg18"))]
        let first = (*shape).attrs.as_ptr();
        first.add(number)
    }
}

/// The bytes of a text, in the server's encoding. Short texts in a row are not copied.
///
/// # Safety
/// The value is a text, which lives as long as the result.
pub unsafe fn text_of<'a>(value: pg_sys::Datum) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe {
        let text = pg_sys::pg_detoast_datum_packed(value.cast_mut_ptr());
        let (data, length) = (pgrx::varlena::vardata_any(text), pgrx::varlena::varsize_any_exhdr(text));
        std::slice::from_raw_parts(data.cast(), length)
    }
}

/// A text value in the current memory context.
pub fn text(text: &[u8]) -> pg_sys::Datum {
    // SAFETY: copies the bytes.
    unsafe { pg_sys::Datum::from(pg_sys::cstring_to_text_with_len(text.as_ptr().cast(), text.len() as i32)) }
}
