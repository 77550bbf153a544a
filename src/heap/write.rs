//! Writes rows through the table and index access methods.

use super::indexes::Indexes;
use super::row::Row;
use crate::ffi::guarded;
use pgrx::prelude::*;

/// The result of changing a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The row was changed.
    Done,
    /// Another transaction has it locked.
    Locked,
    /// Another transaction has changed or deleted it since it was read.
    Stale,
    /// The calling statement itself has changed or deleted it, which its snapshot does not show.
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

/// A slot for rows to insert.
///
/// # Safety
/// The relation is open as long as the slot.
pub unsafe fn slot_for(relation: pg_sys::Relation) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: dropped by the caller, or with its memory context.
    unsafe { pg_sys::MakeSingleTupleTableSlot((*relation).rd_att, &raw const pg_sys::TTSOpsVirtual) }
}

unsafe fn fill<const N: usize>(slot: *mut pg_sys::TupleTableSlot, row: &Row<N>) {
    // SAFETY: the table is eligible, so the slot has the columns of the row, followed only by dropped ones.
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

/// Inserts a row and its index entries.
///
/// # Safety
/// The relation and the indexes in which the row has entries are open, and it has the columns of the tuple descriptor.
pub unsafe fn insert<const N: usize>(
    relation: pg_sys::Relation,
    indexes: &Indexes,
    slot: *mut pg_sys::TupleTableSlot,
    row: &Row<N>,
) {
    // SAFETY: the caller's promise. The method is called as by `table_tuple_insert`.
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
        indexes.insert(relation, &row.values, &row.nulls, &raw mut (*slot).tts_tid);
    }
}

/// Updates the row in a slot without waiting for a lock; `tid` becomes that of the new version. A FOR KEY SHARE lock,
/// which does not conflict with an update of no key column, does not prevent the update.
///
/// heap_update() without waiting fails at any lock, even a compatible one, and a server with assertions asserts that
/// nobody has locked the row since it was read. So a row that may be locked is first locked with SKIP LOCKED; after
/// that the update cannot wait. A row that was not locked when it was read is not, because a lock costs a WAL record.
///
/// # Safety
/// As for `insert`; only the columns `changed` differ, and the slot is of the kind of the table, in which the row was
/// read with the active snapshot.
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

/// Whether a transaction may have locked the row in a slot or, if the server checks assertions, may lock it before the
/// update.
unsafe fn may_be_locked(found: *mut pg_sys::TupleTableSlot) -> bool {
    thread_local!(static ASSERTS: bool = has_assertions());
    // SAFETY: the slots of a heap are of this kind, and the slot is not empty.
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
    // SAFETY: reads a setting that exists in every server; the string belongs to the server.
    unsafe {
        let setting = pg_sys::GetConfigOption(c"debug_assertions".as_ptr(), true, false);
        !setting.is_null() && std::ffi::CStr::from_ptr(setting) == c"on"
    }
}

/// Locks the row at a TID in the mode of an update, with SKIP LOCKED.
unsafe fn lock_at_once(
    relation: pg_sys::Relation,
    tid: pg_sys::ItemPointerData,
    changed: &[usize],
) -> Change {
    use pg_sys::IndexAttrBitmapKind::INDEX_ATTR_BITMAP_KEY;
    use pg_sys::LockTupleMode::{LockTupleExclusive, LockTupleNoKeyExclusive};
    // SAFETY: the caller's promise. The method is called as by `table_tuple_lock`.
    unsafe {
        // The mode that the executor would choose: a user may have created a unique index on a changed column.
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

/// Updates the row at a TID, and waits for locks only if `wait` is set; `tid` becomes that of the new version.
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
    // SAFETY: the caller's promise. The method is called as by `table_tuple_update`.
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
            let indexes = Indexes::open(relation, wanted);
            #[cfg(not(any(feature = "pg14", feature = "pg15")))]
            let indexes = match which {
                pg_sys::TU_UpdateIndexes::TU_Summarizing => indexes.summarizing(),
                _ => indexes,
            };
            indexes.insert(relation, &row.values, &row.nulls, &raw mut (*slot).tts_tid);
            indexes.close();
        }
        point!(UpdateIndexed);
        // A slot whose tuple was not stored has an invalid TID. Its block number is P_NEW, with which PostgreSQL
        // extends the table.
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
    // SAFETY: the caller's promise. The method is called as by `table_tuple_delete`.
    unsafe {
        let command = pg_sys::GetCurrentCommandId(true);
        let snapshot = pg_sys::GetActiveSnapshot();
        let (mut tid, mut failure) = (tid, pg_sys::TM_FailureData::default());
        let mut result = pg_sys::TM_Result::TM_Deleted;
        let method = (*(*relation).rd_tableam).tuple_delete;
        guarded(|| {
            if let Some(delete) = method {
                let crosscheck = std::ptr::null_mut();
                result = delete(relation, &mut tid, command, snapshot, crosscheck, true, &mut failure, false);
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
