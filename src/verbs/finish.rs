//! Finishing tasks: a running task is deleted from queue.tasks and written to queue.history.

use super::queue;
use crate::clock::now;
use crate::datum::{text, text_array, text_of};
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

/// The result of finishing a task.
pub enum Step {
    Done,
    /// The task does not run with that token.
    NotRunning,
    /// Another session changed it since it was read.
    Changed,
    /// Its end has effects on other tasks. Nothing was written.
    Fallback(Reason),
}

/// Moves running tasks to the history.
pub struct Finisher {
    tables: Tables,
    tasks: pg_sys::Relation,
    by_tid: ByTid,
    history: Option<Inserter>,
    /// The settings of the queue of the last task.
    settings: Option<(Vec<u8>, queue::Settings)>,
    /// The tasks that were finished, and whose dependents are not notified yet.
    finished: Vec<i64>,
    /// The queues and keys of the groups of those tasks.
    groups: [Vec<Vec<u8>>; 2],
}

impl Finisher {
    pub unsafe fn open() -> Result<Self, Reason> {
        let mut tables = heap::open(Use::Complete)?;
        heap::history_at(&mut tables, now())?;
        // SAFETY: locked by `heap::open`; closed by `close`, or by the end of the transaction.
        unsafe {
            let tasks = pg_sys::table_open(tables.tasks, pg_sys::NoLock as i32);
            let by_tid = ByTid::open(tasks);
            Ok(Self {
                tables,
                tasks,
                by_tid,
                history: None,
                settings: None,
                finished: Vec::new(),
                groups: Default::default(),
            })
        }
    }

    pub fn close(self) {
        self.by_tid.close();
        self.history.into_iter().for_each(Inserter::close);
        // SAFETY: opened here; the lock stays to the end of the transaction.
        unsafe { pg_sys::table_close(self.tasks, pg_sys::NoLock as i32) };
    }

