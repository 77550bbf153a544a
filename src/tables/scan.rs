//! Reading rows through an index, as the executor's index scan does, without the executor.

use pgrx::prelude::*;

/// The visible rows behind the entries of a B-tree index that fit its keys, in order.
pub struct Scan {
    scan: pg_sys::IndexScanDesc,
    index: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
}

/// A condition on a column of an index: which, how it is to compare, and with what.
pub struct Condition {
    pub column: i16,
    pub compare: Compare,
    pub value: pg_sys::Datum,
}

/// How a column compares with a value; each with the function that tells it.
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
            pg_sys::index_rescan(self.scan, keys.as_mut_ptr(), conditions.len() as i32, std::ptr::null_mut(), 0);
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
pub struct Levels {
    scan: pg_sys::IndexScanDesc,
    index: pg_sys::Relation,
    queue: pg_sys::Datum,
}

impl Levels {
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
