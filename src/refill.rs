//! Refilling a lane: reads from queue.tasks which tasks are ready, which are scheduled next, and which run.
//!
//! A refill scans the order index one priority at a time, as a claim in SQL does. It begins where the last one ended,
//! and so does not read the index entries of finished tasks again, however many of them a long transaction keeps from
//! being vacuumed.

use crate::clock::now;
use crate::datum::text;
use crate::heap::Tables;
use crate::heap::columns::task;
use crate::heap::entries::Priorities;
use crate::heap::scan::{Compare, Condition, Scan};
use crate::heap::task::Task;
use crate::lanes::refill_plan::{self, Meaning, Source};
use crate::lanes::{self, Key, LaneSet, Queue, RefillPlan};
use crate::shared;
use crate::transaction;
use pgrx::prelude::*;

/// `queue_internal.sweep_lanes`: has each lane of this database read again from the first task on, as the worker does in
/// its sweeps, for changes that no transaction published.
#[pg_extern(sql = false)]
fn sweep_lanes() {
    lanes::forget_refills(&LaneSet::ALL);
}

/// Refills the lane of the queue. The lane has recorded this process as the one that refills it.
///
/// # Safety
/// In a transaction that can take snapshots, with eligible tables and `tasks` locked.
pub unsafe fn run(tables: &Tables, queue: &Queue<'_>, plan: RefillPlan) {
    // SAFETY: the caller's promise.
    unsafe { run_bounded(tables, queue, plan, usize::MAX) };
}

/// As `run`, for the worker: reads at most so many priorities, so that one queue does not delay the others.
///
/// # Safety
/// As for `run`.
pub unsafe fn run_bounded(tables: &Tables, queue: &Queue<'_>, plan: RefillPlan, most_priorities: usize) {
    transaction::refilling(queue.hash());
    transaction::refilled_before_commit(queue.hash());
    // SAFETY: the caller's promise. The snapshot is taken after the lane began to lower its missed low-water marks.
    let found = unsafe {
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let table = pg_sys::table_open(tables.tasks, pg_sys::AccessShareLock as i32);
        point!(RefillBegun);
        let mut rows = Rows::begin(tables, table, text(queue.name()));
        let found = refill_plan::read(&mut rows, plan, now(), most_priorities);
        point!(RefillRead);
        rows.end();
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        pg_sys::PopActiveSnapshot();
        found
    };
    transaction::refilling(0);
    let taken_in = lanes::with(queue.hash(), |slot| {
        let forgotten = slot.lane.refilled(plan, &found, now());
        slot.activity.refills += 1;
        slot.activity.sweeps += u64::from(plan.from == Key::FIRST);
        let wake = if slot.lane.ready_count() > 0 { slot.wake_in_turn() } else { None };
        (forgotten, wake)
    });
    if let Some((forgotten, wake)) = taken_in {
        // SAFETY: a plain read of a constant of the process.
        shared::leases_until(unsafe { pg_sys::MyDatabaseId }, forgotten);
        wake.into_iter().for_each(lanes::Wake::now);
    }
    lanes::announce_refill(queue.hash());
    point!(RefillTold);
}

/// Ends the refill without result.
pub fn give_up(queue: &Queue<'_>) {
    transaction::refilling(0);
    lanes::with(queue.hash(), |slot| slot.lane.give_up());
    lanes::announce_refill(queue.hash());
}

/// The tasks of a queue, with the active snapshot.
pub struct Rows {
    scan: Scan,
    priorities: Priorities,
    queue: pg_sys::Datum,
}

impl Rows {
    /// Begins with all tasks of the queue.
    ///
    /// # Safety
    /// The table is locked, and a snapshot active until the end.
    pub unsafe fn begin(tables: &Tables, table: pg_sys::Relation, queue: pg_sys::Datum) -> Self {
        // SAFETY: the caller's promise; the conditions are on the columns of the order index.
        unsafe {
            let scan = Scan::begin(table, tables.tasks_order, &conditions(queue, 0, i64::MIN));
            Self { scan, priorities: Priorities::begin(table, tables.tasks_order, queue), queue }
        }
    }

    /// Ends it.
    pub fn end(self) {
        self.priorities.end();
        self.scan.end();
    }
}

impl Source for Rows {
    fn priority_at_least(&mut self, priority: i32) -> Option<i32> {
        pgrx::check_for_interrupts!();
        point!(RefillLevel);
        self.priorities.at_least(priority)
    }

    fn go_to(&mut self, priority: i32, run_at: i64) {
        // SAFETY: the conditions are on the columns of the order index.
        unsafe { self.scan.restart(&conditions(self.queue, priority, run_at)) };
    }

    fn next(&mut self) -> Option<Meaning> {
        let slot = self.scan.next()?;
        point!(RefillRow);
        // SAFETY: the scan has deformed a row of queue.tasks.
        let row = unsafe { Task::of(slot) };
        let grouped = row.get(task::GROUP_KEY).is_some();
        Some(if row.is_claimable() && (grouped || !row.is_late(now())) {
            Meaning::Due(row.key())
        } else if row.is_running() {
            Meaning::Runs(row.lease())
        } else {
            Meaning::Neither
        })
    }
}

fn conditions(queue: pg_sys::Datum, priority: i32, start: i64) -> [Condition; 3] {
    [
        Condition { column: 1, compare: Compare::TextEquals, value: queue },
        Condition { column: 2, compare: Compare::IntEquals, value: pg_sys::Datum::from(priority) },
        Condition { column: 3, compare: Compare::TimeAtLeast, value: pg_sys::Datum::from(start) },
    ]
}
