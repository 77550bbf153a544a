//! What a verb was called with, and where its rows go.

use crate::datum::{attribute, text_of};
use crate::fallback::Reason;
use pgrx::prelude::*;
use std::ffi::{CStr, CString};

/// The arguments of a call, by number.
pub struct Arguments {
    fcinfo: pg_sys::FunctionCallInfo,
}

impl Arguments {
    /// # Safety
    /// A call that Postgres makes, as long as it runs.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo) -> Self {
        Self { fcinfo }
    }

    /// Whether the call has as many arguments as the verb, and returns rows of those columns, if any.
    ///
    /// # Safety
    /// As for `new`.
    pub unsafe fn fit(fcinfo: pg_sys::FunctionCallInfo, (count, columns): &super::Shape) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let result = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            let shape = if result.is_null() || (*result).type_ != pg_sys::NodeTag::T_ReturnSetInfo {
                std::ptr::null_mut()
            } else {
                (*result).expectedDesc
            };
            (*fcinfo).nargs == *count
                && (columns.is_empty()
                    || !shape.is_null()
                        && (*shape).natts as usize == columns.len()
                        && columns
                            .iter()
                            .enumerate()
                            .all(|(i, column)| (*attribute(shape, i)).atttypid == *column))
        }
    }

    /// The argument of this number, unless it is null.
    pub fn get(&self, number: usize) -> Option<pg_sys::Datum> {
        // SAFETY: the verbs know how many arguments they were declared with.
        let argument = unsafe { *(*self.fcinfo).args.as_ptr().add(number) };
        (!argument.isnull).then_some(argument.value)
    }

    /// The argument as Postgres passes it.
    pub fn raw(&self, number: usize) -> pg_sys::NullableDatum {
        // SAFETY: as above.
        unsafe { *(*self.fcinfo).args.as_ptr().add(number) }
    }

    /// An argument that must not be null.
    pub fn needed(&self, number: usize) -> Result<pg_sys::Datum, Reason> {
        self.get(number).ok_or(Reason::Argument)
    }

    /// A text that must be a name: 1 to 128 bytes.
    pub fn name(&self, number: usize) -> Result<&[u8], Reason> {
        // SAFETY: declared as text.
        let name = unsafe { text_of(self.needed(number)?) };
        if (1..=128).contains(&name.len()) { Ok(name) } else { Err(Reason::Argument) }
    }

    /// A length of time in microseconds, if it is more than nothing and at most so long, and has neither
    /// days nor months, whose length depends on when.
    pub fn span(&self, number: usize, longest: i64) -> Result<Option<i64>, Reason> {
        let Some(value) = self.get(number) else { return Ok(None) };
        // SAFETY: declared as interval.
        let interval = unsafe { *value.cast_mut_ptr::<pg_sys::Interval>() };
        let plain = interval.day == 0 && interval.month == 0 && (1..=longest).contains(&interval.time);
        if plain { Ok(Some(interval.time)) } else { Err(Reason::Argument) }
    }

    /// The elements of an array of one dimension without nulls.
    pub fn array(&self, number: usize) -> Result<Vec<pg_sys::Datum>, Reason> {
        // SAFETY: declared as an array; the elements live as long as the array.
        unsafe {
            let array =
                pg_sys::pg_detoast_datum(self.needed(number)?.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
            if (*array).ndim > 1 || (*array).dataoffset != 0 {
                return Err(Reason::Argument);
            }
            let (mut length, mut by_value, mut align) = (0, false, 0);
            pg_sys::get_typlenbyvalalign((*array).elemtype, &mut length, &mut by_value, &mut align);
            let (mut elements, mut count) = (std::ptr::null_mut(), 0);
            pg_sys::deconstruct_array(
                array,
                (*array).elemtype,
                length.into(),
                by_value,
                align,
                &mut elements,
                std::ptr::null_mut(),
                &mut count,
            );
            Ok((0..count as usize).map(|i| *elements.add(i)).collect())
        }
    }

    /// Makes the place for the rows that the call returns.
    pub fn rows(&self) -> Result<Rows, Reason> {
        // SAFETY: as a function that returns a set has to: the rows live as long as the query.
        unsafe {
            let result = (*self.fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            let usable = !result.is_null()
                && (*result).type_ == pg_sys::NodeTag::T_ReturnSetInfo
                && (*result).allowedModes & pg_sys::SetFunctionReturnMode::SFRM_Materialize as i32 != 0
                && !(*result).expectedDesc.is_null();
            if !usable {
                return Err(Reason::Argument);
            }
            let before = pg_sys::MemoryContextSwitchTo((*(*result).econtext).ecxt_per_query_memory);
            let store = pg_sys::tuplestore_begin_heap(true, false, pg_sys::work_mem);
            let shape = pg_sys::CreateTupleDescCopy((*result).expectedDesc);
            pg_sys::MemoryContextSwitchTo(before);
            Ok(Rows { result, store, shape })
        }
    }
}

/// The rows that a call returns.
pub struct Rows {
    result: *mut pg_sys::ReturnSetInfo,
    store: *mut pg_sys::Tuplestorestate,
    shape: pg_sys::TupleDesc,
}

impl Rows {
    /// Adds a row; as many columns as the function returns.
    pub fn add(&self, values: &mut [pg_sys::Datum], nulls: &mut [bool]) {
        // SAFETY: the arrays are as long as the shape, as native.sql declares it.
        unsafe {
            pg_sys::tuplestore_putvalues(self.store, self.shape, values.as_mut_ptr(), nulls.as_mut_ptr())
        };
    }

    /// Returns them.
    pub fn done(self) -> pg_sys::Datum {
        // SAFETY: the caller reads them here, as it allowed.
        unsafe {
            (*self.result).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            (*self.result).setResult = self.store;
            (*self.result).setDesc = self.shape;
        }
        pg_sys::Datum::from(0)
    }

    /// Puts behind them what another function has returned in their place, and returns them all.
    ///
    /// # Safety
    /// The other function was called with the same place for its rows, and has returned such rows.
    pub unsafe fn followed_by_returned(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            let returned = (*self.result).setResult;
            if !returned.is_null() {
                let slot =
                    pg_sys::MakeSingleTupleTableSlot(self.shape, &raw const pg_sys::TTSOpsMinimalTuple);
                while pg_sys::tuplestore_gettupleslot(returned, true, false, slot) {
                    pg_sys::tuplestore_puttupleslot(self.store, slot);
                }
                pg_sys::ExecDropSingleTupleTableSlot(slot);
                pg_sys::tuplestore_end(returned);
            }
            (*self.result).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            (*self.result).setResult = self.store;
            (*self.result).setDesc = self.shape;
        }
    }

    /// Gives them up, for the core to return its own.
    pub fn discard(self) {
        // SAFETY: nobody has seen it.
        unsafe { pg_sys::tuplestore_end(self.store) };
    }
}

