//! Writing rows through the access methods, with their index entries.

use super::Tables;
use super::plain::LEASED_COLUMNS;
use super::rows::{Row, task};
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

/// The OIDs of the indexes of a relation.
///
/// # Safety
/// The relation is open.
pub unsafe fn indexes_of(relation: pg_sys::Relation) -> Vec<pg_sys::Oid> {
    // SAFETY: the list is ours, and holds OIDs.
    unsafe {
        let list = pg_sys::RelationGetIndexList(relation);
        if list.is_null() {
            return Vec::new();
        }
        let oids = (0..(*list).length).map(|i| (*(*list).elements.offset(i as isize)).oid_value).collect();
        pg_sys::list_free(list);
        oids
    }
}

/// The indexes of a relation, open for writing.
pub struct Indexes(Vec<pg_sys::Relation>);

impl Indexes {
    /// Opens them. One that REINDEX CONCURRENTLY has begun to make is no index yet, and not written to.
    ///
    /// # Safety
    /// The relation is locked, and its indexes have been found plain.
    pub unsafe fn open(relation: pg_sys::Relation) -> Self {
        // SAFETY: closed below, or by the end of the transaction.
        unsafe {
            let oids = indexes_of(relation).into_iter();
            let mut all: Vec<_> =
                oids.map(|oid| pg_sys::index_open(oid, pg_sys::RowExclusiveLock as i32)).collect();
            all.retain(|index| {
                let ready = (*(**index).rd_index).indisready;
                if !ready {
                    pg_sys::index_close(*index, pg_sys::NoLock as i32);
                }
                ready
            });
            Self(all)
        }
    }

    /// Those among them that summarize blocks: an update within its block that changes only columns of theirs
    /// concerns no other.
    #[cfg(not(any(feature = "pg14", feature = "pg15")))]
    fn summarizing(self) -> Self {
        // SAFETY: opened above.
        let summarizes = |index: &pg_sys::Relation| unsafe { (*(**index).rd_indam).amsummarizing };
        let (kept, others) = self.0.into_iter().partition(summarizes);
        Self(others).close();
        Self(kept)
    }

    /// Makes the entries of a row. `wanted` says of an index with a condition whether the row fits it.
    unsafe fn insert(
        &self,
        relation: pg_sys::Relation,
        row: &[pg_sys::Datum],
        missing: &[bool],
        place: *mut pg_sys::ItemPointerData,
        wanted: impl Fn(pg_sys::Oid) -> bool,
    ) {
        // SAFETY: the row was stored at this place by this command; its shape is the relation's.
        unsafe {
            for index in self.0.iter().copied().filter(|index| wanted((**index).rd_id)) {
                let form = (*index).rd_index;
                let keys = (*form).indkey.values.as_slice((*form).indnatts as usize);
                let mut values = [pg_sys::Datum::from(0); pg_sys::INDEX_MAX_KEYS as usize];
                let mut nulls = [true; pg_sys::INDEX_MAX_KEYS as usize];
                for (i, key) in keys.iter().enumerate() {
                    values[i] = row[*key as usize - 1];
                    nulls[i] = missing[*key as usize - 1];
                }
                // All that the index methods look at: where they may keep notes during this call.
                let mut info = pg_sys::IndexInfo {
                    type_: pg_sys::NodeTag::T_IndexInfo,
                    ii_Context: pg_sys::CurrentMemoryContext,
                    ..Default::default()
                };
                let check = if (*form).indisunique {
                    pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES
                } else {
                    pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO
                };
                pg_sys::index_insert(
                    index,
                    values.as_mut_ptr(),
                    nulls.as_mut_ptr(),
                    place,
                    relation,
                    check,
                    false,
                    &mut info,
                );
                #[cfg(any(feature = "pg17", feature = "pg18"))]
                pg_sys::index_insert_cleanup(index, &mut info);
            }
        }
    }

    /// Closes them; their locks stay to the end of the transaction.
    pub fn close(self) {
        // SAFETY: opened above.
        self.0.into_iter().for_each(|index| unsafe { pg_sys::index_close(index, pg_sys::NoLock as i32) });
    }
}

