//! queue.push, and the rows of tasks that queue.push and queue.push_many insert

use super::Outcome;
use super::arguments::Arguments;
use super::queue;
use crate::clock::now;
use crate::counting;
use crate::datum::{text, text_of};
use crate::fallback::Reason;
use crate::heap::columns::task;
use crate::heap::task::Task;
use crate::heap::{self, Indexes, Tables, Use, write};
use crate::lanes::{Item, Queue};
use crate::rights::Kinds;
use crate::settings;
use crate::transaction;
use pgrx::prelude::*;

/// The longest delay, a hundred years, in microseconds.
const LONGEST_DELAY: i64 = 100 * 365 * 86_400_000_000;
/// The longest timeout, a year, in microseconds.
const LONGEST_TIMEOUT: i64 = 365 * 86_400_000_000;
/// The largest weight.
const LARGEST_WEIGHT: i32 = 1_000_000;

/// The arguments, by number, of push and push_many; those up to `ON_PREDECESSOR_FAILURE` they have in common.
pub(super) mod argument {
    pub const QUEUE: usize = 0;
    pub const PAYLOAD: usize = 1;
    pub const PRIORITY: usize = 2;
    pub const RUN_AT: usize = 3;
    pub const DELAY: usize = 4;
    pub const KEY: usize = 5;
    pub const ON_DUPLICATE: usize = 6;
    pub const GROUP_KEY: usize = 7;
    pub const MAX_ATTEMPTS: usize = 8;
    pub const HEADERS: usize = 9;
    pub const AFTER: usize = 10;
    pub const BACKOFF: usize = 11;
    pub const KEY_TTL: usize = 12;
    pub const ON_PREDECESSOR_FAILURE: usize = 13;
    pub const PUSH_KEY_TTL_FROM: usize = 14;
    /// The kind, the lease, the timeout, the start deadline, the ttl and the weight follow one another.
    pub const PUSH_KIND: usize = 15;
    pub const PUSH_BATCH: usize = 21;
    pub const KEYS: usize = 14;
    pub const GROUP_KEYS: usize = 15;
    pub const PUSH_MANY_KEY_TTL_FROM: usize = 16;
    pub const PUSH_MANY_KIND: usize = 17;
    pub const PUSH_MANY_BATCH: usize = 23;
}

/// Serves the call, or returns why it falls back to SQL.
pub unsafe fn push(arguments: &Arguments) -> Result<Outcome, Reason> {
    let unset = [argument::PUSH_KEY_TTL_FROM, argument::PUSH_BATCH];
    if unset.iter().any(|number| arguments.get(*number).is_some()) {
        return Err(Reason::Policy);
    }
    // SAFETY: the arguments are where native.sql declares them.
    unsafe {
        let payload = arguments.needed(argument::PAYLOAD)?;
        let mut pusher = Pusher::open(arguments, argument::PUSH_KIND, 1)?;
        let id = pusher.next(payload);
        pusher.store_one();
        Ok(Outcome::Served(pg_sys::Datum::from(id)))
    }
}

/// Creates tasks that differ only in their payloads.
pub(super) struct Pusher<'a> {
    pub tables: Tables,
    queue: Queue<'a>,
    pub row: Task,
}

impl<'a> Pusher<'a> {
    /// For so many tasks; `kind` is the number of the argument kind.
    pub unsafe fn open(arguments: &'a Arguments, kind: usize, count: usize) -> Result<Self, Reason> {
        // SAFETY: the arguments are where native.sql declares them; the tables are eligible.
        unsafe {
            let mut row = plain_row(arguments)?;
            set_own(&mut row, arguments, kind)?;
            let ttl = set_deadline(&mut row, arguments, kind)?;
            let name = arguments.name(argument::QUEUE)?;
            let tables = heap::open(Use::Push)?;
            let settings = queue::settings(&tables, name, Kinds::PRODUCER)?;
            if row.int(task::WEIGHT) > settings.rate_limit.unwrap_or(i32::MAX) {
                return Err(Reason::Argument);
            }
            let queue = Queue::new(tables.tasks, name);
            if let Some(most) = settings.max_queued {
                let depth = counting::depth(&tables, &queue).ok_or(Reason::Policy)?;
                // SQL raises the error.
                if depth + count as i64 > i64::from(most) {
                    return Err(Reason::Policy);
                }
            }
            let ttl = ttl.or(settings.ttl.filter(|_| row.get(task::START_BY).is_none()));
            if let Some(ttl) = ttl {
                row.set(task::START_BY, now().saturating_add(ttl));
            }
            Ok(Self { tables, queue, row })
        }
    }

    /// Creates the row of the next task, which is not inserted yet; returns its id.
    pub unsafe fn next(&mut self, payload: pg_sys::Datum) -> i64 {
        // SAFETY: found by `heap::open`.
        let id = unsafe { write::next_value(self.tables.tasks_id_seq) };
        let moment = now();
        self.row.set(task::ID, id);
        self.row.set(task::PAYLOAD, payload);
        self.row.set(task::CREATED_AT, moment);
        self.row.set(task::UPDATED_AT, moment);
        let key = self.row.key();
        transaction::added(&self.queue, key, moment);
        transaction::counted(&self.queue, Item::queued(key.run_at), 1);
        self.row.start_deadline().into_iter().for_each(transaction::start_by);
        point!(PushNoted);
        id
    }

