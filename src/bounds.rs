//! Bounds for the queries of the background worker.
//!
//! A query that searches an index for the first row reads the entries of all dead rows before it. While an old snapshot
//! keeps vacuum from removing them, that may take seconds, in which no other step of the worker can begin. The functions
//! here read only index entries, of live and dead rows alike, so that a query can be restricted to a limited number of
//! them. If the tables are not as the extension created them, there are no bounds.

use crate::datum::text;
use crate::heap::entries::Entries;
use crate::heap::scan::{Compare, Condition, from_level};
use crate::heap::{self, Tables, Use};
use crate::names::Name;
use pgrx::prelude::*;

/// Reads entries of an index of the tasks.
fn read<R>(
    index: impl FnOnce(&Tables) -> pg_sys::Oid,
    conditions: &[Condition],
    read: impl FnOnce(&mut Entries) -> R,
) -> Option<R> {
    let tables = heap::open(Use::Read).ok()?;
    // SAFETY: `tasks` is locked, and its indexes have the columns of the conditions. A function call has a snapshot.
    unsafe {
        let table = pg_sys::table_open(tables.tasks, pg_sys::NoLock as i32);
        let mut entries = Entries::begin(table, index(&tables), conditions);
        let found = read(&mut entries);
        entries.end();
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        Some(found)
    }
}

/// `queue_internal.next_level`: the first priority in the order index that is at least this one. A queue is a text, which
/// has the layout of the bytea that pgrx passes as bytes.
#[pg_extern(sql = false)]
fn next_level(_in_bucket: i32, queue: &[u8], level: i32) -> Option<i32> {
    let first = |entries: &mut Entries| entries.next().map(|values| values[1].value() as i32);
    read(|tables| tables.tasks_order, &from_level(text(queue), level), first)
        .unwrap_or_else(|| visible_level(queue, level))
}

/// The same, of the tasks that are visible.
fn visible_level(queue: &[u8], level: i32) -> Option<i32> {
    let query = "SELECT pg_catalog.min(t.priority) FROM queue.tasks AS t
                 WHERE t.queue OPERATOR(pg_catalog.=) $1 AND t.priority OPERATOR(pg_catalog.>=) $2
                   AND t.admission OPERATOR(pg_catalog.<) 2";
    let arguments = [Name(queue.to_vec()).into(), level.into()];
    let found = Spi::connect(|client| client.select(query, Some(1), &arguments)?.first().get::<i32>(1));
    found.unwrap_or_else(|error| error!("the priorities of a queue could not be read: {error}"))
}

/// `queue_internal.order_bound`: the run_at and the id of the count-th entry from a time on, in a priority of a queue.
/// Times are passed as their microseconds, because they may be infinite.
#[pg_extern(sql = false)]
fn order_bound(
    _in_bucket: i32,
    queue: &[u8],
    level: i32,
    after: i64,
    count: i32,
) -> TableIterator<'static, (name!(run_at, i64), name!(id, i64))> {
    let conditions = [
        Condition { column: 1, compare: Compare::TextEquals, value: text(queue) },
        Condition { column: 2, compare: Compare::IntEquals, value: pg_sys::Datum::from(level) },
        Condition { column: 3, compare: Compare::TimeAtLeast, value: pg_sys::Datum::from(after) },
    ];
    let found = read(|tables| tables.tasks_order, &conditions, |entries| entries.nth(count)).flatten();
    TableIterator::new(found.into_iter().map(|values| (values[2].value() as i64, values[3].value() as i64)))
}

/// `queue_internal.deadline_bound`: the start deadline and the id of the count-th entry after another one.
#[pg_extern(sql = false)]
fn deadline_bound(
    after: i64,
    after_id: i64,
    count: i32,
) -> TableIterator<'static, (name!(start_by, i64), name!(id, i64))> {
    let same_time = [
        Condition { column: 1, compare: Compare::TimeEquals, value: pg_sys::Datum::from(after) },
        Condition {
            column: 2,
            compare: Compare::BigintAtLeast,
            value: pg_sys::Datum::from(after_id.saturating_add(1)),
        },
    ];
    let later = pg_sys::Datum::from(after.saturating_add(1));
    let later = [Condition { column: 1, compare: Compare::TimeAtLeast, value: later }];
    let mut left = count;
    let mut take = |entries: &mut Entries| {
        while left > 0 {
            pgrx::check_for_interrupts!();
            let entry = entries.next()?;
            left -= 1;
            if left == 0 {
                return Some((entry[0].value() as i64, entry[1].value() as i64));
            }
        }
        None
    };
    let index = |tables: &Tables| tables.tasks_start_by;
    let found =
        read(index, &same_time, &mut take).flatten().or_else(|| read(index, &later, &mut take).flatten());
    TableIterator::new(found)
}

/// `queue_internal.id_bound`: the id of the count-th entry after another id.
#[pg_extern(sql = false)]
fn id_bound(after: i64, count: i32) -> Option<i64> {
    let next = pg_sys::Datum::from(after.saturating_add(1));
    let conditions = [Condition { column: 1, compare: Compare::BigintAtLeast, value: next }];
    let found = read(|tables| tables.tasks_pkey, &conditions, |entries| entries.nth(count)).flatten();
    found.map(|values| values[0].value() as i64)
}
