//! The entries of an index, read without their rows.

use super::scan::{Condition, begin, from_level, rescan};
use pgrx::prelude::*;

/// The columns of an index entry.
pub type Entry = [pg_sys::Datum; 4];

/// The entries of a B-tree index, read without their rows. Entries of dead rows count.
pub struct Entries {
    scan: pg_sys::IndexScanDesc,
    index: pg_sys::Relation,
}

impl Entries {
    /// Begins with the active snapshot.
    ///
    /// # Safety
    /// As for [`super::scan::Scan::begin`], with an index of at most four columns.
    pub unsafe fn begin(table: pg_sys::Relation, index: pg_sys::Oid, conditions: &[Condition]) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let (scan, index) = begin(table, index, conditions);
            (*scan).xs_want_itup = true;
            let mut entries = Self { scan, index };
            entries.restart(conditions);
            entries
        }
    }

    /// Restarts with other values.
    ///
    /// # Safety
    /// As for `begin`, with as many conditions.
    pub unsafe fn restart(&mut self, conditions: &[Condition]) {
        // SAFETY: the caller's promise; the keys are copied by the scan.
        unsafe {
            rescan(self.scan, self.index, conditions);
        }
    }

    /// The next entry; none after the last. Texts in it are valid until the next call.
    pub fn next(&mut self) -> Option<Entry> {
        // SAFETY: the scan is open; an entry has at most four columns.
        unsafe {
            let found = pg_sys::index_getnext_tid(self.scan, pg_sys::ScanDirection::ForwardScanDirection);
            if found.is_null() {
                return None;
            }
            let (mut values, mut nulls) = ([pg_sys::Datum::from(0); 4], [false; 4]);
            pg_sys::index_deform_tuple(
                (*self.scan).xs_itup,
                (*self.scan).xs_itupdesc,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
            Some(values)
        }
    }

    /// The count-th next entry; none if there are fewer.
    pub fn nth(&mut self, count: i32) -> Option<Entry> {
        let mut last = None;
        for _ in 0..count {
            pgrx::check_for_interrupts!();
            last = Some(self.next()?);
        }
        last
    }

    /// Ends the scan.
    pub fn end(self) {
        // SAFETY: closes what `begin` has opened.
        unsafe {
            pg_sys::index_endscan(self.scan);
            pg_sys::index_close(self.index, pg_sys::NoLock as i32);
        }
    }
}

/// The priorities in the order index, read from its entries only. Entries of finished tasks count, but the scan skips
/// to the next priority.
pub struct Priorities {
    entries: Entries,
    queue: pg_sys::Datum,
}

impl Priorities {
    /// Begins with the active snapshot.
    ///
    /// # Safety
    /// As for [`super::scan::Scan::begin`], with the order index.
    pub unsafe fn begin(table: pg_sys::Relation, index: pg_sys::Oid, queue: pg_sys::Datum) -> Self {
        // SAFETY: the caller's promise.
        Self { entries: unsafe { Entries::begin(table, index, &from_level(queue, i32::MIN)) }, queue }
    }

    /// The first priority that is at least this one.
    pub fn at_least(&mut self, level: i32) -> Option<i32> {
        // SAFETY: the conditions are on the columns of the order index, of which the second is an integer.
        unsafe { self.entries.restart(&from_level(self.queue, level)) };
        self.entries.next().map(|values| values[1].value() as i32)
    }

    /// Ends the scan.
    pub fn end(self) {
        self.entries.end();
    }
}
