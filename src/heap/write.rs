//! Writing rows through the access methods, with their index entries.

use super::indexes::Indexes;
use super::row::Row;
use crate::ffi::guarded;
use pgrx::prelude::*;

/// What became of a row that was to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was.
    Done,
    /// Somebody else has it locked.
    Locked,
    /// Somebody else has changed or deleted it since it was read.
    Stale,
    /// The statement that calls has changed or deleted it, and does not see that yet.
    Own,
}

impl From<pg_sys::TM_Result::Type> for Change {
    fn from(result: pg_sys::TM_Result::Type) -> Self {
        use pg_sys::TM_Result;
        match result {
            TM_Result::TM_Ok => Self::Done,
            TM_Result::TM_BeingModified | TM_Result::TM_WouldBlock => Self::Locked,
            TM_Result::TM_SelfModified => Self::Own,
            _ => Self::Stale,
        }
    }
}

/// A slot to store rows from.
///
/// # Safety
/// The relation is open as long as the slot.
pub unsafe fn slot_for(relation: pg_sys::Relation) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: dropped by the caller, or with its memory.
    unsafe { pg_sys::MakeSingleTupleTableSlot((*relation).rd_att, &raw const pg_sys::TTSOpsVirtual) }
}

unsafe fn fill<const N: usize>(slot: *mut pg_sys::TupleTableSlot, row: &Row<N>) {
    // SAFETY: the slot has the columns of the row, as its table was found to have, and behind them dropped ones alone.
    unsafe {
        if let Some(clear) = (*(*slot).tts_ops).clear {
            clear(slot);
        }
        std::ptr::copy_nonoverlapping(row.values.as_ptr(), (*slot).tts_values, N);
        std::ptr::copy_nonoverlapping(row.nulls.as_ptr(), (*slot).tts_isnull, N);
        let columns = (*(*slot).tts_tupleDescriptor).natts as usize;
        (N..columns).for_each(|dropped| *(*slot).tts_isnull.add(dropped) = true);
        pg_sys::ExecStoreVirtualTuple(slot);
    }
}

/// Stores a new row and its index entries.
///
/// # Safety
/// The relation and the indexes are its own and open, and the row has its shape.
pub unsafe fn insert<const N: usize>(
    relation: pg_sys::Relation,
    indexes: &Indexes,
    slot: *mut pg_sys::TupleTableSlot,
    row: &Row<N>,
    wanted: impl Fn(pg_sys::Oid) -> bool,
) {
    // SAFETY: the caller's promise. The method is called as `table_tuple_insert` would.
    unsafe {
        fill(slot, row);
        let command = pg_sys::GetCurrentCommandId(true);
        let method = (*(*relation).rd_tableam).tuple_insert;
        guarded(|| {
            if let Some(insert) = method {
                insert(relation, slot, command, 0, std::ptr::null_mut());
            }
        });
        point!(InsertWritten);
        indexes.insert(relation, &row.values, &row.nulls, &raw mut (*slot).tts_tid, wanted);
    }
}

/// Changes the row in a slot without waiting for anybody; `tid` becomes that of its new version. A lock
/// that an update of no key column need not wait for, FOR KEY SHARE, keeps nobody from it.
///
/// An update that must not wait stops at any lock, compatible or not, and at one of a row that somebody has
/// locked since it was read: there it is an assertion of the server that it does not happen. So a row that
/// may be locked is locked first, which may skip it; after that nothing is left that the update could wait for.
/// A row that nobody had locked when it was read is not, since that costs a WAL record.
///
/// # Safety
/// As for `insert`; only the columns `changed` differ, and the slot is one of the table's own kind, in which the row was read with the active snapshot.
pub unsafe fn update_at_once<const N: usize>(
    relation: pg_sys::Relation,
    found: *mut pg_sys::TupleTableSlot,
    tid: &mut pg_sys::ItemPointerData,
    row: &Row<N>,
    changed: &[usize],
    wanted: impl Fn(pg_sys::Oid) -> bool,
) -> Change {
    // SAFETY: the caller's promise.
    unsafe {
        if !may_be_locked(found) {
            point!(RowUnlocked);
            match update(relation, tid, row, false, &wanted) {
                Change::Locked => {}
                change => return change,
            }
        }
        match lock_at_once(relation, *tid, changed) {
            Change::Done => update(relation, tid, row, true, wanted),
            change => change,
        }
    }
}

/// Whether the row in a slot may be locked by anybody, or could be before it is updated, in a server that
/// checks its assertions.
unsafe fn may_be_locked(found: *mut pg_sys::TupleTableSlot) -> bool {
    thread_local!(static ASSERTS: bool = has_assertions());
    // SAFETY: the slots of a heap are of this kind, and hold a row.
    unsafe {
        if !std::ptr::eq((*found).tts_ops, &raw const pg_sys::TTSOpsBufferHeapTuple) {
            return true;
        }
        let tuple = (*found.cast::<pg_sys::BufferHeapTupleTableSlot>()).base.tuple;
        let marks = u32::from((*(*tuple).t_data).t_infomask);
        marks & pg_sys::HEAP_XMAX_INVALID == 0 || ASSERTS.with(|asserts| *asserts)
    }
}

/// Whether the server was built with assertions.
fn has_assertions() -> bool {
    // SAFETY: reads a setting that every server has; the string is the server's.
    unsafe {
        let setting = pg_sys::GetConfigOption(c"debug_assertions".as_ptr(), true, false);
        !setting.is_null() && std::ffi::CStr::from_ptr(setting) == c"on"
    }
}

