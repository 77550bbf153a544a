//! Events of a queue, which SQL processes before a claim.

use crate::clock::now;
use crate::datum::text;
use crate::fallback::Reason;
use crate::heap::Tables;
use crate::heap::columns::{self, event};
use crate::heap::row::Row;
use crate::heap::scan::{Compare, Condition, Scan, open_by_key};
use crate::lanes::{self, Queue};
use pgrx::prelude::*;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Fails if there are due events, which SQL has to process. If there are no events at all, clears the stamp in the
/// lane, unless a new event has set another one meanwhile, or this transaction may have processed them itself and can
/// still roll back. Returns the stamp, for which this call need not check again.
///
/// While an old snapshot prevents vacuum from removing processed events, this check reads the index entries of all of
/// them. After a check that took long, SQL checks instead for twenty times as long, because it remembers where to start
/// (sql/internal/scan_start.sql).
pub unsafe fn check_events(tables: &Tables, queue: &Queue<'_>, stamp: u64) -> Result<u64, Reason> {
    thread_local!(static LEFT_TO_SQL: Cell<Option<Instant>> = const { Cell::new(None) });
    let started = Instant::now();
    if LEFT_TO_SQL.get().is_some_and(|until| started < until) {
        return Err(Reason::Events);
    }
    // SAFETY: the snapshot is newer than the stamp; the index begins with the queue and the time, so that the first
    // event is the first that is due. The columns are checked before the row is read.
    let some = unsafe {
        let (table, key) = open_by_key(tables.events, &columns::EVENTS_KEY)?;
        let known = columns::begins_with((*table).rd_att, columns::EVENTS);
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let value = text(queue.name());
        let conditions = [Condition { column: 1, compare: Compare::TextEquals, value }];
        let mut scan = Scan::begin(table, key, &conditions);
        let first = scan.next().map(|slot| {
            let due_at = known.then(|| Row::<{ event::COUNT }>::of(slot).long(event::DUE_AT));
            due_at.is_none_or(|due_at| due_at <= now())
        });
        point!(EventsSought);
        scan.end();
        pg_sys::PopActiveSnapshot();
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        let took = started.elapsed();
        LEFT_TO_SQL.set((took > Duration::from_millis(5)).then(|| started + 20 * took));
        if first == Some(true) {
            return Err(Reason::Events);
        }
        first.is_some()
    };
    // SAFETY: reads the state of the transaction.
    let has_written = unsafe { pg_sys::GetTopTransactionIdIfAny() } != pg_sys::InvalidTransactionId;
    if !has_written && !some {
        lanes::with(queue.hash(), |slot| {
            if slot.events == stamp {
                slot.events = 0;
            }
        });
    }
    Ok(stamp)
}
