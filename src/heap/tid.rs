//! Fetches rows by TID, and remembers the TIDs of tasks that this session wrote.

use crate::ffi::guarded;
use pgrx::prelude::*;
use std::cell::RefCell;

/// Fetches rows by TID, which saves an index scan.
pub struct ByTid {
    table: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    blocks: u32,
}

impl ByTid {
    /// # Safety
    /// The table is locked against truncation, and its first column is a bigint, the id.
    pub unsafe fn open(table: pg_sys::Relation) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let blocks = pg_sys::RelationGetNumberOfBlocksInFork(table, pg_sys::ForkNumber::MAIN_FORKNUM);
            Self { table, slot: pg_sys::table_slot_create(table, std::ptr::null_mut()), blocks }
        }
    }

    /// The row at this TID, deformed, if it is visible to the snapshot and has this id.
    ///
    /// # Safety
    /// The snapshot is valid.
    pub unsafe fn fetch(
        &mut self,
        tid: pg_sys::ItemPointerData,
        id: i64,
        snapshot: pg_sys::Snapshot,
    ) -> Option<*mut pg_sys::TupleTableSlot> {
        // SAFETY: the block exists, and the method checks whether it has the tuple. It is called as by
        // `table_tuple_fetch_row_version`.
        unsafe {
            if pgrx::itemptr::item_pointer_get_block_number_no_check(tid) >= self.blocks {
                return None;
            }
            let (table, slot, mut tid) = (self.table, self.slot, tid);
            let fetch = (*(*table).rd_tableam).tuple_fetch_row_version?;
            if !guarded(|| fetch(table, &mut tid, snapshot, slot)) {
                return None;
            }
            pg_sys::slot_getsomeattrs_int(slot, (*(*slot).tts_tupleDescriptor).natts);
            ((*(*slot).tts_values).value() as i64 == id).then_some(slot)
        }
    }

    /// Ends it.
    pub fn close(self) {
        // SAFETY: made in `open`.
        unsafe { pg_sys::ExecDropSingleTupleTableSlot(self.slot) };
    }
}

/// How many are remembered.
const RECENT: usize = 1024;

thread_local! {
    /// The TIDs of the tasks that this session's claims wrote.
    static REMEMBERED: RefCell<[(i64, pg_sys::ItemPointerData); RECENT]> =
        const { RefCell::new([(0, NO_TID); RECENT]) };
}

const NO_TID: pg_sys::ItemPointerData =
    pg_sys::ItemPointerData { ip_blkid: pg_sys::BlockIdData { bi_hi: 0, bi_lo: 0 }, ip_posid: 0 };

/// Remembers the TID of a task.
pub fn remember(id: i64, tid: pg_sys::ItemPointerData) {
    REMEMBERED.with_borrow_mut(|tids| tids[id as usize % RECENT] = (id, tid));
}

/// The TID at which this session last wrote a task.
pub fn recall(id: i64) -> Option<pg_sys::ItemPointerData> {
    // A place that was never used looks like one of the task 0.
    let (known, tid) = REMEMBERED.with_borrow(|tids| tids[id as usize % RECENT]);
    (known == id && tid.ip_posid != 0).then_some(tid)
}
