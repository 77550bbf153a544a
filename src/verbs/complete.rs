//! queue.complete, complete_many and complete_and_claim

use super::Outcome;
use super::arguments::Arguments;
use super::claim::{self, Places, by_id};
use super::queue;
use crate::clock::now;
use crate::lanes::{Key, Queue};
use crate::tables::rows::{Row, task, text};
use crate::tables::scan::Scan;
use crate::tables::write::{self, Change, Indexes};
use crate::tables::{self, Reason, Tables, Use};
use crate::transaction;
use pgrx::prelude::*;

/// Serves queue.complete, or says why the core has to.
pub unsafe fn complete(arguments: &Arguments) -> Result<Outcome, Reason> {
    // SAFETY: the arguments are where native.sql declares them.
    unsafe {
        finish(arguments)?;
        Ok(Outcome::Served(pg_sys::Datum::from(0)))
    }
}

/// Serves queue.complete_and_claim.
pub unsafe fn complete_and_claim(arguments: &Arguments) -> Result<Outcome, Reason> {
    const PLACES: Places = Places { lease: 3, queue: 4, worker: 5 };
    // SAFETY: the arguments are where native.sql declares them.
    unsafe {
        finish(arguments)?;
        Ok(claim::claim_for(arguments, PLACES, 1).unwrap_or_else(|reason| {
            let one = pg_sys::NullableDatum { value: pg_sys::Datum::from(1), isnull: false };
            let [lease, queue, worker] =
                [PLACES.lease, PLACES.queue, PLACES.worker].map(|place| arguments.raw(place));
            Outcome::CoreClaim(reason, [lease, queue, one, worker])
        }))
    }
}

/// Finishes the task that the first two arguments name.
unsafe fn finish(arguments: &Arguments) -> Result<(), Reason> {
    let id = arguments.needed(0)?.value() as i64;
    let token = arguments.needed(1)?.value() as i32;
    // SAFETY: in a transaction.
    unsafe {
        let mut finisher = Finisher::open()?;
        let result = finisher.finish(id, token, arguments.get(2));
        finisher.close();
        match result {
            Some(Ok(())) => {
                pg_sys::CommandCounterIncrement();
                Ok(())
            }
            Some(Err(reason)) => Err(reason),
            // Which error that is, the core knows.
            None => Err(Reason::Lease),
        }
    }
}

/// Serves queue.complete_many.
pub unsafe fn complete_many(arguments: &Arguments) -> Result<Outcome, Reason> {
    let ids = arguments.array(0)?;
    let tokens = arguments.array(1)?;
    let results = match arguments.get(2) {
        Some(_) => Some(arguments.array(2)?),
        None => None,
    };
    let fits = ids.len() == tokens.len() && results.as_ref().is_none_or(|all| all.len() == ids.len());
    if !fits || ids.len() > 100_000 {
        return Err(Reason::Argument);
    }
    // In the order of ids, so that two batches cannot deadlock.
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_unstable_by_key(|place| ids[*place].value() as i64);
    let repeated = order.windows(2).any(|pair| ids[pair[0]].value() == ids[pair[1]].value());
    if repeated {
        return Err(Reason::Argument);
    }
    // SAFETY: in a transaction.
    unsafe {
        let mut finisher = Finisher::open()?;
        // Before anything is written: whether all of them are plain.
        for place in &order {
            if let Some(Err(reason)) = finisher.look(ids[*place].value() as i64, tokens[*place].value() as i32) {
                finisher.close();
                return Err(reason);
            }
        }
        let rows = arguments.rows()?;
        let mut accepted = vec![false; ids.len()];
        for place in order {
            pgrx::check_for_interrupts!();
            let result = results.as_ref().map(|results| results[place]);
            let (id, token) = (ids[place].value() as i64, tokens[place].value() as i32);
            match finisher.finish(id, token, result) {
                Some(Ok(())) => accepted[place] = true,
                None => {}
                Some(Err(_)) => {
                    // It changed while we waited for its lock: then the core finishes this one.
                    pg_sys::CommandCounterIncrement();
                    accepted[place] = finish_by_core(id, token, result);
                }
            }
        }
        finisher.close();
        pg_sys::CommandCounterIncrement();
        for (id, _) in ids.iter().zip(accepted).filter(|(_, accepted)| *accepted) {
            rows.add(&mut [*id], &mut [false]);
        }
        Ok(Outcome::Served(rows.done()))
    }
}

