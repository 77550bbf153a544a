//! Reading rows through an index, as the executor's index scan does, without the executor.

use super::columns::{self, Column};
use crate::fallback::Reason;
use crate::ffi::guarded;
use pgrx::prelude::*;

/// The visible rows behind the entries of a B-tree index that fit its keys, in order.
pub struct Scan {
    scan: pg_sys::IndexScanDesc,
    index: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
}

/// Opens a table to be read by its primary key, which is found once the table is locked: until then, REINDEX
/// CONCURRENTLY may put another in its place. Fails if the key does not begin with these columns.
///
/// # Safety
/// There is such a table.
pub unsafe fn open_by_key(
    table: pg_sys::Oid,
    columns: &[Column],
) -> Result<(pg_sys::Relation, pg_sys::Oid), Reason> {
    // SAFETY: the caller's promise.
    unsafe {
        let table = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
        #[cfg(feature = "pg18")]
        let key = pg_sys::RelationGetPrimaryKeyIndex(table, false);
        #[cfg(not(feature = "pg18"))]
        let key = pg_sys::RelationGetPrimaryKeyIndex(table);
        if key == pg_sys::InvalidOid {
            pg_sys::table_close(table, pg_sys::NoLock as i32);
            return Err(Reason::Absent);
        }
        let index = pg_sys::index_open(key, pg_sys::AccessShareLock as i32);
        let known = columns::begins_with((*index).rd_att, columns);
        pg_sys::index_close(index, pg_sys::NoLock as i32);
        if !known {
            pg_sys::table_close(table, pg_sys::NoLock as i32);
            return Err(Reason::Altered);
        }
        Ok((table, key))
    }
}

/// A condition on a column of an index: which, how it is to compare, and with what.
pub struct Condition {
    pub column: i16,
    pub compare: Compare,
    pub value: pg_sys::Datum,
}

impl Condition {
    /// What finds a row by its id, in an index that begins with a bigint.
    pub fn id(id: i64) -> [Self; 1] {
        [Self { column: 1, compare: Compare::BigintEquals, value: pg_sys::Datum::from(id) }]
    }
}

/// How a column compares with a value; each with the comparison function.
#[derive(Clone, Copy)]
pub enum Compare {
    TextEquals,
    IntEquals,
    IntAtLeast,
    BigintEquals,
    TimeAtLeast,
}

impl Compare {
    fn strategy(self) -> (u32, u32) {
        let (equal, at_least) = (pg_sys::BTEqualStrategyNumber, pg_sys::BTGreaterEqualStrategyNumber);
        match self {
            Self::TextEquals => (equal, pg_sys::F_TEXTEQ),
            Self::IntEquals => (equal, pg_sys::F_INT4EQ),
            Self::IntAtLeast => (at_least, pg_sys::F_INT4GE),
            Self::BigintEquals => (equal, pg_sys::F_INT8EQ),
            Self::TimeAtLeast => (at_least, pg_sys::F_TIMESTAMPTZ_GE),
        }
    }
}

impl Scan {
    /// Begins a scan with the active snapshot.
    ///
    /// # Safety
    /// The table is locked, and the index is a B-tree index of it with the columns that the conditions
    /// mean. Values by reference must live as long as the scan.
    pub unsafe fn begin(table: pg_sys::Relation, index: pg_sys::Oid, conditions: &[Condition]) -> Self {
        // SAFETY: the caller's promise; closed by `end`, or by the end of the transaction.
        unsafe {
            let index = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
            let scan = pg_sys::index_beginscan(
                table,
                index,
                pg_sys::GetActiveSnapshot(),
                #[cfg(feature = "pg18")]
                std::ptr::null_mut(),
                conditions.len() as i32,
                0,
            );
            let mut scan = Self { scan, index, slot: pg_sys::table_slot_create(table, std::ptr::null_mut()) };
            scan.restart(conditions);
            scan
        }
    }