/// The core's function for an entry point: of the same name and argument types, in schema queue_internal, or with
/// core_ before its name where the entry point is there itself; or its `claim`.
pub fn core_for(native: pg_sys::Oid, claim: bool) -> pg_sys::Oid {
    const CLAIMS: [pg_sys::Oid; 4] = [pg_sys::INTERVALOID, pg_sys::TEXTOID, pg_sys::INT4OID, pg_sys::TEXTOID];
    if claim {
        return core_oid(c"claim", &CLAIMS);
    }
    // SAFETY: catalog lookups in a transaction; the types and the name are ours.
    unsafe {
        let (mut count, mut types) = (0, std::ptr::null_mut());
        pg_sys::get_func_signature(native, &mut types, &mut count);
        let types = std::slice::from_raw_parts(types, count as usize);
        let name = CStr::from_ptr(pg_sys::get_func_name(native));
        let schema = CStr::from_ptr(pg_sys::get_namespace_name(pg_sys::get_func_namespace(native)));
        if schema == c"queue_internal" {
            let name = [b"core_", name.to_bytes()].concat();
            return core_oid(&CString::new(name).unwrap_or_default(), types);
        }
        core_oid(name, types)
    }
}

/// A function of schema queue_internal.
pub fn core_oid(name: &CStr, types: &[pg_sys::Oid]) -> pg_sys::Oid {
    // SAFETY: a catalog lookup in a transaction; the list and its strings are ours.
    unsafe {
        let string = |text: &CStr| pg_sys::makeString(pg_sys::pstrdup(text.as_ptr())).cast();
        let mut names = pg_sys::lappend(std::ptr::null_mut(), string(c"queue_internal"));
        names = pg_sys::lappend(names, string(name));
        let found = pg_sys::LookupFuncName(names, types.len() as i32, types.as_ptr(), true);
        if found == pg_sys::InvalidOid {
            let name = name.to_string_lossy();
            let message = format!("there is no function queue_internal.{name} as the library knows it");
            pgrx::pg_sys::panic::ErrorReport::new(
                PgSqlErrorCode::ERRCODE_UNDEFINED_FUNCTION,
                message,
                "core_oid",
            )
            .set_detail(format!("The library is of version {}.", env!("CARGO_PKG_VERSION")))
            .set_hint(
                "If the extension is of an older version: ALTER EXTENSION queue_ext UPDATE. \
                     If it is of a later one: restart the server, so that it loads the later library.",
            )
            .report(PgLogLevel::ERROR);
        }
        found
    }
}
