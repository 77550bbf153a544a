//! Which tasks run, for the view `queue.workers`: from the leases of the lanes, because no index has the running tasks.

use crate::counting;
use crate::lanes::{self, Queue};
use pgrx::prelude::*;

/// `queue_internal.leased_tasks`: for each of these queues with a lane and counters, how many tasks run, and the tasks whose
/// leases are known. Some of these may have ended. A name is a text, which has the layout of the bytea that pgrx passes
/// as bytes.
#[pg_extern(sql = false)]
fn leased_tasks(
    queues: pgrx::Array<'_, &[u8]>,
) -> TableIterator<'static, (name!(queue, Vec<u8>), name!(running, i64), name!(ids, Vec<i64>))> {
    // SAFETY: in a transaction. A snapshot of the whole transaction may be older than the leases.
    let latest = unsafe { pg_sys::XactIsoLevel } < pg_sys::XACT_REPEATABLE_READ as i32;
    let Some(tables) = counting::countable().filter(|_| latest) else { return TableIterator::empty() };
    let queues: Vec<_> = queues.iter().flatten().map(|name| Queue::new(tables.tasks, name)).collect();
    counting::count_unless(&tables, &queues, |slot| slot.counters.running().is_some());
    let known = queues.iter().filter_map(|queue| {
        let (running, (ids, count)) =
            lanes::with(queue.hash(), |slot| Some((slot.counters.running()?, slot.lane.leases.ids())))??;
        Some((queue.name().to_owned(), running, ids[..count].to_vec()))
    });
    TableIterator::new(known.collect::<Vec<_>>())
}
