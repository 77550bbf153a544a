//! The arguments of a call.

use crate::datum::{attribute, text_of};
use crate::fallback::Reason;
use pgrx::prelude::*;

/// The number of arguments and the types of the result columns with which native.sql declares a verb. A later version
/// of the extension may declare it differently while this library is still in use.
pub type Signature = (i16, &'static [pg_sys::Oid]);

/// The arguments, by number.
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
    pub fn fit(&self, (count, columns): &Signature) -> bool {
        // SAFETY: the descriptor, if there is one, has `natts` attributes.
        unsafe {
            let descriptor = self.result().map_or(std::ptr::null_mut(), |result| (*result).expectedDesc);
            let has = |(i, column): (usize, &pg_sys::Oid)| (*attribute(descriptor, i)).atttypid == *column;
            (*self.fcinfo).nargs == *count
                && (columns.is_empty()
                    || !descriptor.is_null()
                        && (*descriptor).natts as usize == columns.len()
                        && columns.iter().enumerate().all(has))
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

    /// An interval in microseconds, if it is greater than zero and at most so long, and has neither days nor months,
    /// whose length varies.
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

    /// The ReturnSetInfo, if the call returns a set.
    pub fn result(&self) -> Option<*mut pg_sys::ReturnSetInfo> {
        // SAFETY: the cast follows the node's tag.
        unsafe {
            let result = (*self.fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            (!result.is_null() && (*result).type_ == pg_sys::NodeTag::T_ReturnSetInfo).then_some(result)
        }
    }
}
