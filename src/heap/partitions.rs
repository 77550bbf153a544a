//! The partitions of the history: which takes the rows of a time, and whether native verbs may write to it.

use super::columns;
use super::eligibility::{check_table, definition};
use super::tables::Partition;
use crate::fallback::Reason;
use pgrx::prelude::*;

/// The partition that takes the rows of the history for this time, and for how long around it. The default
/// one takes them where no other partition does.
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

/// Finds the partition as the executor does, by the bounds in the partition descriptor: those of all
/// partitions in ascending order, and for each range between two of them its partition, if any.
unsafe fn route(history: pg_sys::Relation, time: i64) -> Option<Partition> {
    use pg_sys::PartitionRangeDatumKind::{PARTITION_RANGE_DATUM_MAXVALUE, PARTITION_RANGE_DATUM_MINVALUE};
    // SAFETY: the descriptor is that of an open relation, partitioned by the range of one timestamptz.
    unsafe {
        // At READ COMMITTED, one that is being detached takes no more rows.
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

/// Whether native verbs may write to this partition of the history, which is locked.
pub fn check_partition(partition: pg_sys::Oid) -> Result<(), Reason> {
    // SAFETY: catalog lookups.
    unsafe {
        // One with partitions of its own, and a foreign table, are for the executor.
        if pg_sys::get_rel_relkind(partition) as u8 != pg_sys::RELKIND_RELATION {
            return Err(Reason::Partition);
        }
        check_table(partition, columns::HISTORY, &[], 0)
    }
}

/// The partitions of a partitioned table.
///
/// # Safety
/// The relation is open as long as the result is used.
pub unsafe fn partitions_of<'a>(relation: pg_sys::Relation) -> &'a [pg_sys::Oid] {
    // SAFETY: as many as it says; without any, it has no array.
    unsafe {
        let partitions = &*pg_sys::RelationGetPartitionDesc(relation, true);
        match partitions.nparts {
            0 => &[],
            count => std::slice::from_raw_parts(partitions.oids, count as usize),
        }
    }
}
