//! queue.complete, complete_many and complete_and_claim

use super::Outcome;
use super::arguments::Arguments;
use super::claim::{self, Places};
use super::queue;
use crate::clock::now;
use crate::datum::text;
use crate::fallback::Reason;
use crate::heap::columns::{self, history, task};
use crate::heap::row::Row;
use crate::heap::scan::{Condition, Scan, open_by_key};
use crate::heap::task::Task;
use crate::heap::tid::{self, ByTid};
use crate::heap::write::{self, Change};
use crate::heap::{self, Inserter, Tables, Use};
use crate::lanes::{Item, Queue};
use crate::rights::Kinds;
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
    by_tid: ByTid,
    history: Option<Inserter>,
    /// The settings of the queue that was met last.
    settings: Option<(Vec<u8>, queue::Settings)>,
    /// What was finished; those that wait for it are still to be told.
    finished: Vec<i64>,
}

impl Finisher {
    unsafe fn open() -> Result<Self, Reason> {
        let mut tables = heap::open(Use::Complete)?;
        heap::history_at(&mut tables, now())?;
        // SAFETY: locked by `heap::open`; closed by `close`, or by the end of the transaction.
        unsafe {
            let tasks = pg_sys::table_open(tables.tasks, pg_sys::NoLock as i32);
            let by_tid = ByTid::open(tasks);
            Ok(Self { tables, tasks, by_tid, history: None, settings: None, finished: Vec::new() })
        }
    }

    fn close(self) {
        self.by_tid.close();
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
                    let scan = scan.get_or_insert_with(|| {
                        Scan::begin(self.tasks, self.tables.tasks_pkey, &Condition::id(id))
                    });
                    scan.restart(&Condition::id(id));
                    found = scan.next();
                }
                let found = found
                    .map(|slot| (Task::of(slot), (*slot).tts_tid))
                    .filter(|(row, _)| row.runs_with(token));
                places.push(found.as_ref().map(|(_, place)| *place));
                result = found.map_or(Ok(()), |(row, _)| self.check(&row));
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
            let slot = self.by_tid.fetch(tid::recall(id)?, id, pg_sys::GetActiveSnapshot())?;
            Task::<{ task::COUNT }>::of(slot).runs_with(token).then_some(slot)
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
                    let scan =
                        scan.insert(Scan::begin(self.tasks, self.tables.tasks_pkey, &Condition::id(id)));
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
            let slot = self.by_tid.fetch(place, id, pg_sys::GetActiveSnapshot());
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
            let row = Task::of(slot);
            if !row.runs_with(token) {
                return Step::NotRunning;
            } else if let Err(reason) = self.check(&row) {
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
    unsafe fn check(&mut self, row: &Task) -> Result<(), Reason> {
        if row.get(task::KEY).is_some() || row.get(task::GROUP_KEY).is_some() {
            return Err(Reason::Policy);
        }
        // SAFETY: the queue of a task is a text.
        let name = unsafe { row.queue() };
        if self.settings.as_ref().is_none_or(|(known, _)| known != name) {
            self.settings = Some((name.to_vec(), queue::settings(&self.tables, name, Kinds::WORKER)?));
        }
        match &self.settings {
            Some((_, settings)) if !settings.limited => Ok(()),
            _ => Err(Reason::Policy),
        }
    }

    /// Writes a deleted task to the history.
    unsafe fn archive(&mut self, row: &Task, result: Option<pg_sys::Datum>) {
        let key = row.key();
        // SAFETY: the row is the slot's, which is still there; the history's columns are as found.
        unsafe {
            let queue = Queue::new(self.tables.tasks, row.queue());
            if self.settings.as_ref().is_none_or(|(_, settings)| settings.keep_history) {
                let table = self.tables.partition.table;
                let history = self.history.get_or_insert_with(|| Inserter::open(table, pg_sys::InvalidOid));
                // Also when it is midnight since the call began.
                let finished_at = self.tables.partition.within(now());
                let mut kept = in_history(row, finished_at, result);
                let ended = Item::ended(b"completed", finished_at, finished_at);
                ended.into_iter().for_each(|item| transaction::counted(&queue, item, 1));
                history.add(&mut kept);
            }
            transaction::counted(&queue, Item::RUNNING, -1);
            transaction::removed(&queue, key, row.long(task::LEASE_UNTIL));
        }
        self.finished.push(key.id);
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
                let mut scan = Scan::begin(table, key, &Condition::id(0));
                for id in finished {
                    scan.restart(&Condition::id(id));
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

/// The row of the history for a completed task.
fn in_history(row: &Task, finished_at: i64, result: Option<pg_sys::Datum>) -> Row<{ history::COUNT }> {
    const SAME: [(usize, usize); 16] = [
        (history::ID, task::ID),
        (history::QUEUE, task::QUEUE),
        (history::PRIORITY, task::PRIORITY),
        (history::RUN_AT, task::RUN_AT),
        (history::ATTEMPT, task::ATTEMPT),
        (history::MAX_ATTEMPTS, task::MAX_ATTEMPTS),
        (history::TOKEN, task::TOKEN),
        (history::WORKER, task::WORKER),
        (history::CLAIMED_AT, task::CLAIMED_AT),
        (history::CREATED_AT, task::CREATED_AT),
        (history::KEY, task::KEY),
        (history::GROUP_KEY, task::GROUP_KEY),
        (history::HEADERS, task::HEADERS),
        (history::PAYLOAD, task::PAYLOAD),
        (history::PROGRESS, task::PROGRESS),
        (history::ERRORS, task::ERRORS),
    ];
    let mut kept = Row::empty();
    for (to, from) in SAME {
        kept.set_option(to, row.get(from));
    }
    kept.set(history::STATE, text(b"completed"));
    kept.set(history::FINISHED_AT, finished_at);
    kept.set_option(history::RESULT, result);
    kept
}

/// Has SQL write to the dependents of completed tasks how these ended. Nothing else of their end concerns others: see
/// [`Finisher::check`].
fn tell_dependents(ids: Vec<i64>) {
    let query = "SELECT queue_internal.tell_dependents($1, 'completed')";
    let told = Spi::connect_mut(|client| client.update(query, Some(1), &[ids.into()]).map(|_| ()));
    if let Err(error) = told {
        error!("the dependents of a task could not be told: {error}");
    }
    point!(FinishDependents);
}
