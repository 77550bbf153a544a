//! queue.extend

use super::Outcome;
use super::arguments::Arguments;
use super::queue;
use super::rows::Rows;
use crate::clock::now;
use crate::fallback::Reason;
use crate::heap::columns::task;
use crate::heap::scan::{Condition, Scan};
use crate::heap::task::Task;
use crate::heap::write::{self, Change};
use crate::heap::{self, Use, tid};
use crate::lanes::Queue;
use crate::rights::Kinds;
use crate::settings;
use crate::transaction;
use pgrx::prelude::*;

/// Serves the call, or returns why it falls back to SQL.
pub unsafe fn extend(arguments: &Arguments) -> Result<Outcome, Reason> {
    let id = arguments.needed(0)?.value() as i64;
    let token = arguments.needed(1)?.value() as i64;
    let lease = arguments.span(2, settings::max_lease())?;
    // SAFETY: in a transaction, with the tables plain and open. Each round sees what was committed before.
    unsafe {
        let tables = heap::open(Use::Extend)?;
        let table = pg_sys::table_open(tables.tasks, pg_sys::NoLock as i32);
        let extended = loop {
            pgrx::check_for_interrupts!();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let mut found = Scan::begin(table, tables.tasks_pkey, &Condition::id(id));
            let round = match found.next() {
                None => Some(Err(Reason::Lease)),
                Some(slot) => {
                    point!(ExtendFound);
                    let mut row = Task::of(slot);
                    let running = row.runs_with(token);
                    let name = row.queue();
                    let settings = queue::settings(&tables, name, Kinds::WORKER);
                    let lease = settings.map(|settings| {
                        let lease = lease.unwrap_or_else(|| settings.lease_of(&row));
                        (lease, settings.timeout_of(&row, row.long(task::CLAIMED_AT)))
                    });
                    match lease {
                        _ if !running => Some(Err(Reason::Lease)),
                        Err(reason) => Some(Err(reason)),
                        Ok((..=0, _)) => Some(Err(Reason::Argument)),
                        // SQL raises the error.
                        Ok((_, timeout)) if timeout <= now() => Some(Err(Reason::Lease)),
                        Ok((lease, timeout)) => {
                            let moment = now();
                            let until = moment.saturating_add(lease).min(timeout);
                            row.set(task::LEASE_UNTIL, until);
                            row.set(task::UPDATED_AT, moment);
                            if let Some(progress) = arguments.get(3) {
                                row.set(task::PROGRESS, progress);
                            }
                            let wanted = |index| tables.indexed(&row, index);
                            let mut tid = (*slot).tts_tid;
                            match write::update(table, &mut tid, &row, true, wanted) {
                                Change::Done => {
                                    tid::remember(id, tid);
                                    let queue = Queue::new(tables.tasks, name);
                                    transaction::extended(&queue, row.key(), until);
                                    point!(ExtendNoted);
                                    Some(Ok((until, row.get(task::CANCEL_REQUESTED_AT).is_some())))
                                }
                                Change::Own => Some(Err(Reason::OwnTasks)),
                                Change::Stale | Change::Locked => None,
                            }
                        }
                    }
                }
            };
            found.end();
            pg_sys::PopActiveSnapshot();
            if let Some(result) = round {
                break result;
            }
        };
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        let (until, cancel_requested) = extended?;
        pg_sys::CommandCounterIncrement();
        let rows = Rows::new(arguments)?;
        rows.add(&mut [pg_sys::Datum::from(until), pg_sys::Datum::from(cancel_requested)], &mut [false; 2]);
        Ok(Outcome::Served(rows.done()))
    }
}
