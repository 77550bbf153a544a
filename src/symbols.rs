//! The records of C functions (PG_FUNCTION_INFO_V1), for functions that pgrx does not declare.

/// Defines the record of a function: `pg_finfo_` and the function's name.
macro_rules! declare_symbol {
    ($info:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $info() -> &'static pgrx::pg_sys::Pg_finfo_record {
            const V1: pgrx::pg_sys::Pg_finfo_record = pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
            &V1
        }
    };
}
