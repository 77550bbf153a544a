//! The sessions that wait for a task, for the view `queue.workers`.

use crate::counting::may_know_of_queue;
use crate::lanes;
use crate::shared;
use pgrx::prelude::*;
use std::collections::HashMap;

/// `queue_internal.waiting_workers()`: each session that waits, once for each of its queues of which the caller may see the
/// numbers. Name and time are null for sessions without an entry in the list of names. A name is a text, which has
/// the layout of the bytea that pgrx passes as bytes; a time is in microseconds since 2000.
#[pg_extern(sql = false)]
fn waiting_workers()
-> TableIterator<'static, (name!(worker, Option<Vec<u8>>), name!(queue, Vec<u8>), name!(since, Option<i64>))>
{
    let idle = shared::get().map(|shared| shared.idle.list()).unwrap_or_default();
    let idle: HashMap<i32, _> = idle.into_iter().map(|worker| (worker.pid, worker)).collect();
    let lanes = if lanes::available() { lanes::each(|slot| slot.waiters.pids()) } else { Vec::new() };
    let mut rows = Vec::new();
    // SAFETY: in a transaction.
    for (queue, (pids, count)) in lanes.into_iter().filter(|(queue, _)| unsafe { may_know_of_queue(queue) }) {
        for pid in &pids[..count] {
            let worker = idle.get(pid);
            let name = worker.and_then(|worker| worker.name.clone());
            rows.push((name, queue.clone(), worker.map(|worker| worker.since)));
        }
    }
    TableIterator::new(rows)
}
