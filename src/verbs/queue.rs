//! The options of a queue that the native fast path needs.

use crate::datum::{microseconds, text, text_of};
use crate::fallback::Reason;
use crate::heap::Tables;
use crate::heap::columns::{self, queue as column, task};
use crate::heap::row::Row;
use crate::heap::scan::{Compare, Condition, Scan, open_by_key};
use crate::heap::task::Task;
use crate::rights::{self, Kinds};
use crate::settings::DurableLeases;
use pgrx::prelude::*;

/// The options of a queue.
pub struct Settings {
    /// Its lease in microseconds; 0 if it has days or months, whose length varies.
    pub lease: i64,
    /// How long an attempt of a task without its own timeout may take, in microseconds.
    pub timeout: Option<i64>,
    /// The start deadline of a task without its own, in microseconds from its push.
    pub ttl: Option<i64>,
    /// The largest number of queued tasks.
    pub max_queued: Option<i32>,
    /// How much weight may start in a period.
    pub rate_limit: Option<i32>,
    /// The number of attempts of a task without its own.
    pub max_attempts: i32,
    /// Whether it is paused.
    pub paused: bool,
    /// Whether claims need not check a policy of the queue.
    pub plain_to_claim: bool,
    /// Whether the end of a task frees a slot.
    pub limited: bool,
    /// Whether finished tasks are kept.
    pub keep_history: bool,
    /// Whether their payloads are kept too.
    pub keep_payloads: bool,
    /// Whether leases have to survive a crash.
    pub durable_leases: DurableLeases,
}

impl Settings {
    /// The lease of a task, in microseconds, for a call that names none.
    pub fn lease_of(&self, row: &Task) -> i64 {
        // SAFETY: the column is an interval.
        let own = row.get(task::LEASE).map(|value| unsafe { microseconds(value) });
        own.map_or(self.lease, |own| own.min(crate::settings::max_lease()))
    }

    /// When an attempt of a task that began at this time exceeds its timeout.
    pub fn timeout_of(&self, row: &Task, began: i64) -> i64 {
        // SAFETY: the column is an interval.
        let own = row.get(task::TIMEOUT).map(|value| unsafe { microseconds(value) });
        own.or(self.timeout).map_or(i64::MAX, |timeout| began.saturating_add(timeout))
    }
}

/// Reads the options of a queue, with a snapshot of its own: a pause that was committed after the statement began counts.
/// Fails unless the caller has this kind of right.
pub fn settings(tables: &Tables, name: &[u8], needed: Kinds) -> Result<Settings, Reason> {
    // SAFETY: in a verb, in a transaction.
    if !unsafe { rights::allow(needed, name) } {
        return Err(Reason::Rights);
    }
    // SAFETY: the columns are those of queue.queues, which `heap::open` has checked.
    unsafe {
        let (table, key) = open_by_key(tables.queues, &columns::QUEUES[..1])?;
        let conditions = [Condition { column: 1, compare: Compare::TextEquals, value: text(name) }];
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let mut scan = Scan::begin(table, key, &conditions);
        let found = scan.next().map(|slot| {
            let row = Row::<{ column::COUNT }>::of(slot);
            let lease = row.get(column::LEASE).map(|value| *value.cast_mut_ptr::<pg_sys::Interval>());
            let limited = row.get(column::MAX_RUNNING).is_some();
            let unset = [column::MAX_RUNNING, column::RATE_LIMIT, column::GROUP_RATE_LIMIT, column::AGEING];
            Settings {
                // The limit may have been lowered since.
                lease: lease
                    .filter(|lease| lease.day == 0 && lease.month == 0)
                    .map_or(0, |lease| lease.time.min(crate::settings::max_lease())),
                timeout: row.get(column::TIMEOUT).map(|value| microseconds(value)),
                ttl: row.get(column::TTL).map(|value| microseconds(value)),
                max_queued: row.get(column::MAX_QUEUED).map(|value| value.value() as i32),
                rate_limit: row.get(column::RATE_LIMIT).map(|limit| limit.value() as i32),
                max_attempts: row.int(column::MAX_ATTEMPTS),
                paused: row.get(column::PAUSED_AT).is_some(),
                plain_to_claim: unset.iter().all(|column| row.get(*column).is_none())
                    && row.int(column::FAIR_GROUPS) == 0,
                limited,
                keep_history: row.int(column::KEEP_HISTORY) != 0,
                keep_payloads: row.int(column::KEEP_PAYLOADS) != 0,
                durable_leases: row
                    .get(column::DURABLE_LEASES)
                    .and_then(|option| DurableLeases::named(text_of(option)))
                    .unwrap_or_else(crate::settings::durable_leases),
            }
        });
        point!(QueueRead);
        scan.end();
        pg_sys::PopActiveSnapshot();
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        found.ok_or(Reason::Queue)
    }
}
