//! Inserts new rows in batches, as COPY does.

use super::indexes::Indexes;
use super::row::Row;
use crate::ffi::guarded;
use pgrx::prelude::*;

/// Inserts new rows in batches.
pub struct Inserter {
    relation: pg_sys::Relation,
    indexes: Indexes,
    slots: Vec<*mut pg_sys::TupleTableSlot>,
    count: usize,
}

/// The number of rows in a batch.
const AT_ONCE: usize = 64;

impl Inserter {
    /// # Safety
    /// The relation is eligible. No row that is added satisfies the condition of an index in `left_out`, and all satisfy
    /// those of the other indexes.
    pub unsafe fn open(table: pg_sys::Oid, left_out: &[pg_sys::Oid]) -> Self {
        // SAFETY: closed by `close`, or by the end of the transaction.
        unsafe {
            let relation = pg_sys::table_open(table, pg_sys::RowExclusiveLock as i32);
            let indexes = Indexes::open(relation, |index| !left_out.contains(&index));
            Self { relation, indexes, slots: Vec::new(), count: 0 }
        }
    }

    /// Adds a row to the batch, which is inserted when it is full. The values are copied.
    ///
    /// # Safety
    /// The row has the columns of the relation.
    pub unsafe fn add<const N: usize>(&mut self, row: &mut Row<N>) {
        // SAFETY: the caller's promise; a slot owns its copy.
        unsafe {
            let descriptor = (*self.relation).rd_att;
            if self.slots.len() == self.count {
                let kind = &raw const pg_sys::TTSOpsHeapTuple;
                self.slots.push(pg_sys::MakeSingleTupleTableSlot(descriptor, kind));
            }
            let tuple = if (*descriptor).natts as usize == N {
                pg_sys::heap_form_tuple(descriptor, row.values.as_mut_ptr(), row.nulls.as_mut_ptr())
            } else {
                // Dropped columns after those of the row are null.
                let (mut values, mut nulls) = (row.values.to_vec(), row.nulls.to_vec());
                values.resize((*descriptor).natts as usize, pg_sys::Datum::null());
                nulls.resize((*descriptor).natts as usize, true);
                pg_sys::heap_form_tuple(descriptor, values.as_mut_ptr(), nulls.as_mut_ptr())
            };
            pg_sys::ExecStoreHeapTuple(tuple, self.slots[self.count], true);
            self.count += 1;
            point!(StoreAdded);
            if self.count == AT_ONCE {
                self.store();
            }
        }
    }

    /// Inserts the batch.
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
                self.indexes.insert(relation, values, nulls, &raw mut (**slot).tts_tid);
            }
        }
        self.count = 0;
    }

    /// Closes the table and its indexes, after the last batch was inserted.
    pub fn close(self) {
        // SAFETY: opened in `open`; the locks are kept until the end of the transaction.
        unsafe {
            self.slots.into_iter().for_each(|slot| pg_sys::ExecDropSingleTupleTableSlot(slot));
            self.indexes.close();
            pg_sys::table_close(self.relation, pg_sys::NoLock as i32);
        }
    }
}