/// Locks the row at a TID as an update of it does, unless somebody else has it locked so that the update
/// would have to wait.
unsafe fn lock_at_once(
    relation: pg_sys::Relation,
    tid: pg_sys::ItemPointerData,
    changed: &[usize],
) -> Change {
    use pg_sys::IndexAttrBitmapKind::INDEX_ATTR_BITMAP_KEY;
    use pg_sys::LockTupleMode::{LockTupleExclusive, LockTupleNoKeyExclusive};
    // SAFETY: the caller's promise. The method is called as `table_tuple_lock` would.
    unsafe {
        // As the executor chooses it; somebody may have made a unique index of a column that changes.
        let keys = pg_sys::RelationGetIndexAttrBitmap(relation, INDEX_ATTR_BITMAP_KEY);
        let changes = changed.iter().any(|column| {
            pg_sys::bms_is_member(*column as i32 + 1 - pg_sys::FirstLowInvalidHeapAttributeNumber, keys)
        });
        let mode = if changes { LockTupleExclusive } else { LockTupleNoKeyExclusive };
        let slot = pg_sys::table_slot_create(relation, std::ptr::null_mut());
        let (mut tid, mut failure) = (tid, pg_sys::TM_FailureData::default());
        let (snapshot, command) = (pg_sys::GetActiveSnapshot(), pg_sys::GetCurrentCommandId(true));
        let skip = pg_sys::LockWaitPolicy::LockWaitSkip;
        let mut result = pg_sys::TM_Result::TM_Deleted;
        let method = (*(*relation).rd_tableam).tuple_lock;
        guarded(|| {
            if let Some(lock) = method {
                result = lock(relation, &mut tid, snapshot, slot, command, mode, skip, 0, &mut failure);
            }
        });
        point!(RowLocked);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        result.into()
    }
}

/// Changes the row at a TID, without waiting for anybody unless `wait` says so; if that is done, `tid` becomes that of
/// its new version.
///
/// # Safety
/// As for `insert`; `tid` was read with the active snapshot.
pub unsafe fn update<const N: usize>(
    relation: pg_sys::Relation,
    tid: &mut pg_sys::ItemPointerData,
    row: &Row<N>,
    wait: bool,
    wanted: impl Fn(pg_sys::Oid) -> bool,
) -> Change {
    // SAFETY: the caller's promise. The method is called as `table_tuple_update` would.
    unsafe {
        let slot = slot_for(relation);
        fill(slot, row);
        let command = pg_sys::GetCurrentCommandId(true);
        let snapshot = pg_sys::GetActiveSnapshot();
        let (mut failure, mut mode) = (pg_sys::TM_FailureData::default(), 0);
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let mut indexes_change = false;
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let mut indexes_change = pg_sys::TU_UpdateIndexes::TU_None;
        let mut result = pg_sys::TM_Result::TM_Deleted;
        let method = (*(*relation).rd_tableam).tuple_update;
        guarded(|| {
            if let Some(update) = method {
                result = update(
                    relation,
                    &raw mut *tid,
                    slot,
                    command,
                    snapshot,
                    std::ptr::null_mut(),
                    wait,
                    &mut failure,
                    &mut mode,
                    &mut indexes_change,
                );
            }
        });
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let (indexes_change, which) = (indexes_change != pg_sys::TU_UpdateIndexes::TU_None, indexes_change);
        point!(UpdateWritten);
        if result == pg_sys::TM_Result::TM_Ok && indexes_change {
            let indexes = Indexes::open(relation);
            #[cfg(not(any(feature = "pg14", feature = "pg15")))]
            let indexes = match which {
                pg_sys::TU_UpdateIndexes::TU_Summarizing => indexes.summarizing(),
                _ => indexes,
            };
            indexes.insert(relation, &row.values, &row.nulls, &raw mut (*slot).tts_tid, wanted);
            indexes.close();
        }
        point!(UpdateIndexed);
        // A slot whose tuple was not stored has an invalid TID. Its block number is P_NEW, with which PostgreSQL extends the
        // table.
        if result == pg_sys::TM_Result::TM_Ok {
            *tid = (*slot).tts_tid;
        }
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        result.into()
    }
}

/// Deletes the row at a TID; waits for the transaction that has it locked.
///
/// # Safety
/// As for `update`.
pub unsafe fn delete(relation: pg_sys::Relation, tid: pg_sys::ItemPointerData) -> Change {
    // SAFETY: the caller's promise. The method is called as `table_tuple_delete` would.
    unsafe {
        let command = pg_sys::GetCurrentCommandId(true);
        let snapshot = pg_sys::GetActiveSnapshot();
        let (mut tid, mut failure) = (tid, pg_sys::TM_FailureData::default());
        let mut result = pg_sys::TM_Result::TM_Deleted;
        let method = (*(*relation).rd_tableam).tuple_delete;
        guarded(|| {
            if let Some(delete) = method {
                let nobody = std::ptr::null_mut();
                result = delete(relation, &mut tid, command, snapshot, nobody, true, &mut failure, false);
            }
        });
        point!(DeleteWritten);
        result.into()
    }
}

unsafe extern "C-unwind" {
    // Not among pgrx's bindings.
    fn nextval_internal(sequence: pg_sys::Oid, check_permissions: bool) -> i64;
}

/// The next value of a sequence that the user may use.
///
/// # Safety
/// It is a sequence.
pub unsafe fn next_value(sequence: pg_sys::Oid) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { guarded(|| nextval_internal(sequence, true)) }
}
