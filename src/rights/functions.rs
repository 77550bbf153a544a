//! The SQL functions about rights.

use super::caller::caller;
use super::known::forget;
use super::{Kinds, is_allowed, owner_of, visible};
use crate::datum::{text, text_of};
use pgrx::prelude::*;

/// An argument that is a text, unless it is null.
unsafe fn text_argument<'a>(fcinfo: pg_sys::FunctionCallInfo, number: usize) -> Option<&'a [u8]> {
    // SAFETY: the callers name an argument that is declared as a text.
    unsafe {
        let argument = *(*fcinfo).args.as_ptr().add(number);
        (!argument.isnull).then(|| text_of(argument.value))
    }
}

declare_symbol!(pg_finfo_queue_caller);
declare_symbol!(pg_finfo_queue_has_right);
declare_symbol!(pg_finfo_queue_queues_with_right);
declare_symbol!(pg_finfo_queue_announce_rights);

/// `queue_internal.caller()`
#[unsafe(no_mangle)]
#[pg_guard]
unsafe extern "C-unwind" fn queue_caller(_fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: the role exists; a name has a fixed size.
    unsafe {
        let name = pg_sys::GetUserNameFromId(caller(), false);
        let value = pg_sys::palloc0(size_of::<pg_sys::NameData>()).cast::<pg_sys::NameData>();
        pg_sys::namestrcpy(value, name);
        pg_sys::Datum::from(value)
    }
}

/// `queue_internal.has_right(kind, queue)`
#[unsafe(no_mangle)]
#[pg_guard]
unsafe extern "C-unwind" fn queue_has_right(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by PostgreSQL with the arguments that engine.sql declares.
    unsafe {
        let owner = owner_of((*(*fcinfo).flinfo).fn_oid);
        let kind = text_argument(fcinfo, 0).and_then(Kinds::named).unwrap_or_default();
        pg_sys::Datum::from(is_allowed(owner, kind, text_argument(fcinfo, 1)))
    }
}

/// `queue_internal.queues_with_right(kind)`: null for all queues.
#[unsafe(no_mangle)]
#[pg_guard]
unsafe extern "C-unwind" fn queue_queues_with_right(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: called by PostgreSQL with the argument that engine.sql declares.
    unsafe {
        let owner = owner_of((*(*fcinfo).flinfo).fn_oid);
        let kind = text_argument(fcinfo, 0).unwrap_or_default();
        let queues = visible(owner, kind);
        let Some(queues) = queues else {
            (*fcinfo).isnull = true;
            return pg_sys::Datum::from(0);
        };
        let mut names: Vec<pg_sys::Datum> = queues.iter().map(|name| text(name)).collect();
        let align = pg_sys::TYPALIGN_INT as std::ffi::c_char;
        let array = pg_sys::construct_array(
            names.as_mut_ptr(),
            names.len() as i32,
            pg_sys::TEXTOID,
            -1,
            false,
            align,
        );
        pg_sys::Datum::from(array)
    }
}

/// `queue_internal.announce_rights()`
#[unsafe(no_mangle)]
#[pg_guard]
unsafe extern "C-unwind" fn queue_announce_rights(_fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"queue".as_ptr(), false);
        let table = pg_sys::get_relname_relid(c"rights".as_ptr(), schema);
        if table != pg_sys::InvalidOid {
            pg_sys::CacheInvalidateRelcacheByRelid(table);
        }
        // In this session at once, because it processes its own invalidation message only at the end of the statement.
        forget();
        pg_sys::Datum::from(0)
    }
}
