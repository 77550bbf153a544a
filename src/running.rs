//! Which tasks run, for the view `queue.workers`: from the leases of the lanes, because no index has the running tasks.

use crate::counting;
use crate::lanes::{self, Queue};
use pgrx::prelude::*;

/// `queue_internal.leased_tasks`: the running tasks of those of these queues of which every lease is known. A lease may
/// have ended since, without another one in its place. A name is a text, which has the layout of the bytea that pgrx passes
/// as bytes.
#[pg_extern(sql = false)]
fn leased_tasks(
    queues: pgrx::Array<'_, &[u8]>,
) -> TableIterator<'static, (name!(queue, Vec<u8>), name!(ids, Vec<i64>))> {
    // SAFETY: in a transaction. A snapshot of the whole transaction may be older than the leases.
    let latest = unsafe { pg_sys::XactIsoLevel } < pg_sys::XACT_REPEATABLE_READ as i32;
    let Some(tables) = counting::countable().filter(|_| latest) else { return TableIterator::empty() };
    let known = queues.iter().flatten().filter_map(|name| {
        let (ids, count) = lanes::with_or_free(&Queue::new(tables.tasks, name), |slot| {
            slot.counters.running().and_then(|running| slot.lane.leases.all(running))
        })??;
        Some((name.to_owned(), ids[..count].to_vec()))
    });
    TableIterator::new(known.collect::<Vec<_>>())
}
