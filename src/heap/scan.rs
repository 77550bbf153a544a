//! Index scans and sequential scans without the executor.

use super::columns::{self, Column};
use crate::fallback::Reason;
use crate::ffi::guarded;
use pgrx::prelude::*;

/// A scan of a B-tree index: the visible rows that satisfy the scan keys, in order.
pub struct Scan {
    scan: pg_sys::IndexScanDesc,
    index: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
}

/// Locks a table and finds its primary key after that, because REINDEX CONCURRENTLY may replace the index before. Fails
/// if the key does not start with these columns.
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

/// A scan key: a column of an index, an operator, and a value.
pub struct Condition {
    pub column: i16,
    pub compare: Compare,
    pub value: pg_sys::Datum,
}

impl Condition {
    /// The scan key for an id, in an index whose first column is a bigint.
    pub fn id(id: i64) -> [Self; 1] {
        [Self { column: 1, compare: Compare::BigintEquals, value: pg_sys::Datum::from(id) }]
    }
}

/// The operator of a scan key, with its function.
#[derive(Clone, Copy)]
pub enum Compare {
    TextEquals,
    IntEquals,
    IntAtLeast,
    BigintEquals,
    BigintAtLeast,
    TimeEquals,
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
            Self::BigintAtLeast => (at_least, pg_sys::F_INT8GE),
            Self::TimeEquals => (equal, pg_sys::F_TIMESTAMPTZ_EQ),
            Self::TimeAtLeast => (at_least, pg_sys::F_TIMESTAMPTZ_GE),
        }
    }
}

impl Scan {
    /// Begins a scan with the active snapshot.
    ///
    /// # Safety
    /// The table is locked, and the index is a B-tree index of it with the columns of the scan keys. Values by
    /// reference must live as long as the scan.
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

    /// Restarts the scan with other values.
    ///
    /// # Safety
    /// As for `begin`, with as many scan keys.
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

    /// The next row, deformed and valid until the next call; none after the last.
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
    /// As for [`Scan::begin`], with an index of at most four columns.
    pub unsafe fn begin(table: pg_sys::Relation, index: pg_sys::Oid, conditions: &[Condition]) -> Self {
        // SAFETY: the caller's promise.
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
    /// As for [`Scan::begin`], with the order index.
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

/// The tasks of a queue from a priority on, in the order index.
pub fn from_level(queue: pg_sys::Datum, level: i32) -> [Condition; 2] {
    [
        Condition { column: 1, compare: Compare::TextEquals, value: queue },
        Condition { column: 2, compare: Compare::IntAtLeast, value: pg_sys::Datum::from(level) },
    ]
}
