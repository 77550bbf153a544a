//! The entries of rows in the indexes of their table.

use pgrx::prelude::*;

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

/// Those indexes of a relation in which rows get entries, open for writing.
pub struct Indexes(Vec<pg_sys::Relation>);

impl Indexes {
    /// Opens them, without indexes that are not ready for inserts, such as a new one of REINDEX CONCURRENTLY. `wanted`
    /// returns whether the rows satisfy the condition of a partial index; the others are neither opened nor locked, which
    /// would cost each push as much as an entry.
    ///
    /// # Safety
    /// The relation is locked, and its indexes are eligible.
    pub unsafe fn open(relation: pg_sys::Relation, wanted: impl Fn(pg_sys::Oid) -> bool) -> Self {
        // SAFETY: closed below, or by the end of the transaction.
        unsafe {
            let oids = indexes_of(relation).into_iter().filter(|index| wanted(*index));
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

    /// The summarizing indexes (BRIN): a HOT update that changes only columns of these inserts into no other.
    #[cfg(not(any(feature = "pg14", feature = "pg15")))]
    pub(super) fn summarizing(self) -> Self {
        // SAFETY: opened above.
        let summarizes = |index: &pg_sys::Relation| unsafe { (*(**index).rd_indam).amsummarizing };
        let (kept, others) = self.0.into_iter().partition(summarizes);
        Self(others).close();
        Self(kept)
    }

    /// Inserts the entries of a row.
    pub(super) unsafe fn insert(
        &self,
        relation: pg_sys::Relation,
        row: &[pg_sys::Datum],
        missing: &[bool],
        tid: *mut pg_sys::ItemPointerData,
    ) {
        // SAFETY: the row was stored at this TID by this command; its descriptor is the relation's.
        unsafe {
            for index in self.0.iter().copied() {
                let form = (*index).rd_index;
                let keys = (*form).indkey.values.as_slice((*form).indnatts as usize);
                let mut values = [pg_sys::Datum::from(0); pg_sys::INDEX_MAX_KEYS as usize];
                let mut nulls = [true; pg_sys::INDEX_MAX_KEYS as usize];
                for (i, key) in keys.iter().enumerate() {
                    values[i] = row[*key as usize - 1];
                    nulls[i] = missing[*key as usize - 1];
                }
                // Index access methods use only these fields of an IndexInfo.
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
                    tid,
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

    /// Closes them; their locks are kept until the end of the transaction.
    pub fn close(self) {
        // SAFETY: opened above.
        self.0.into_iter().for_each(|index| unsafe { pg_sys::index_close(index, pg_sys::NoLock as i32) });
    }
}
