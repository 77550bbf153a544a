//! Reading the table of tasks for a lane: what is due next, what comes due next, what runs.
//!
//! The order index is walked one priority at a time, as a claim of the core does. A refill begins where
//! the last one ended, and so never passes again over the index entries of finished tasks, however many
//! of them a long transaction keeps from being vacuumed.

use crate::clock::now;
use crate::lanes::{self, Bounds, Findings, Key, Lease, Queue, TIMED, Timed};
use crate::shared::NEVER;
use crate::tables::Tables;
use crate::tables::rows::{Row, task, text};
use crate::tables::scan::{Compare, Condition, Levels, Scan};
use crate::transaction;
use pgrx::prelude::*;

/// Refills the lane of the queue as the lane has asked this process to.
///
/// # Safety
/// In a transaction that may take snapshots, with the tables found plain and `tasks` locked.
pub unsafe fn run(tables: &Tables, queue: &Queue<'_>, bounds: Bounds) {
    transaction::refilling(queue.hash());
    transaction::teaches(queue.hash());
    // SAFETY: the caller's promise. The snapshot is taken after the lane began to note what it misses.
    let found = unsafe {
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let table = pg_sys::table_open(tables.tasks, pg_sys::AccessShareLock as i32);
        let found = Reader { tables, table, queue: text(queue.name()), bounds, moment: now() }.read();
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        pg_sys::PopActiveSnapshot();
        found
    };
    transaction::refilling(0);
    let wake = lanes::with(queue.hash(), |slot| {
        slot.lane.refilled(bounds, &found, now());
        slot.counters.refills += 1;
        slot.counters.sweeps += u64::from(bounds.from == Key::FIRST);
        if slot.lane.line_length() > 0 { slot.waiters.next() } else { None }
    });
    wake.flatten().into_iter().for_each(lanes::Wake::now);
    lanes::announce_refill(queue.hash());
}

/// Says that this process will not refill the lane after all.
pub fn give_up(queue: &Queue<'_>) {
    transaction::refilling(0);
    lanes::with(queue.hash(), |slot| slot.lane.give_up());
    lanes::announce_refill(queue.hash());
}

struct Reader<'a> {
    tables: &'a Tables,
    table: pg_sys::Relation,
    queue: pg_sys::Datum,
    bounds: Bounds,
    moment: i64,
}

/// What a row means to a lane.
enum Meaning {
    Due(Key),
    Runs(Lease),
    Neither,
}

impl Reader<'_> {
    unsafe fn read(&self) -> Findings {
        let mut found = Findings {
            due: Vec::new(),
            due_below: Key::LAST,
            came_due: Vec::new(),
            came_due_cut: None,
            timed: Vec::new(),
            timed_before: NEVER,
            leases: Vec::new(),
        };
        let Bounds { from, timed_from, .. } = self.bounds;
        // SAFETY: the table is locked; the conditions are on the columns of the order index.
        unsafe {
            let conditions = self.conditions(0, i64::MIN);
            let mut scan = Scan::begin(self.table, self.tables.tasks_order, &conditions);
            let mut levels = Levels::begin(self.table, self.tables.tasks_order, self.queue);
            // Without tasks to come to look for, those before `from` need no look.
            let mut next = match timed_from {
                None => levels.at_least(from.priority),
                Some(_) => levels.at_least(i32::MIN),
            };
            while let Some(level) = next {
                if let Some(since) = timed_from
                    && level <= from.priority
                    && found.came_due_cut.is_none()
                {
                    self.read_came_due(&mut scan, level, since, &mut found);
                }
                if level >= from.priority && found.due_below == Key::LAST {
                    let start = if level == from.priority { from.run_at } else { i64::MIN };
                    self.read_due(&mut scan, level, start, &mut found);
                }
                if timed_from.is_some() {
                    self.read_timed(&mut scan, level, &mut found);
                } else if found.due_below != Key::LAST {
                    break;
                }
                next = levels.above(level);
                pgrx::check_for_interrupts!();
            }
            levels.end();
            scan.end();
        }
        found.timed.sort_unstable();
        if found.timed.len() > TIMED {
            found.timed_before = found.timed_before.min(found.timed[TIMED].at);
            found.timed.truncate(TIMED);
        }
        found
    }

    unsafe fn read_due(&self, scan: &mut Scan, level: i32, start: i64, found: &mut Findings) {
        // SAFETY: as in `read`.
        unsafe { scan.restart(&self.conditions(level, start)) };
        while let Some(row) = self.next(scan) {
            match row {
                Meaning::Due(key) if key.run_at > self.moment => break,
                Meaning::Due(key) if key >= self.bounds.from => {
                    found.due.push(key);
                    if found.due.len() == self.bounds.room {
                        found.due_below = Key { id: key.id + 1, ..key };
                        break;
                    }
                }
                Meaning::Runs(lease) => found.leases.push(lease),
                _ => {}
            }
        }
    }

    unsafe fn read_came_due(&self, scan: &mut Scan, level: i32, since: i64, found: &mut Findings) {
        // SAFETY: as in `read`.
        unsafe { scan.restart(&self.conditions(level, since)) };
        while let Some(row) = self.next(scan) {
            match row {
                Meaning::Due(key) if key.run_at > self.moment || key >= self.bounds.from => break,
                Meaning::Due(key) => {
                    if found.came_due.len() == lanes::LINE {
                        found.came_due_cut = Some(key);
                        break;
                    }
                    found.came_due.push(key);
                }
                Meaning::Runs(lease) => found.leases.push(lease),
                Meaning::Neither => {}
            }
        }
    }

    unsafe fn read_timed(&self, scan: &mut Scan, level: i32, found: &mut Findings) {
        // SAFETY: as in `read`.
        unsafe { scan.restart(&self.conditions(level, self.moment + 1)) };
        let mut count = 0;
        while let Some(row) = self.next(scan) {
            let Meaning::Due(key) = row else { continue };
            if count == TIMED {
                found.timed_before = found.timed_before.min(key.run_at);
                break;
            }
            found.timed.push(Timed { at: key.run_at, key });
            count += 1;
        }
    }

    fn next(&self, scan: &mut Scan) -> Option<Meaning> {
        let slot = scan.next()?;
        // SAFETY: the scan has deformed a row of queue.tasks.
        let row = unsafe { Row::<{ task::COUNT }>::of(slot) };
        Some(if row.is(task::STATE, b"queued") {
            Meaning::Due(Key {
                priority: row.int(task::PRIORITY),
                run_at: row.long(task::RUN_AT),
                id: row.long(task::ID),
            })
        } else if row.is(task::STATE, b"running") {
            Meaning::Runs(Lease { id: row.long(task::ID), until: row.long(task::LEASE_UNTIL) })
        } else {
            Meaning::Neither
        })
    }

    fn conditions(&self, level: i32, start: i64) -> [Condition; 3] {
        [
            Condition { column: 1, compare: Compare::TextEquals, value: self.queue },
            Condition { column: 2, compare: Compare::IntEquals, value: pg_sys::Datum::from(level) },
            Condition { column: 3, compare: Compare::TimeAtLeast, value: pg_sys::Datum::from(start) },
        ]
    }
}
