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
