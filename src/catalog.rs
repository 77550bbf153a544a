//! Rows of the system catalogs.

use pgrx::prelude::*;

/// What `read` takes from the row with this OID, in the server's cache of a catalog; none if there is no such row.
///
/// # Safety
/// In a transaction. The rows of the cache have the layout of `Row`.
pub unsafe fn row<Row, R>(
    cache: pg_sys::SysCacheIdentifier::Type,
    oid: pg_sys::Oid,
    read: impl FnOnce(&Row) -> R,
) -> Option<R> {
    // SAFETY: the caller's promise. The row stays in the cache until it is released; an ERROR releases it, too.
    unsafe {
        let row = pg_sys::SearchSysCache1(cache as i32, oid.into());
        if row.is_null() {
            return None;
        }
        let result = read(&*pg_sys::heap_tuple_get_struct::<Row>(row));
        pg_sys::ReleaseSysCache(row);
        Some(result)
    }
}
