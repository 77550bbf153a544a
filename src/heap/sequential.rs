//! Sequential scans without the executor.

use crate::ffi::guarded;
use pgrx::prelude::*;

/// A sequential scan.
pub struct SeqScan {
    table: pg_sys::Relation,
    scan: pg_sys::TableScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
    columns: usize,
}

impl SeqScan {
    /// Begins with the active snapshot; rows will be deformed up to so many columns.
    ///
    /// # Safety
    /// The table is locked and has as many columns.
    pub unsafe fn begin(table: pg_sys::Relation, columns: usize) -> Self {
        use pg_sys::ScanOptions::{SO_ALLOW_PAGEMODE, SO_ALLOW_STRAT, SO_ALLOW_SYNC, SO_TYPE_SEQSCAN};
        const FLAGS: u32 = SO_TYPE_SEQSCAN | SO_ALLOW_STRAT | SO_ALLOW_SYNC | SO_ALLOW_PAGEMODE;
        // SAFETY: the caller's promise. The method is called as by `table_beginscan`.
        unsafe {
            let begin = (*(*table).rd_tableam).scan_begin.unwrap_unchecked();
            let (nothing, parallel) = (std::ptr::null_mut(), std::ptr::null_mut());
            let scan = guarded(|| begin(table, pg_sys::GetActiveSnapshot(), 0, nothing, parallel, FLAGS));
            Self { table, scan, slot: pg_sys::table_slot_create(table, std::ptr::null_mut()), columns }
        }
    }

    /// The next row, deformed and valid until the next call; none after the last.
    pub fn next(&mut self) -> Option<*mut pg_sys::TupleTableSlot> {
        // SAFETY: the scan and the slot are open; see `begin`.
        unsafe {
            let next = (*(*self.table).rd_tableam).scan_getnextslot.unwrap_unchecked();
            let forward = pg_sys::ScanDirection::ForwardScanDirection;
            guarded(|| next(self.scan, forward, self.slot)).then(|| {
                pg_sys::slot_getsomeattrs_int(self.slot, self.columns as i32);
                self.slot
            })
        }
    }

    /// Ends the scan.
    pub fn end(self) {
        // SAFETY: closes what `begin` has opened.
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            let end = (*(*self.table).rd_tableam).scan_end.unwrap_unchecked();
            guarded(|| end(self.scan));
        }
    }
}
