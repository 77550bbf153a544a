//! Names as bytes in the encoding of the database, which need not be UTF-8. pgrx would read a text as a Rust string,
//! and panic if it is not UTF-8.

use crate::datum::{text, text_of};
use pgrx::prelude::*;
use pgrx::{FromDatum, IntoDatum};

/// A text.
pub struct Name(pub Vec<u8>);

impl FromDatum for Name {
    unsafe fn from_polymorphic_datum(value: pg_sys::Datum, null: bool, _kind: pg_sys::Oid) -> Option<Self> {
        // SAFETY: the caller's datum is a text, by `type_oid`.
        (!null).then(|| Self(unsafe { text_of(value) }.to_vec()))
    }
}

impl IntoDatum for Name {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(text(&self.0))
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::TEXTOID
    }
}

/// An array of texts; a null in it is left out.
pub struct Names(pub Vec<Vec<u8>>);

impl FromDatum for Names {
    unsafe fn from_polymorphic_datum(value: pg_sys::Datum, null: bool, _kind: pg_sys::Oid) -> Option<Self> {
        // SAFETY: the caller's datum is an array of texts, by `type_oid`.
        (!null).then(|| Self(unsafe { elements(value) }.map(<[u8]>::to_vec).collect()))
    }
}

impl IntoDatum for Names {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        let mut texts: Vec<_> = self.0.iter().map(|name| text(name)).collect();
        // SAFETY: the properties are those of the type text; the array has copies.
        let array = unsafe {
            let align = pg_sys::TYPALIGN_INT as std::ffi::c_char;
            let count = texts.len() as i32;
            pg_sys::construct_array(texts.as_mut_ptr(), count, pg_sys::TEXTOID, -1, false, align)
        };
        Some(pg_sys::Datum::from(array))
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::TEXTARRAYOID
    }
}

/// The texts of an array that are not null. They live as long as the array.
///
/// # Safety
/// The value is an array of texts.
pub unsafe fn elements<'a>(array: pg_sys::Datum) -> impl Iterator<Item = &'a [u8]> {
    // SAFETY: the caller's promise; the properties are those of the type text.
    unsafe {
        let (mut values, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        let array = pg_sys::pg_detoast_datum(array.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
        let align = pg_sys::TYPALIGN_INT as std::ffi::c_char;
        pg_sys::deconstruct_array(
            array,
            pg_sys::TEXTOID,
            -1,
            false,
            align,
            &mut values,
            &mut nulls,
            &mut count,
        );
        (0..count as usize).filter(move |i| !*nulls.add(*i)).map(move |i| text_of(*values.add(i)))
    }
}

/// A name for a message, which is a Rust string. Unless the encoding of the database is UTF-8, other characters than
/// ASCII are escaped.
pub fn shown(name: &[u8]) -> String {
    // SAFETY: reads a property of the database.
    let utf8 = unsafe { pg_sys::GetDatabaseEncoding() } == pg_sys::pg_enc::PG_UTF8 as i32;
    match std::str::from_utf8(name) {
        Ok(name) if utf8 || name.is_ascii() => name.to_owned(),
        _ => name.escape_ascii().to_string(),
    }
}
