//! queue.complete, complete_many and complete_and_claim

use super::Outcome;
use super::arguments::Arguments;
use super::claim::{self, Places, by_id};
use super::queue;
use crate::clock::now;
use crate::lanes::{Item, Key, Queue};
use crate::rights::Kinds;
use crate::tables::columns;
use crate::tables::rows::{Row, task, text, text_of};
use crate::tables::scan::{self, ByPlace, Scan, open_by_key};
use crate::tables::write::{self, Change, Inserter};
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
        point!(FinishClaims);
        Ok(claim::claim_for(arguments, PLACES, 1).unwrap_or_else(|reason| {
            let one = pg_sys::NullableDatum { value: pg_sys::Datum::from(1), isnull: false };
            let [lease, queue, worker] = PLACES.raw(arguments);
            Outcome::CoreClaim(reason, [lease, queue, one, worker])
        }))
    }
}

/// Finishes the task that the first two arguments name.
unsafe fn finish(arguments: &Arguments) -> Result<(), Reason> {
    let id = arguments.needed(0)?.value() as i64;
    let token = arguments.needed(1)?.value() as i64;
    // SAFETY: in a transaction.
    unsafe {
        let mut finisher = Finisher::open()?;
        let result = finisher.finish(id, token, arguments.get(2));
        finisher.tell();
        finisher.close();
        match result {
            Step::Done => Ok(()),
            Step::Core(reason) => Err(reason),
            // Which error that is, the core knows.
            Step::NotRunning | Step::Changed => Err(Reason::Lease),
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
    let task = |place: usize| (ids[place].value() as i64, tokens[place].value() as i64);
    let mut accepted = vec![false; ids.len()];
    // SAFETY: in a transaction. The snapshot serves all of them: who has changed meanwhile is looked at anew.
    unsafe {
        let mut finisher = Finisher::open()?;
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        // Before anything is written: whether all of them are plain, and where they are.
        let mut places = Vec::with_capacity(order.len());
        let plain = finisher.find(order.iter().map(|place| task(*place)), &mut places);
        if plain.is_ok() {
            for (place, found) in order.into_iter().zip(places) {
                pgrx::check_for_interrupts!();
                point!(FinishNext);
                let ((id, token), result) = (task(place), results.as_ref().map(|results| results[place]));
                let step = match found {
                    Some(found) => finisher.finish_at(found, id, token, result),
                    None => Step::NotRunning,
                };
                accepted[place] = match step {
                    Step::Done => true,
                    Step::NotRunning => false,
                    // It changed while we waited for its lock: then the core finishes this one.
                    Step::Changed | Step::Core(_) => {
                        finisher.tell();
                        finish_by_core(id, token, result)
                    }
                };
            }
            finisher.tell();
        }
        pg_sys::PopActiveSnapshot();
        finisher.close();
        plain?;
        let rows = arguments.rows()?;
        for (id, _) in ids.iter().zip(accepted).filter(|(_, accepted)| *accepted) {
            rows.add(&mut [*id], &mut [false]);
        }
        Ok(Outcome::Served(rows.done()))
    }
}

/// Finishes a task by the core's complete_many; says whether it was accepted.
fn finish_by_core(id: i64, token: i64, result: Option<pg_sys::Datum>) -> bool {
    let query =
        "SELECT pg_catalog.count(*) FROM queue_internal.complete_many(ARRAY[$1], ARRAY[$2], ARRAY[$3])";
    // SAFETY: the result is a jsonb, as it was given to us.
    let result = result.map(|value| unsafe { pgrx::datum::DatumWithOid::new(value, pg_sys::JSONBOID) });
    let result = result.unwrap_or_else(|| pgrx::datum::DatumWithOid::null_oid(pg_sys::JSONBOID));
    let count = Spi::connect_mut(|client| {
        client.update(query, Some(1), &[id.into(), token.into(), result])?.first().get_one::<i64>()
    });
    point!(FinishByCore);
    matches!(count, Ok(Some(1)))
}

/// What became of a task that was to be finished.
enum Step {
    Done,
    /// It does not run with that token.
    NotRunning,
    /// Somebody changed it since it was read.
    Changed,
    /// Its end concerns others, and nothing was written.
    Core(Reason),
}

/// Moves running tasks to the history.
struct Finisher {
    tables: Tables,
    tasks: pg_sys::Relation,
    places: ByPlace,
    history: Option<Inserter>,
    /// The settings of the queue that was met last.
    settings: Option<(Vec<u8>, queue::Settings)>,
    /// What was finished; those that wait for it are still to be told.
    finished: Vec<i64>,
}

impl Finisher {
    unsafe fn open() -> Result<Self, Reason> {
        let mut tables = tables::open(Use::Complete)?;
        tables::history_at(&mut tables, now())?;
        // SAFETY: locked by `tables::open`; closed by `close`, or by the end of the transaction.
        unsafe {
            let tasks = pg_sys::table_open(tables.tasks, pg_sys::NoLock as i32);
            let places = ByPlace::open(tasks);
            Ok(Self { tables, tasks, places, history: None, settings: None, finished: Vec::new() })
        }
    }

    fn close(self) {
        self.places.close();
        self.history.into_iter().for_each(Inserter::close);
        // SAFETY: opened here; the lock stays to the end of the transaction.
        unsafe { pg_sys::table_close(self.tasks, pg_sys::NoLock as i32) };
    }

    /// Where the tasks are that run with these tokens; fails if the end of any concerns others.
    unsafe fn find(
        &mut self,
        tasks: impl Iterator<Item = (i64, i64)>,
        places: &mut Vec<Option<pg_sys::ItemPointerData>>,
    ) -> Result<(), Reason> {
        // SAFETY: the table is open and locked, and a snapshot is active.
        unsafe {
            let mut scan = None;
            let mut result = Ok(());
            for (id, token) in tasks {
                let mut found = self.recent(id, token);
                if found.is_none() {
                    let scan = scan
                        .get_or_insert_with(|| Scan::begin(self.tasks, self.tables.tasks_pkey, &by_id(id)));
                    scan.restart(&by_id(id));
                    found = scan.next();
                }
                let found =
                    found.map(|slot| (Row::of(slot), (*slot).tts_tid)).filter(|(row, _)| runs(row, token));
                places.push(found.as_ref().map(|(_, place)| *place));
                result = found.map_or(Ok(()), |(row, _)| self.judge(&row));
                if result.is_err() {
                    break;
                }
            }
            scan.into_iter().for_each(Scan::end);
            result
        }
    }

    /// The row of a task where this session left it, if it is still there and runs.
    unsafe fn recent(&mut self, id: i64, token: i64) -> Option<*mut pg_sys::TupleTableSlot> {
        // SAFETY: a snapshot is active; the place deforms the rows that it finds.
        unsafe {
            let slot = self.places.fetch(scan::was_at(id)?, id, pg_sys::GetActiveSnapshot())?;
            runs(&Row::of(slot), token).then_some(slot)
        }
    }

    /// Finishes a task, wherever it is.
    unsafe fn finish(&mut self, id: i64, token: i64, result: Option<pg_sys::Datum>) -> Step {
        loop {
            pgrx::check_for_interrupts!();
            // SAFETY: the tables are open and plain; each round sees what was committed before it.
            unsafe {
                pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
                let mut scan = None;
                let slot = self.recent(id, token).or_else(|| {
                    let scan = scan.insert(Scan::begin(self.tasks, self.tables.tasks_pkey, &by_id(id)));
                    scan.next()
                });
                let step = slot.map_or(Step::NotRunning, |slot| self.step(slot, token, result));
                scan.into_iter().for_each(Scan::end);
                pg_sys::PopActiveSnapshot();
                if !matches!(step, Step::Changed) {
                    return step;
                }
            }
        }
    }

    /// Finishes a task that was found at a place with the active snapshot.
    unsafe fn finish_at(
        &mut self,
        place: pg_sys::ItemPointerData,
        id: i64,
        token: i64,
        result: Option<pg_sys::Datum>,
    ) -> Step {
        // SAFETY: as in `finish`.
        unsafe {
            let slot = self.places.fetch(place, id, pg_sys::GetActiveSnapshot());
            match slot.map_or(Step::Changed, |slot| self.step(slot, token, result)) {
                Step::Changed => self.finish(id, token, result),
                step => step,
            }
        }
    }

    /// Finishes the task in the slot, if it is still as the active snapshot has it.
    unsafe fn step(
        &mut self,
        slot: *mut pg_sys::TupleTableSlot,
        token: i64,
        result: Option<pg_sys::Datum>,
    ) -> Step {
        // SAFETY: a deformed row of queue.tasks, which stays until it is written.
        unsafe {
            point!(FinishFound);
            let row = Row::<{ task::COUNT }>::of(slot);
            if !runs(&row, token) {
                return Step::NotRunning;
            } else if let Err(reason) = self.judge(&row) {
                return Step::Core(reason);
            }
            match write::delete(self.tasks, (*slot).tts_tid) {
                Change::Done => {}
                Change::Own => return Step::Core(Reason::OwnTasks),
                Change::Stale | Change::Locked => return Step::Changed,
            }
            self.archive(&row, result);
        }
        Step::Done
    }

    /// Whether the end of the task concerns nobody else.
    unsafe fn judge(&mut self, row: &Row<{ task::COUNT }>) -> Result<(), Reason> {
        if row.get(task::KEY).is_some() || row.get(task::GROUP_KEY).is_some() {
            return Err(Reason::Policy);
        }
        // SAFETY: the queue of a task is a text.
        let name = unsafe { text_of(row.values[task::QUEUE]) };
        if self.settings.as_ref().is_none_or(|(known, _)| known != name) {
            self.settings = Some((name.to_vec(), queue::settings(&self.tables, name, Kinds::WORKER)?));
        }
        match &self.settings {
            Some((_, settings)) if !settings.limited => Ok(()),
            _ => Err(Reason::Policy),
        }
    }

    /// Writes a deleted task to the history.
    unsafe fn archive(&mut self, row: &Row<{ task::COUNT }>, result: Option<pg_sys::Datum>) {
        let id = row.long(task::ID);
        let key = Key { priority: row.int(task::PRIORITY), run_at: row.long(task::RUN_AT), id };
        // SAFETY: the row is the slot's, which is still there; the history's columns are as found.
        unsafe {
            let queue = Queue::new(self.tables.tasks, text_of(row.values[task::QUEUE]));
            if self.settings.as_ref().is_none_or(|(_, settings)| settings.keep_history) {
                let table = self.tables.today.table;
                let history = self.history.get_or_insert_with(|| Inserter::open(table, pg_sys::InvalidOid));
                // Also when it is midnight since the call began.
                let finished_at = self.tables.today.within(now());
                let mut kept = in_history(row, finished_at, result);
                let ended = Item::ended(b"completed", finished_at, finished_at);
                ended.into_iter().for_each(|item| transaction::counted(&queue, item, 1));
                history.add(&mut kept);
            }
            transaction::counted(&queue, Item::RUNNING, -1);
            transaction::removed(&queue, key, row.long(task::LEASE_UNTIL));
        }
        self.finished.push(id);
        point!(FinishArchived);
    }

    /// Stores what is still to be stored, and tells those who wait for one of the finished tasks: after
    /// all of them were deleted, or one that begins to wait at this moment would be missed.
    unsafe fn tell(&mut self) {
        self.history.iter_mut().for_each(Inserter::store);
        let finished = std::mem::take(&mut self.finished);
        // SAFETY: the snapshot is taken after the deletions; the index begins with the predecessor.
        unsafe {
            pg_sys::CommandCounterIncrement();
            let (table, key) = open_by_key(self.tables.dependencies, &columns::DEPENDENCIES_KEY)
                .unwrap_or_else(|_| error!("queue_internal.dependencies has lost its primary key"));
            let mut awaited = Vec::new();
            // Most databases never have any.
            if pg_sys::RelationGetNumberOfBlocksInFork(table, pg_sys::ForkNumber::MAIN_FORKNUM) > 0 {
                pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
                let mut scan = Scan::begin(table, key, &by_id(0));
                for id in finished {
                    scan.restart(&by_id(id));
                    if scan.next().is_some() {
                        awaited.push(id);
                    }
                }
                scan.end();
                pg_sys::PopActiveSnapshot();
            }
            pg_sys::table_close(table, pg_sys::NoLock as i32);
            if !awaited.is_empty() {
                tell_dependents(awaited);
            }
            point!(FinishTold);
        }
    }
}

fn runs(row: &Row<{ task::COUNT }>, token: i64) -> bool {
    row.is(task::STATE, b"running") && row.long(task::TOKEN) == token
}

/// The row of the history for a completed task.
fn in_history(row: &Row<{ task::COUNT }>, finished_at: i64, result: Option<pg_sys::Datum>) -> Row<19> {
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
    kept.set(FINISHED_AT, finished_at);
    kept.set_option(RESULT, result);
    kept
}

/// Has SQL write to the dependents of completed tasks how these ended. Nothing else of their end concerns others: see
/// [`Finisher::judge`].
fn tell_dependents(ids: Vec<i64>) {
    let query = "SELECT queue_internal.tell_dependents($1, 'completed')";
    let told = Spi::connect_mut(|client| client.update(query, Some(1), &[ids.into()]).map(|_| ()));
    if let Err(error) = told {
        error!("the dependents of a task could not be told: {error}");
    }
    point!(FinishDependents);
}