    /// The indexes in which the rows have no entries.
    pub fn left_out(&self) -> Vec<pg_sys::Oid> {
        let partial = [self.tables.tasks_group, self.tables.tasks_start_by];
        partial.into_iter().filter(|index| !self.tables.indexed(&self.row, *index)).collect()
    }

    /// Inserts the row.
    unsafe fn store_one(&self) {
        // SAFETY: the table is locked; what is opened is closed here, or by the end of the transaction.
        unsafe {
            let table = pg_sys::table_open(self.tables.tasks, pg_sys::NoLock as i32);
            let indexes = Indexes::open(table, |index| self.tables.indexed(&self.row, index));
            let slot = write::slot_for(table);
            write::insert(table, &indexes, slot, &self.row);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            indexes.close();
            pg_sys::table_close(table, pg_sys::NoLock as i32);
            pg_sys::CommandCounterIncrement();
        }
    }
}

/// The row of a task without policies, but for its id, payload, created_at and updated_at.
unsafe fn plain_row(arguments: &Arguments) -> Result<Task, Reason> {
    use argument::*;
    let unset = [KEY, GROUP_KEY, AFTER, BACKOFF, KEY_TTL, ON_PREDECESSOR_FAILURE];
    if unset.iter().any(|number| arguments.get(*number).is_some()) {
        return Err(Reason::Policy);
    }
    let mut row = Task::empty();
    // SAFETY: the arguments are of the types that native.sql declares.
    unsafe {
        if text_of(arguments.needed(ON_DUPLICATE)?) != b"skip" {
            return Err(Reason::Argument);
        }
        row.set(task::QUEUE, arguments.needed(QUEUE)?);
        row.set(task::PRIORITY, arguments.needed(PRIORITY)?);
        if let Some(headers) = arguments.get(HEADERS) {
            if !is_object(headers) {
                return Err(Reason::Argument);
            }
            row.set(task::HEADERS, headers);
        }
    }
    if let Some(attempts) = arguments.get(MAX_ATTEMPTS) {
        if !(1..=10_000).contains(&(attempts.value() as i32)) {
            return Err(Reason::Argument);
        }
        row.set(task::MAX_ATTEMPTS, attempts);
    }
    let run_at = match (arguments.get(RUN_AT), arguments.get(DELAY)) {
        (None, None) => now(),
        (Some(run_at), None) if ![i64::MIN, i64::MAX].contains(&(run_at.value() as i64)) => {
            run_at.value() as i64
        }
        (None, Some(_)) => now() + arguments.span(DELAY, LONGEST_DELAY)?.unwrap_or(0),
        _ => return Err(Reason::Argument),
    };
    row.set(task::RUN_AT, run_at);
    row.set(task::STATE, text(b"queued"));
    row.set(task::ATTEMPT, 0);
    row.set(task::TOKEN, 0);
    row.set(task::ADMISSION, 0);
    Ok(row)
}

/// Sets the kind, the lease, the timeout and the weight of a task.
unsafe fn set_own(row: &mut Task, arguments: &Arguments, kind: usize) -> Result<(), Reason> {
    let (lease, timeout, weight) = (kind + 1, kind + 2, kind + 5);
    if let Some(given) = arguments.get(kind) {
        arguments.name(kind)?;
        row.set(task::KIND, given);
    }
    if let Some(given) = arguments.get(lease) {
        arguments.span(lease, settings::max_lease())?;
        row.set(task::LEASE, given);
    }
    if let Some(given) = arguments.get(timeout) {
        arguments.span(timeout, LONGEST_TIMEOUT)?;
        row.set(task::TIMEOUT, given);
    }
    let given = arguments.needed(weight)?;
    if !(1..=LARGEST_WEIGHT).contains(&(given.value() as i32)) {
        return Err(Reason::Argument);
    }
    row.set(task::WEIGHT, given);
    Ok(())
}

/// Sets the start deadline of a task, or returns its ttl, from which the deadline follows.
unsafe fn set_deadline(row: &mut Task, arguments: &Arguments, kind: usize) -> Result<Option<i64>, Reason> {
    let (start_by, ttl) = (kind + 3, kind + 4);
    let ttl = arguments.span(ttl, LONGEST_DELAY)?;
    if let Some(given) = arguments.get(start_by) {
        if ttl.is_some() || [i64::MIN, i64::MAX].contains(&(given.value() as i64)) {
            return Err(Reason::Argument);
        }
        row.set(task::START_BY, given);
    }
    Ok(ttl)
}

/// Whether a jsonb value is an object.
unsafe fn is_object(value: pg_sys::Datum) -> bool {
    // SAFETY: a jsonb begins with the header of its outermost container.
    unsafe {
        let json = pg_sys::pg_detoast_datum(value.cast_mut_ptr()).cast::<pg_sys::Jsonb>();
        (*json).root.header & pg_sys::JB_FOBJECT != 0
    }
}
