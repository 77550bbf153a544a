//! Index scans without the executor.

use super::columns::{self, Column};
use crate::fallback::Reason;
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
            let (scan, index) = begin(table, index, conditions);
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
            rescan(self.scan, self.index, conditions);
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

/// Opens an index and begins a scan of it with the active snapshot. `rescan` has to follow.
pub(super) unsafe fn begin(
    table: pg_sys::Relation,
    index: pg_sys::Oid,
    conditions: &[Condition],
) -> (pg_sys::IndexScanDesc, pg_sys::Relation) {
    // SAFETY: as for `Scan::begin`.
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
        (scan, index)
    }
}

/// Starts the scan again with these values, which it copies.
pub(super) unsafe fn rescan(scan: pg_sys::IndexScanDesc, index: pg_sys::Relation, conditions: &[Condition]) {
    // SAFETY: the scan of this index is open, and has as many keys.
    unsafe {
        let (mut keys, count) = (keys(index, conditions), conditions.len() as i32);
        pg_sys::index_rescan(scan, keys.as_mut_ptr(), count, std::ptr::null_mut(), 0);
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

/// The tasks of a queue from a priority on, in the order index.
pub fn from_level(queue: pg_sys::Datum, level: i32) -> [Condition; 2] {
    [
        Condition { column: 1, compare: Compare::TextEquals, value: queue },
        Condition { column: 2, compare: Compare::IntAtLeast, value: pg_sys::Datum::from(level) },
    ]
}