/// Finishes a task by the core's complete_many; says whether it was accepted.
fn finish_by_core(id: i64, token: i32, result: Option<pg_sys::Datum>) -> bool {
    let query = "SELECT count(*) FROM queue_internal.complete_many(ARRAY[$1], ARRAY[$2], ARRAY[$3])";
    // SAFETY: the result is a jsonb, as it was given to us.
    let result = result.map(|value| unsafe { pgrx::datum::DatumWithOid::new(value, pg_sys::JSONBOID) });
    let result = result.unwrap_or_else(|| pgrx::datum::DatumWithOid::null_oid(pg_sys::JSONBOID));
    let count = Spi::connect_mut(|client| {
        client.update(query, Some(1), &[id.into(), token.into(), result])?.first().get_one::<i64>()
    });
    matches!(count, Ok(Some(1)))
}

/// Moves running tasks to the history.
struct Finisher {
    tables: Tables,
    tasks: pg_sys::Relation,
    history: Option<History>,
    /// The settings of the queue that was met last.
    settings: Option<(Vec<u8>, queue::Settings)>,
}

/// Today's partition of the history, open for writing.
struct History {
    table: pg_sys::Relation,
    indexes: Indexes,
    slot: *mut pg_sys::TupleTableSlot,
}

impl Finisher {
    unsafe fn open() -> Result<Self, Reason> {
        let mut tables = tables::open(Use::Complete)?;
        tables::history_at(&mut tables, now())?;
        // SAFETY: locked by `tables::open`.
        let tasks = unsafe { pg_sys::table_open(tables.tasks, pg_sys::NoLock as i32) };
        Ok(Self { tables, tasks, history: None, settings: None })
    }

    fn close(self) {
        // SAFETY: opened here; the locks stay to the end of the transaction.
        unsafe {
            if let Some(history) = self.history {
                pg_sys::ExecDropSingleTupleTableSlot(history.slot);
                history.indexes.close();
                pg_sys::table_close(history.table, pg_sys::NoLock as i32);
            }
            pg_sys::table_close(self.tasks, pg_sys::NoLock as i32);
        }
    }

    /// Whether a task can be finished here; nothing if it does not run with this token.
    unsafe fn look(&mut self, id: i64, token: i32) -> Option<Result<(), Reason>> {
        // SAFETY: as in `finish`.
        unsafe {
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let mut scan = Scan::begin(self.tasks, self.tables.tasks_pkey, &by_id(id));
            let row = scan.next().map(|slot| Row::<{ task::COUNT }>::of(slot));
            let verdict = row.filter(|row| runs(row, token)).map(|row| self.judge(&row));
            scan.end();
            pg_sys::PopActiveSnapshot();
            verdict
        }
    }

    /// Finishes a task; nothing if it does not run with this token.
    unsafe fn finish(&mut self, id: i64, token: i32, result: Option<pg_sys::Datum>) -> Option<Result<(), Reason>> {
        loop {
            pgrx::check_for_interrupts!();
            // SAFETY: the tables are open and plain; each round sees what was committed before it.
            unsafe {
                pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
                let mut scan = Scan::begin(self.tasks, self.tables.tasks_pkey, &by_id(id));
                let done = match scan.next() {
                    None => Some(None),
                    Some(slot) => {
                        let row = Row::<{ task::COUNT }>::of(slot);
                        if !runs(&row, token) {
                            Some(None)
                        } else if let Err(reason) = self.judge(&row) {
                            Some(Some(Err(reason)))
                        } else if write::delete(self.tasks, (*slot).tts_tid) == Change::Done {
                            self.archive(&row, result);
                            Some(Some(Ok(())))
                        } else {
                            // Somebody changed it while we waited: look again.
                            None
                        }
                    }
                };
                scan.end();
                pg_sys::PopActiveSnapshot();
                if let Some(done) = done {
                    return done;
                }
            }
        }
    }

    /// Whether the end of the task concerns nobody else.
    unsafe fn judge(&mut self, row: &Row<{ task::COUNT }>) -> Result<(), Reason> {
        if row.get(task::KEY).is_some() || row.get(task::GROUP_KEY).is_some() {
            return Err(Reason::Policy);
        }
        // SAFETY: the queue of a task is a text.
        let name = unsafe { crate::tables::rows::text_of(row.values[task::QUEUE]) };
        if self.settings.as_ref().is_none_or(|(known, _)| known != name) {
            self.settings = Some((name.to_vec(), queue::settings(&self.tables, name)?));
        }
        match &self.settings {
            Some((_, settings)) if !settings.limited => Ok(()),
            _ => Err(Reason::Policy),
        }
    }

