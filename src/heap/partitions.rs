//! The partitions of the history: which one takes the rows of a time, and whether the native fast path may write to it.

use super::columns;
use super::eligibility::{NULLABLE_WHEN_KEPT, check_table, definition};
use super::tables::Partition;
use crate::fallback::Reason;
use pgrx::prelude::*;

/// The partition of the history for this time, and the range of times that goes to it. The default partition takes the
/// times of no other partition.
pub fn partition_at(history: pg_sys::Oid, time: i64) -> Result<Partition, Reason> {
    // SAFETY: the history is locked, and open while its bounds are read.
    unsafe {
        let key = definition(pg_sys::pg_get_partkeydef, history);
        if key.as_deref() != Some(b"RANGE (finished_at)") {
            return Err(Reason::Altered);
        }
        let parent = pg_sys::table_open(history, pg_sys::NoLock as i32);
        let found = route(parent, time);
        pg_sys::table_close(parent, pg_sys::NoLock as i32);
        found.ok_or(Reason::Partition)
    }
}

/// Finds the partition as the executor does, in the partition descriptor, which has all bounds in ascending order, and
/// the partition of each range between two bounds, if any.
unsafe fn route(history: pg_sys::Relation, time: i64) -> Option<Partition> {
    use pg_sys::PartitionRangeDatumKind::{PARTITION_RANGE_DATUM_MAXVALUE, PARTITION_RANGE_DATUM_MINVALUE};
    // SAFETY: the descriptor is that of an open relation, partitioned by the range of one timestamptz.
    unsafe {
        // At READ COMMITTED, a partition that is being detached takes no more rows.
        let partitions = &*pg_sys::RelationGetPartitionDesc(history, true);
        if partitions.nparts == 0 {
            return None;
        }
        let bounds = &*partitions.boundinfo;
        let bound = |i: usize| match **bounds.kind.add(i) {
            PARTITION_RANGE_DATUM_MINVALUE => i64::MIN,
            PARTITION_RANGE_DATUM_MAXVALUE => i64::MAX,
            _ => (**bounds.datums.add(i)).value() as i64,
        };
        let count = bounds.ndatums as usize;
        let below = (0..count).take_while(|i| bound(*i) <= time).count();
        let own = *bounds.indexes.add(below);
        let number = usize::try_from(if own < 0 { bounds.default_index } else { own }).ok()?;
        let since = below.checked_sub(1).map_or(i64::MIN, bound);
        let until = if below < count { bound(below) } else { i64::MAX };
        Some(Partition { table: *partitions.oids.add(number), since, until })
    }
}

/// Whether the native fast path may write to this partition of the history, which is locked.
pub fn check_partition(partition: pg_sys::Oid) -> Result<(), Reason> {
    // SAFETY: catalog lookups.
    unsafe {
        // The executor handles foreign tables and partitions that are partitioned themselves.
        if pg_sys::get_rel_relkind(partition) as u8 != pg_sys::RELKIND_RELATION {
            return Err(Reason::Partition);
        }
        check_table(partition, columns::HISTORY, NULLABLE_WHEN_KEPT, &[], 0)
    }
}

/// The partitions of a partitioned table.
///
/// # Safety
/// The relation is open as long as the result is used.
pub unsafe fn partitions_of<'a>(relation: pg_sys::Relation) -> &'a [pg_sys::Oid] {
    // SAFETY: the array has `nparts` elements; it is null if there are none.
    unsafe {
        let partitions = &*pg_sys::RelationGetPartitionDesc(relation, true);
        match partitions.nparts {
            0 => &[],
            count => std::slice::from_raw_parts(partitions.oids, count as usize),
        }
    }
}
