//! The rows that a verb returns.

use super::arguments::Arguments;
use crate::fallback::Reason;
use pgrx::prelude::*;

/// The rows that a call returns, collected in a tuplestore.
pub struct Rows {
    result: *mut pg_sys::ReturnSetInfo,
    store: *mut pg_sys::Tuplestorestate,
    descriptor: pg_sys::TupleDesc,
}

impl Rows {
    /// Begins an empty set. Fails if the caller cannot take a tuplestore.
    pub fn new(arguments: &Arguments) -> Result<Self, Reason> {
        // SAFETY: as in materialize mode: the rows live as long as the query.
        unsafe {
            let result = arguments.result().ok_or(Reason::Argument)?;
            let usable = (*result).allowedModes & pg_sys::SetFunctionReturnMode::SFRM_Materialize as i32 != 0
                && !(*result).expectedDesc.is_null();
            if !usable {
                return Err(Reason::Argument);
            }
            let before = pg_sys::MemoryContextSwitchTo((*(*result).econtext).ecxt_per_query_memory);
            let store = pg_sys::tuplestore_begin_heap(true, false, pg_sys::work_mem);
            let descriptor = pg_sys::CreateTupleDescCopy((*result).expectedDesc);
            pg_sys::MemoryContextSwitchTo(before);
            Ok(Self { result, store, descriptor })
        }
    }

    /// Adds a row; as many columns as the function returns.
    pub fn add(&self, values: &mut [pg_sys::Datum], nulls: &mut [bool]) {
        // SAFETY: the arrays are as long as the descriptor, as native.sql declares it.
        unsafe {
            pg_sys::tuplestore_putvalues(self.store, self.descriptor, values.as_mut_ptr(), nulls.as_mut_ptr())
        };
    }

    /// Returns the rows.
    pub fn done(self) -> pg_sys::Datum {
        self.give();
        pg_sys::Datum::from(0)
    }

    fn give(&self) {
        // SAFETY: the caller allows materialize mode.
        unsafe {
            (*self.result).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            (*self.result).setResult = self.store;
            (*self.result).setDesc = self.descriptor;
        }
    }

    /// Appends the rows that another function has returned in the place of these, and returns all of them.
    ///
    /// # Safety
    /// The other function was called with the same place for its rows, and has returned such rows.
    pub unsafe fn followed_by_returned(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            let returned = (*self.result).setResult;
            if !returned.is_null() {
                let slot =
                    pg_sys::MakeSingleTupleTableSlot(self.descriptor, &raw const pg_sys::TTSOpsMinimalTuple);
                while pg_sys::tuplestore_gettupleslot(returned, true, false, slot) {
                    pg_sys::tuplestore_puttupleslot(self.store, slot);
                }
                pg_sys::ExecDropSingleTupleTableSlot(slot);
                pg_sys::tuplestore_end(returned);
            }
        }
        self.give();
    }

    /// Frees the rows: the SQL implementation returns its own.
    pub fn discard(self) {
        // SAFETY: the tuplestore was not returned.
        unsafe { pg_sys::tuplestore_end(self.store) };
    }
}
