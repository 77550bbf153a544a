//! Texts as the server stores them, and the columns of tuple descriptors.

use pgrx::prelude::*;

/// A column of a tuple descriptor, counted from 0.
///
/// # Safety
/// The descriptor has that column.
pub unsafe fn attribute(
    descriptor: pg_sys::TupleDesc,
    number: usize,
) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: the caller's promise. From PostgreSQL 18 on, the attributes follow their compact forms.
    unsafe {
        #[cfg(feature = "pg18")]
        let first = (*descriptor)
            .compact_attrs
            .as_ptr()
            .add((*descriptor).natts as usize)
            .cast::<pg_sys::FormData_pg_attribute>();
        #[cfg(not(feature = "pg18"))]
        let first = (*descriptor).attrs.as_ptr();
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

/// An array of texts in the current memory context.
pub fn text_array(texts: &[Vec<u8>]) -> pg_sys::Datum {
    let mut elements: Vec<_> = texts.iter().map(|each| text(each)).collect();
    let align = pg_sys::TYPALIGN_INT as std::ffi::c_char;
    // SAFETY: copies the elements, which are texts.
    unsafe {
        let array = pg_sys::construct_array(
            elements.as_mut_ptr(),
            elements.len() as i32,
            pg_sys::TEXTOID,
            -1,
            false,
            align,
        );
        pg_sys::Datum::from(array)
    }
}

/// The length of an interval in microseconds, with a year of 365.25 days and a month of 30, as `extract(epoch ...)`
/// computes it.
///
/// # Safety
/// A datum of type interval.
pub unsafe fn microseconds(value: pg_sys::Datum) -> i64 {
    const DAY: i64 = 86_400_000_000;
    // SAFETY: the caller's promise.
    let interval = unsafe { *value.cast_mut_ptr::<pg_sys::Interval>() };
    let (months, days) = (i64::from(interval.month), i64::from(interval.day));
    (months / 12)
        .saturating_mul(365 * DAY)
        .saturating_add(months / 12 * (DAY / 4))
        .saturating_add(months % 12 * 30 * DAY)
        .saturating_add(days.saturating_mul(DAY))
        .saturating_add(interval.time)
}
