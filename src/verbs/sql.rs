//! Calling the SQL implementation: the functions of schema queue_internal.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::{CStr, CString};

/// The largest number of arguments of a function.
const MOST_ARGUMENTS: usize = pg_sys::FUNC_MAX_ARGS as usize;

/// Calls an SQL function through the function manager. An ERROR in it is not caught.
///
/// # Safety
/// The function was looked up, takes these arguments, and returns no set.
pub unsafe fn call(
    function: *mut pg_sys::FmgrInfo,
    arguments: &[pg_sys::NullableDatum],
) -> Option<pg_sys::Datum> {
    let mut call = pg_sys::FunctionCallInfoBaseData::default();
    // SAFETY: the caller's promise.
    let result = unsafe { call_for(&mut call, function, arguments) };
    (!call.isnull).then_some(result)
}

/// As `call`, on behalf of another call: with its ReturnSetInfo, and setting its null flag.
///
/// # Safety
/// As for `call`; the function may return a set if the other call does.
pub unsafe fn call_for(
    fcinfo: pg_sys::FunctionCallInfo,
    function: *mut pg_sys::FmgrInfo,
    arguments: &[pg_sys::NullableDatum],
) -> pg_sys::Datum {
    // The header of a call and room for its arguments, as LOCAL_FCINFO lays it out.
    #[repr(C)]
    struct Call {
        header: pg_sys::FunctionCallInfoBaseData,
        arguments: [pg_sys::NullableDatum; MOST_ARGUMENTS],
    }
    // SAFETY: the arguments directly follow the header, whose last field is a flexible array.
    unsafe {
        let mut call = std::mem::MaybeUninit::<Call>::uninit();
        let header = call.as_mut_ptr().cast::<pg_sys::FunctionCallInfoBaseData>();
        (*header).flinfo = function;
        (*header).context = std::ptr::null_mut();
        (*header).resultinfo = (*fcinfo).resultinfo;
        (*header).fncollation = (*fcinfo).fncollation;
        (*header).isnull = false;
        (*header).nargs = arguments.len() as i16;
        std::ptr::copy_nonoverlapping(arguments.as_ptr(), (&raw mut (*header).args).cast(), arguments.len());
        let result = match (*function).fn_addr {
            Some(address) => address(header),
            None => pg_sys::Datum::from(0),
        };
        (*fcinfo).isnull = (*header).isnull;
        result
    }
}

/// The SQL implementation of the called entry point, or queue_internal.claim; looked up once for each query.
#[pg_guard]
pub unsafe extern "C-unwind" fn implementation_of(
    fcinfo: pg_sys::FunctionCallInfo,
    claim: bool,
) -> *mut pg_sys::FmgrInfo {
    const CLAIM: [pg_sys::Oid; 4] = [pg_sys::INTERVALOID, pg_sys::TEXTOID, pg_sys::INT4OID, pg_sys::TEXTOID];
    // SAFETY: fn_extra is the function's own, in memory that lives as long as the query's plan.
    unsafe {
        let info = (*fcinfo).flinfo;
        if (*info).fn_extra.is_null() {
            let size = 2 * size_of::<pg_sys::FmgrInfo>();
            (*info).fn_extra = pg_sys::MemoryContextAllocZero((*info).fn_mcxt, size);
        }
        let found = (*info).fn_extra.cast::<pg_sys::FmgrInfo>().add(usize::from(claim));
        if (*found).fn_oid == pg_sys::InvalidOid {
            let function = if claim { oid(c"claim", &CLAIM) } else { same_as((*info).fn_oid) };
            pg_sys::fmgr_info_cxt(function, found, (*info).fn_mcxt);
        }
        point!(CoreFound);
        found
    }
}

/// The function of the same name and argument types as an entry point, in schema queue_internal, or with core_ before
/// its name where the entry point itself is in that schema.
unsafe fn same_as(entry_point: pg_sys::Oid) -> pg_sys::Oid {
    // SAFETY: catalog lookups in a transaction; the types and the name are ours.
    unsafe {
        let (mut count, mut types) = (0, std::ptr::null_mut());
        pg_sys::get_func_signature(entry_point, &mut types, &mut count);
        let types = std::slice::from_raw_parts(types, count as usize);
        let name = CStr::from_ptr(pg_sys::get_func_name(entry_point));
        let schema = CStr::from_ptr(pg_sys::get_namespace_name(pg_sys::get_func_namespace(entry_point)));
        if schema == c"queue_internal" {
            let name = [b"core_", name.to_bytes()].concat();
            return oid(&CString::new(name).unwrap_or_default(), types);
        }
        oid(name, types)
    }
}

/// The OID of a function of schema queue_internal.
pub fn oid(name: &CStr, types: &[pg_sys::Oid]) -> pg_sys::Oid {
    // SAFETY: a catalog lookup in a transaction; the list and its strings are ours.
    unsafe {
        let string = |text: &CStr| pg_sys::makeString(pg_sys::pstrdup(text.as_ptr())).cast();
        let mut names = pg_sys::lappend(std::ptr::null_mut(), string(c"queue_internal"));
        names = pg_sys::lappend(names, string(name));
        let found = pg_sys::LookupFuncName(names, types.len() as i32, types.as_ptr(), true);
        if found == pg_sys::InvalidOid {
            let name = name.to_string_lossy();
            let message = format!("there is no function queue_internal.{name} as the library knows it");
            ErrorReport::new(PgSqlErrorCode::ERRCODE_UNDEFINED_FUNCTION, message, "queue_ext")
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