    /// The TIDs of the tasks that run with these tokens. Fails if the end of any of them has effects on other tasks.
    pub unsafe fn find(
        &mut self,
        tasks: impl Iterator<Item = (i64, i64)>,
        tids: &mut Vec<Option<pg_sys::ItemPointerData>>,
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
                tids.push(found.as_ref().map(|(_, tid)| *tid));
                result = found.map_or(Ok(()), |(row, _)| self.check(&row));
                if result.is_err() {
                    break;
                }
            }
            scan.into_iter().for_each(Scan::end);
            result
        }
    }

    /// The row at the TID at which this session last wrote the task, if that is still its current version and it runs.
    unsafe fn recent(&mut self, id: i64, token: i64) -> Option<*mut pg_sys::TupleTableSlot> {
        // SAFETY: a snapshot is active; what is found is deformed.
        unsafe {
            let slot = self.by_tid.fetch(tid::recall(id)?, id, pg_sys::GetActiveSnapshot())?;
            Task::<{ task::COUNT }>::of(slot).runs_with(token).then_some(slot)
        }
    }

    /// Finishes a task.
    pub unsafe fn finish(&mut self, id: i64, token: i64, result: Option<pg_sys::Datum>) -> Step {
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

    /// Finishes a task that was found at a TID with the active snapshot.
    pub unsafe fn finish_at(
        &mut self,
        tid: pg_sys::ItemPointerData,
        id: i64,
        token: i64,
        result: Option<pg_sys::Datum>,
    ) -> Step {
        // SAFETY: as in `finish`.
        unsafe {
            let slot = self.by_tid.fetch(tid, id, pg_sys::GetActiveSnapshot());
            match slot.map_or(Step::Changed, |slot| self.step(slot, token, result)) {
                Step::Changed => self.finish(id, token, result),
                step => step,
            }
        }
    }

    /// Finishes the task in the slot, if the version in the active snapshot is still the current one.
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
                return Step::Fallback(reason);
            }
            match write::delete(self.tasks, (*slot).tts_tid) {
                Change::Done => {}
                Change::Own => return Step::Fallback(Reason::OwnTasks),
                Change::Stale | Change::Locked => return Step::Changed,
            }
            self.archive(&row, result);
        }
        Step::Done
    }

    /// Checks that the end of the task has no effects but on its group and its dependents: no key, no limit.
    unsafe fn check(&mut self, row: &Task) -> Result<(), Reason> {
        if row.get(task::KEY).is_some() {
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
        // SAFETY: the row is that of a slot which is still there; the history's columns were checked.
        unsafe {
            let queue = Queue::new(self.tables.tasks, row.queue());
            if self.settings.as_ref().is_none_or(|(_, settings)| settings.keep_history) {
                let table = self.tables.partition.table;
                let history = self.history.get_or_insert_with(|| Inserter::open(table, &[]));
                // Midnight may have passed since the call started.
                let finished_at = self.tables.partition.within(now());
                let mut kept = in_history(row, finished_at, result);
                if self.settings.as_ref().is_some_and(|(_, settings)| !settings.keep_payloads) {
                    kept.set_option(history::PAYLOAD, None);
                }
                let ended = Item::ended(b"completed", finished_at, finished_at);
                ended.into_iter().for_each(|item| transaction::counted(&queue, item, 1));
                history.add(&mut kept);
            }
            transaction::counted(&queue, Item::RUNNING, -1);
            transaction::removed(&queue, key, row.long(task::LEASE_UNTIL));
            if let Some(group) = row.get(task::GROUP_KEY) {
                self.groups[0].push(row.queue().to_vec());
                self.groups[1].push(text_of(group).to_vec());
            }
        }
        self.finished.push(key.id);
        point!(FinishArchived);
    }

    /// Inserts the remaining rows of the history, hands the groups of the finished tasks over, and notifies their
    /// dependents: after all deletions, or it would miss a dependent that another session is adding.
    pub unsafe fn flush(&mut self) {
        self.history.iter_mut().for_each(Inserter::store);
        let finished = std::mem::take(&mut self.finished);
        let groups = std::mem::take(&mut self.groups);
        // SAFETY: the snapshot is taken after the deletions; the index begins with the predecessor.
        unsafe {
            pg_sys::CommandCounterIncrement();
            if !groups[0].is_empty() {
                hand_over(groups);
            }
            let (table, key) = open_by_key(self.tables.dependencies, &columns::DEPENDENCIES_KEY)
                .unwrap_or_else(|_| error!("queue_internal.dependencies has lost its primary key"));
            let mut predecessors = Vec::new();
            // Usually there are none.
            if pg_sys::RelationGetNumberOfBlocksInFork(table, pg_sys::ForkNumber::MAIN_FORKNUM) > 0 {
                pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
                let mut scan = Scan::begin(table, key, &Condition::id(0));
                for id in finished {
                    scan.restart(&Condition::id(id));
                    if scan.next().is_some() {
                        predecessors.push(id);
                    }
                }
                scan.end();
                pg_sys::PopActiveSnapshot();
            }
            pg_sys::table_close(table, pg_sys::NoLock as i32);
            if !predecessors.is_empty() {
                notify_dependents(predecessors);
            }
            point!(FinishTold);
        }
    }
}

/// The row of the history for a completed task.
fn in_history(row: &Task, finished_at: i64, result: Option<pg_sys::Datum>) -> Row<{ history::COUNT }> {
    const SAME: [(usize, usize); 21] = [
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
        (history::KIND, task::KIND),
        (history::LEASE, task::LEASE),
        (history::TIMEOUT, task::TIMEOUT),
        (history::START_BY, task::START_BY),
        (history::WEIGHT, task::WEIGHT),
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

/// Admits the next tasks of groups, in SQL.
fn hand_over(groups: [Vec<Vec<u8>>; 2]) {
    let query = "SELECT queue_internal.hand_over($1, $2, true)";
    // SAFETY: each is an array of texts.
    let arguments = groups
        .map(|texts| unsafe { pgrx::datum::DatumWithOid::new(text_array(&texts), pg_sys::TEXTARRAYOID) });
    let done = Spi::connect_mut(|client| client.update(query, Some(1), &arguments).map(|_| ()));
    if let Err(error) = done {
        error!("the next tasks of groups could not be admitted: {error}");
    }
    point!(FinishGroups);
}

/// Writes the outcome of completed tasks to their dependents, in SQL.
fn notify_dependents(ids: Vec<i64>) {
    let query = "SELECT queue_internal.notify_dependents($1, 'completed')";
    let notified = Spi::connect_mut(|client| client.update(query, Some(1), &[ids.into()]).map(|_| ()));
    if let Err(error) = notified {
        error!("the dependents of a task could not be notified: {error}");
    }
    point!(FinishDependents);
}
