//! Rows as arrays of values. [`super::columns`] has the numbers of the columns.

use crate::datum::text_of;
use pgrx::prelude::*;

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

    /// The values in the slot. Values by reference belong to the slot.
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