/// Whether a task fits the condition of an index of `queue.tasks`.
pub fn fits(tables: &Tables, row: &Row<{ task::COUNT }>, index: pg_sys::Oid) -> bool {
    if index == tables.tasks_order {
        row.int(task::GATE) < 2
    } else if index == tables.tasks_group {
        row.get(task::GROUP_KEY).is_some()
    } else {
        true
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

/// Changes the row in a slot without waiting for anybody; `place` is then where its new version is. A lock
/// that an update of no key column need not wait for, FOR KEY SHARE, keeps nobody from it.
///
/// An update that must not wait stops at any lock, compatible or not, and at one of a row that somebody has
/// locked since it was read: there it is an assertion of the server that it does not happen. So a row that
/// may be locked is locked first, which may skip it; after that nothing is left that the update could wait for.
/// A row that nobody had locked when it was read is not, since that costs a WAL record.
///
/// # Safety
/// As for `insert`; the slot is one of the table's own kind, in which the row was read with the active snapshot.
pub unsafe fn update_at_once<const N: usize>(
    relation: pg_sys::Relation,
    found: *mut pg_sys::TupleTableSlot,
    place: &mut pg_sys::ItemPointerData,
    row: &Row<N>,
    wanted: impl Fn(pg_sys::Oid) -> bool,
) -> Change {
    // SAFETY: the caller's promise.
    unsafe {
        if !may_be_locked(found) {
            point!(RowUnlocked);
            match update(relation, place, row, false, &wanted) {
                Change::Locked => {}
                change => return change,
            }
        }
        match lock_at_once(relation, *place) {
            Change::Done => update(relation, place, row, true, wanted),
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

/// Locks the row at a place as an update of it does, unless somebody else has it locked so that the update
/// would have to wait.
unsafe fn lock_at_once(relation: pg_sys::Relation, place: pg_sys::ItemPointerData) -> Change {
    use pg_sys::IndexAttrBitmapKind::INDEX_ATTR_BITMAP_KEY;
    use pg_sys::LockTupleMode::{LockTupleExclusive, LockTupleNoKeyExclusive};
    // SAFETY: the caller's promise. The method is called as `table_tuple_lock` would.
    unsafe {
        // As the executor chooses it; somebody may have made a unique index of a column that claims change.
        let keys = pg_sys::RelationGetIndexAttrBitmap(relation, INDEX_ATTR_BITMAP_KEY);
        let changes = LEASED_COLUMNS.iter().any(|column| {
            pg_sys::bms_is_member(i32::from(*column) - pg_sys::FirstLowInvalidHeapAttributeNumber, keys)
        });
        let mode = if changes { LockTupleExclusive } else { LockTupleNoKeyExclusive };
        let slot = pg_sys::table_slot_create(relation, std::ptr::null_mut());
        let (mut place, mut failure) = (place, pg_sys::TM_FailureData::default());
        let (snapshot, command) = (pg_sys::GetActiveSnapshot(), pg_sys::GetCurrentCommandId(true));
        let skip = pg_sys::LockWaitPolicy::LockWaitSkip;
        let mut result = pg_sys::TM_Result::TM_Deleted;
        let method = (*(*relation).rd_tableam).tuple_lock;
        guarded(|| {
            if let Some(lock) = method {
                result = lock(relation, &mut place, snapshot, slot, command, mode, skip, 0, &mut failure);
            }
        });
        point!(RowLocked);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        result.into()
    }
}

/// Changes the row at a place, without waiting for anybody unless `wait` says so; if that is done, `place` is then where
/// its new version is.
///
/// # Safety
/// As for `insert`; `place` was read with the active snapshot.
pub unsafe fn update<const N: usize>(
    relation: pg_sys::Relation,
    place: &mut pg_sys::ItemPointerData,
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
                    &raw mut *place,
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
            *place = (*slot).tts_tid;
        }
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        result.into()
    }
}

/// Stores new rows many at a time.
pub struct Inserter {
    relation: pg_sys::Relation,
    left_out: pg_sys::Oid,
    indexes: Indexes,
    slots: Vec<*mut pg_sys::TupleTableSlot>,
    count: usize,
}

/// How many rows are stored at a time.
const AT_ONCE: usize = 64;

impl Inserter {
    /// # Safety
    /// The relation was found plain. No row that is added fits the condition of the index `left_out`, and
    /// all fit those of the others.
    pub unsafe fn open(table: pg_sys::Oid, left_out: pg_sys::Oid) -> Self {
        // SAFETY: closed by `close`, or by the end of the transaction.
        unsafe {
            let relation = pg_sys::table_open(table, pg_sys::RowExclusiveLock as i32);
            Self { relation, left_out, indexes: Indexes::open(relation), slots: Vec::new(), count: 0 }
        }
    }

    /// Adds a row, which is stored now or later. Its values are copied.
    ///
    /// # Safety
    /// The row has the shape of the relation.
    pub unsafe fn add<const N: usize>(&mut self, row: &mut Row<N>) {
        // SAFETY: the caller's promise; a slot owns its copy.
        unsafe {
            let shape = (*self.relation).rd_att;
            if self.slots.len() == self.count {
                let kind = &raw const pg_sys::TTSOpsHeapTuple;
                self.slots.push(pg_sys::MakeSingleTupleTableSlot(shape, kind));
            }
            let tuple = if (*shape).natts as usize == N {
                pg_sys::heap_form_tuple(shape, row.values.as_mut_ptr(), row.nulls.as_mut_ptr())
            } else {
                // Dropped columns behind those of the row are null.
                let (mut values, mut nulls) = (row.values.to_vec(), row.nulls.to_vec());
                values.resize((*shape).natts as usize, pg_sys::Datum::null());
                nulls.resize((*shape).natts as usize, true);
                pg_sys::heap_form_tuple(shape, values.as_mut_ptr(), nulls.as_mut_ptr())
            };
            pg_sys::ExecStoreHeapTuple(tuple, self.slots[self.count], true);
            self.count += 1;
            point!(StoreAdded);
            if self.count == AT_ONCE {
                self.store();
            }
        }
    }

    /// Stores what was added.
    pub fn store(&mut self) {
        if self.count == 0 {
            return;
        }
        // SAFETY: the slots hold rows of the relation; the method is called as `table_multi_insert` would.
        unsafe {
            let (relation, slots, count) = (self.relation, self.slots.as_mut_ptr(), self.count as i32);
            let command = pg_sys::GetCurrentCommandId(true);
            let method = (*(*relation).rd_tableam).multi_insert;
            guarded(|| {
                if let Some(insert) = method {
                    insert(relation, slots, count, command, 0, std::ptr::null_mut());
                }
            });
            point!(StoreWritten);
            for slot in &self.slots[..self.count] {
                pg_sys::slot_getsomeattrs_int(*slot, (*(**slot).tts_tupleDescriptor).natts);
                let columns = (*(**slot).tts_tupleDescriptor).natts as usize;
                let values = std::slice::from_raw_parts((**slot).tts_values, columns);
                let nulls = std::slice::from_raw_parts((**slot).tts_isnull, columns);
                let wanted = |index| index != self.left_out;
                self.indexes.insert(relation, values, nulls, &raw mut (**slot).tts_tid, wanted);
            }
        }
        self.count = 0;
    }

    /// Ends it; nothing that was added is left to be stored.
    pub fn close(self) {
        // SAFETY: opened in `open`; the locks stay to the end of the transaction.
        unsafe {
            self.slots.into_iter().for_each(|slot| pg_sys::ExecDropSingleTupleTableSlot(slot));
            self.indexes.close();
            pg_sys::table_close(self.relation, pg_sys::NoLock as i32);
        }
    }
}

/// Deletes the row at a place; waits for whoever has it locked.
///
/// # Safety
/// As for `update`.
pub unsafe fn delete(relation: pg_sys::Relation, place: pg_sys::ItemPointerData) -> Change {
    // SAFETY: the caller's promise. The method is called as `table_tuple_delete` would.
    unsafe {
        let command = pg_sys::GetCurrentCommandId(true);
        let snapshot = pg_sys::GetActiveSnapshot();
        let (mut place, mut failure) = (place, pg_sys::TM_FailureData::default());
        let mut result = pg_sys::TM_Result::TM_Deleted;
        let method = (*(*relation).rd_tableam).tuple_delete;
        guarded(|| {
            if let Some(delete) = method {
                let nobody = std::ptr::null_mut();
                result = delete(relation, &mut place, command, snapshot, nobody, true, &mut failure, false);
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

/// Calls a function of the server that may raise.
pub(super) unsafe fn guarded<R>(call: impl FnOnce() -> R) -> R {
    // SAFETY: the closures above hold nothing that would have to be dropped.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(call) }
}