    /// Begins anew, with other values.
    ///
    /// # Safety
    /// As for `begin`, and as many conditions as there.
    pub unsafe fn restart(&mut self, conditions: &[Condition]) {
        // SAFETY: the caller's promise; the keys are copied by the scan.
        unsafe {
            let mut keys = keys(self.index, conditions);
            pg_sys::index_rescan(
                self.scan,
                keys.as_mut_ptr(),
                conditions.len() as i32,
                std::ptr::null_mut(),
                0,
            );
        }
    }

    /// The next row, deformed; nothing behind the last. It is there until the next call.
    pub fn next(&mut self) -> Option<*mut pg_sys::TupleTableSlot> {
        // SAFETY: the scan and the slot are open.
        unsafe {
            let found =
                pg_sys::index_getnext_slot(self.scan, pg_sys::ScanDirection::ForwardScanDirection, self.slot);
            found.then(|| {
                pg_sys::slot_getsomeattrs_int(self.slot, (*(*self.slot).tts_tupleDescriptor).natts);
                self.slot
            })
        }
    }

    /// Ends the scan.
    pub fn end(self) {
        // SAFETY: closes what `begin` has opened; the lock on the index stays to the end of the transaction.
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::index_endscan(self.scan);
            pg_sys::index_close(self.index, pg_sys::NoLock as i32);
        }
    }
}

/// All visible rows of a table, in no order, as a sequential scan has them.
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
        // SAFETY: the caller's promise. The method is called as `table_beginscan` would; every table
        // access method has it.
        unsafe {
            let begin = (*(*table).rd_tableam).scan_begin.unwrap_unchecked();
            let (nothing, parallel) = (std::ptr::null_mut(), std::ptr::null_mut());
            let scan = guarded(|| begin(table, pg_sys::GetActiveSnapshot(), 0, nothing, parallel, FLAGS));
            Self { table, scan, slot: pg_sys::table_slot_create(table, std::ptr::null_mut()), columns }
        }
    }

    /// The next row, deformed; nothing behind the last. It is there until the next call.
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

unsafe fn keys(index: pg_sys::Relation, conditions: &[Condition]) -> [pg_sys::ScanKeyData; 3] {
    let mut keys = [pg_sys::ScanKeyData::default(); 3];
    for (condition, key) in conditions.iter().zip(&mut keys) {
        let (strategy, function) = condition.compare.strategy();
        // SAFETY: the index has the column.
        unsafe {
            pg_sys::ScanKeyEntryInitialize(
                key,
                0,
                condition.column,
                strategy as pg_sys::StrategyNumber,
                pg_sys::InvalidOid,
                *(*index).rd_indcollation.offset(condition.column as isize - 1),
                pg_sys::Oid::from(function),
                condition.value,
            );
        }
    }
    keys
}

/// The priorities in the order index, read from its entries alone: those of finished tasks count, but
/// need not be passed over one by one.
pub struct Priorities {
    scan: pg_sys::IndexScanDesc,
    index: pg_sys::Relation,
    queue: pg_sys::Datum,
}

impl Priorities {
    /// Begins with the active snapshot.
    ///
    /// # Safety
    /// As for [`Scan::begin`], with the order index.
    pub unsafe fn begin(table: pg_sys::Relation, index: pg_sys::Oid, queue: pg_sys::Datum) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let index = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
            let scan = pg_sys::index_beginscan(
                table,
                index,
                pg_sys::GetActiveSnapshot(),
                #[cfg(feature = "pg18")]
                std::ptr::null_mut(),
                2,
                0,
            );
            (*scan).xs_want_itup = true;
            Self { scan, index, queue }
        }
    }

    /// The first priority that is this or comes behind.
    pub fn at_least(&mut self, level: i32) -> Option<i32> {
        let conditions = [
            Condition { column: 1, compare: Compare::TextEquals, value: self.queue },
            Condition { column: 2, compare: Compare::IntAtLeast, value: pg_sys::Datum::from(level) },
        ];
        // SAFETY: the scan is open; an entry of the index has four columns, the second an integer.
        unsafe {
            let mut keys = keys(self.index, &conditions);
            pg_sys::index_rescan(self.scan, keys.as_mut_ptr(), 2, std::ptr::null_mut(), 0);
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
            Some(values[1].value() as i32)
        }
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