    /// Writes a deleted task to the history and tells those who wait for it.
    unsafe fn archive(&mut self, row: &Row<{ task::COUNT }>, result: Option<pg_sys::Datum>) {
        // SAFETY: the row is the scan's, which is still open; the history's columns are as found.
        unsafe {
            let name = crate::tables::rows::text_of(row.values[task::QUEUE]);
            let queue = Queue::new(self.tables.tasks, name);
            let key = Key {
                priority: row.int(task::PRIORITY),
                run_at: row.long(task::RUN_AT),
                id: row.long(task::ID),
            };
            if self.settings.as_ref().is_none_or(|(_, settings)| settings.keep_history) {
                let table = self.tables.today.table;
                let history = self.history.get_or_insert_with(|| {
                    let table = pg_sys::table_open(table, pg_sys::RowExclusiveLock as i32);
                    History { table, indexes: Indexes::open(table), slot: write::slot_for(table) }
                });
                let kept = in_history(row, result);
                write::insert(history.table, &history.indexes, history.slot, &kept, |_| true);
            }
            if self.is_awaited(key.id) {
                // In the statement after the one that deleted it, as the core has it.
                pg_sys::CommandCounterIncrement();
                tell_dependents(&self.tables, row);
            }
            transaction::removed(&queue, key, row.long(task::LEASE_UNTIL));
        }
    }

    /// Whether another task waits for this one.
    unsafe fn is_awaited(&self, id: i64) -> bool {
        // SAFETY: the snapshot is taken after the deletion; the index begins with the predecessor.
        unsafe {
            let table = pg_sys::table_open(self.tables.dependencies, pg_sys::AccessShareLock as i32);
            // Most databases never have any.
            let mut some = pg_sys::RelationGetNumberOfBlocksInFork(table, pg_sys::ForkNumber::MAIN_FORKNUM) > 0;
            if some {
                pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
                let mut scan = Scan::begin(table, self.tables.dependencies_pkey, &by_id(id));
                some = scan.next().is_some();
                scan.end();
                pg_sys::PopActiveSnapshot();
            }
            pg_sys::table_close(table, pg_sys::NoLock as i32);
            some
        }
    }
}

fn runs(row: &Row<{ task::COUNT }>, token: i32) -> bool {
    row.is(task::STATE, b"running") && row.int(task::TOKEN) == token
}

/// The row of the history for a completed task.
fn in_history(row: &Row<{ task::COUNT }>, result: Option<pg_sys::Datum>) -> Row<19> {
    const COLUMNS: [Option<usize>; 19] = [
        Some(task::ID),
        Some(task::QUEUE),
        None,
        Some(task::PRIORITY),
        Some(task::RUN_AT),
        Some(task::ATTEMPT),
        Some(task::MAX_ATTEMPTS),
        Some(task::TOKEN),
        Some(task::WORKER),
        Some(task::CLAIMED_AT),
        Some(task::CREATED_AT),
        None,
        Some(task::KEY),
        Some(task::GROUP_KEY),
        Some(task::HEADERS),
        Some(task::PAYLOAD),
        Some(task::PROGRESS),
        Some(task::ERRORS),
        None,
    ];
    const STATE: usize = 2;
    const FINISHED_AT: usize = 11;
    const RESULT: usize = 18;
    let mut kept = Row::empty();
    for (place, column) in COLUMNS.into_iter().enumerate() {
        kept.set_option(place, column.and_then(|column| row.get(column)));
    }
    kept.set(STATE, text(b"completed"));
    kept.set(FINISHED_AT, now());
    kept.set_option(RESULT, result);
    kept
}

/// Does what the core does when a task ends for which others wait.
unsafe fn tell_dependents(tables: &Tables, row: &Row<{ task::COUNT }>) {
    let query = "SELECT queue_internal.leave($1, 'completed')";
    // SAFETY: a row of queue.tasks, of its own row type.
    unsafe {
        let relation = pg_sys::table_open(tables.tasks, pg_sys::NoLock as i32);
        let (mut values, mut nulls) = (row.values, row.nulls);
        let shape = (*relation).rd_att;
        let tuple = pg_sys::heap_form_tuple(shape, values.as_mut_ptr(), nulls.as_mut_ptr());
        let value = pg_sys::heap_copy_tuple_as_datum(tuple, shape);
        let task = pgrx::datum::DatumWithOid::new(value, (*(*relation).rd_rel).reltype);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
        let told = Spi::connect_mut(|client| client.update(query, Some(1), &[task]).map(|_| ()));
        if let Err(error) = told {
            error!("the dependents of a task could not be told: {error}");
        }
    }
}

