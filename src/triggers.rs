//! The triggers by which the lanes learn of what the native verbs did not do: the core's own statements,
//! and a user's INSERT, COPY, UPDATE or DELETE.

use crate::clock::now;
use crate::datum::text_of;
use crate::heap::columns::{self, Column, dead_letter, event, history, task};
use crate::heap::row::Row;
use crate::heap::task::Task;
use crate::lanes::{self, Item, Queue};
use crate::shared::{self, NEVER};
use crate::transaction;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;
use std::ffi::CStr;

macro_rules! trigger {
    ($name:ident, $info:ident, $act:path, $($table:literal)|+, $columns:expr, $gets:expr) => {
        declare_symbol!($info);

        /// The trigger's function, as native.sql declares it.
        #[unsafe(no_mangle)]
        #[pg_guard]
        unsafe extern "C-unwind" fn $name(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
            // SAFETY: called as a trigger, its context is what triggers get.
            unsafe {
                let context = (*fcinfo).context;
                if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
                    refuse("only to be called as a trigger");
                }
                let trigger = &*context.cast::<pg_sys::TriggerData>();
                if !is_ours(trigger, &[$($table),+]) || !$gets.is_got_by(trigger) {
                    refuse("only to be called as the extension's own triggers");
                }
                if shared::get().is_none() {
                    // Nobody is to be told.
                } else if columns::begins_with((*(*trigger).tg_relation).rd_att, $columns) {
                    $act(trigger);
                } else {
                    // A table of another version, or a user's idea: nothing can be told of its rows. No native
                    // verb uses it as it is.
                    lanes::invalidate();
                    lanes::invalidate_counters();
                }
            }
            pg_sys::Datum::from(0)
        }
    };
}

trigger!(tasks_announced, pg_finfo_tasks_announced, inserted, c"tasks", TOLD, Gets::Rows);
trigger!(task_changed, pg_finfo_task_changed, changed, c"tasks", TOLD, Gets::Row);
trigger!(event_announced, pg_finfo_event_announced, event_left, c"events", columns::EVENT_QUEUE, Gets::Row);
trigger!(history_counted, pg_finfo_history_counted, archived, c"history", columns::HISTORY, Gets::Rows);
trigger!(
    dead_letter_counted,
    pg_finfo_dead_letter_counted,
    buried,
    c"dead_letters",
    columns::DEAD_LETTERS,
    Gets::Row
);
trigger!(
    table_emptied,
    pg_finfo_table_emptied,
    emptied,
    c"tasks" | c"history" | c"dead_letters",
    &[],
    Gets::Nothing
);

/// How many columns of a task are of interest here, and which.
const TOLD_COUNT: usize = task::LEASE_UNTIL + 1;
const TOLD: &[Column] = columns::TASKS.split_at(TOLD_COUNT).0;

/// Whether the trigger is on one of these tables in a schema of the extension: of another, whose columns are
/// others, values would be read that are none.
unsafe fn is_ours(trigger: &pg_sys::TriggerData, tables: &[&CStr]) -> bool {
    // SAFETY: the relation is open as long as the trigger runs.
    unsafe {
        let relation = &*(*trigger.tg_relation).rd_rel;
        let schemas =
            [c"queue", c"queue_internal"].map(|name| pg_sys::get_namespace_oid(name.as_ptr(), true));
        schemas.contains(&relation.relnamespace)
            && tables.contains(&CStr::from_ptr(relation.relname.data.as_ptr()))
    }
}

/// What a trigger reads, and so has to have got: who owns a table can put the function on it in any way.
enum Gets {
    Nothing,
    /// The row that the statement changed, after that.
    Row,
    /// All the rows that the statement inserted, or deleted.
    Rows,
}

impl Gets {
    fn is_got_by(&self, trigger: &pg_sys::TriggerData) -> bool {
        let event = trigger.tg_event;
        let inserted = event & pg_sys::TRIGGER_EVENT_OPMASK == pg_sys::TRIGGER_EVENT_INSERT;
        match self {
            Self::Nothing => true,
            Self::Row => event & pg_sys::TRIGGER_EVENT_ROW != 0,
            Self::Rows if inserted => !trigger.tg_newtable.is_null(),
            Self::Rows => !trigger.tg_oldtable.is_null(),
        }
    }
}

fn refuse(message: &'static str) -> ! {
    ereport!(PgLogLevel::ERROR, PgSqlErrorCode::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED, message);
    unreachable!()
}

/// A task as far as it is of interest here.
type Seen = Task<TOLD_COUNT>;

/// After a statement that inserted tasks: all of them.
unsafe fn inserted(trigger: &pg_sys::TriggerData) {
    let moment = now();
    // SAFETY: the trigger is declared with a table of the new rows, which are tasks.
    unsafe {
        let tasks = (*trigger.tg_relation).rd_id;
        each_of((trigger, trigger.tg_newtable), TOLD_COUNT, |slot| tell(tasks, &Task::of(slot), moment));
    }
}

/// Does something with each row of a table of rows that the trigger got, deformed up to so many columns.
unsafe fn each_of(
    (trigger, rows): (&pg_sys::TriggerData, *mut pg_sys::Tuplestorestate),
    columns: usize,
    mut act: impl FnMut(*mut pg_sys::TupleTableSlot),
) {
    // Another event may have brought the other table alone.
    if rows.is_null() {
        refuse("only to be called as the extension's own triggers");
    }
    // SAFETY: the server has filled the table.
    unsafe {
        let slot = pg_sys::MakeSingleTupleTableSlot(
            (*trigger.tg_relation).rd_att,
            &raw const pg_sys::TTSOpsMinimalTuple,
        );
        // A place of our own: other triggers read the same rows.
        let place = pg_sys::tuplestore_alloc_read_pointer(rows, pg_sys::EXEC_FLAG_REWIND as i32);
        pg_sys::tuplestore_select_read_pointer(rows, place);
        pg_sys::tuplestore_rescan(rows);
        while pg_sys::tuplestore_gettupleslot(rows, true, false, slot) {
            pg_sys::slot_getsomeattrs_int(slot, columns as i32);
            act(slot);
        }
        pg_sys::ExecDropSingleTupleTableSlot(slot);
    }
}

/// After an update or a deletion, for each task.
unsafe fn changed(trigger: &pg_sys::TriggerData) {
    // SAFETY: a row trigger has the old row, and for an update the new one.
    unsafe {
        let moment = now();
        let (tasks, shape) = ((*trigger.tg_relation).rd_id, (*trigger.tg_relation).rd_att);
        let old = row_of(trigger.tg_trigtuple, shape);
        let update = pg_sys::TRIGGER_EVENT_UPDATE == trigger.tg_event & pg_sys::TRIGGER_EVENT_OPMASK;
        let new = update.then(|| row_of(trigger.tg_newtuple, shape));
        let blocked = |task: &Seen| task.is_queued() && !task.is_admitted();
        let withdrawn = old.is_queued() && new.as_ref().is_some_and(blocked);
        forget(tasks, &old, withdrawn);
        new.into_iter().for_each(|new| tell(tasks, &new, moment));
    }
}

/// After a row of queue_internal.events came in.
unsafe fn event_left(trigger: &pg_sys::TriggerData) {
    // SAFETY: a row trigger has the row; its queue is a text and never null.
    unsafe {
        let mut null = false;
        let shape = (*trigger.tg_relation).rd_att;
        let queue = pg_sys::heap_getattr(trigger.tg_trigtuple, event::QUEUE as i32 + 1, shape, &mut null);
        transaction::event_added(&Queue::new(tasks(), text_of(queue)));
    }
}

/// After a statement that archived tasks, or deleted such rows: all of them.
unsafe fn archived(trigger: &pg_sys::TriggerData) {
    const COLUMNS: usize = history::FINISHED_AT + 1;
    let moment = now();
    // SAFETY: the triggers are declared with a table of the new rows, or the old, those of the history.
    unsafe {
        let tasks = tasks();
        let insert = trigger.tg_event & pg_sys::TRIGGER_EVENT_OPMASK == pg_sys::TRIGGER_EVENT_INSERT;
        let (rows, more) = if insert { (trigger.tg_newtable, 1) } else { (trigger.tg_oldtable, -1) };
        each_of((trigger, rows), COLUMNS, |slot| {
            let row = Row::<COLUMNS>::of(slot);
            let (queue, state) = (text_of(row.values[history::QUEUE]), text_of(row.values[history::STATE]));
            if let Some(item) = Item::ended(state, row.long(history::FINISHED_AT), moment) {
                transaction::counted(&Queue::new(tasks, queue), item, more);
            }
        });
    }
}

/// After a dead letter came, changed or went.
unsafe fn buried(trigger: &pg_sys::TriggerData) {
    const QUEUE: i32 = dead_letter::QUEUE as i32 + 1;
    const FAILED_AT: i32 = dead_letter::FAILED_AT as i32 + 1;
    let moment = now();
    // SAFETY: a row trigger has the old row, the new one, or both; the columns are as the extension made
    // them, and not null.
    unsafe {
        let (tasks, shape) = (tasks(), (*trigger.tg_relation).rd_att);
        let tell = |row, more| {
            let mut null = false;
            let queue = text_of(pg_sys::heap_getattr(row, QUEUE, shape, &mut null));
            let failed_at = pg_sys::heap_getattr(row, FAILED_AT, shape, &mut null).value() as i64;
            let failed = Item::ended(b"failed", failed_at, moment);
            for item in failed.into_iter().chain([Item::DEAD]) {
                transaction::counted(&Queue::new(tasks, queue), item, more);
            }
        };
        let operation = trigger.tg_event & pg_sys::TRIGGER_EVENT_OPMASK;
        tell(trigger.tg_trigtuple, if operation == pg_sys::TRIGGER_EVENT_INSERT { 1 } else { -1 });
        if operation == pg_sys::TRIGGER_EVENT_UPDATE {
            tell(trigger.tg_newtuple, 1);
        }
    }
}

/// After a TRUNCATE, of which nobody tells what there was.
unsafe fn emptied(_trigger: &pg_sys::TriggerData) {
    transaction::uncounted();
}

/// Where the table of tasks is.
unsafe fn tasks() -> pg_sys::Oid {
    // SAFETY: catalog lookups.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"queue".as_ptr(), false);
        pg_sys::get_relname_relid(c"tasks".as_ptr(), schema)
    }
}

/// `queue_internal.announce_task`: by now, or from a time to come, claims may get more from the queue
/// than its tasks alone tell.
/// pgrx passes a bytea as bytes, and a text is laid out as one.
#[pg_extern(sql = false)]
fn announce_task(queue: &[u8], run_at: TimestampWithTimeZone) {
    if shared::get().is_none() {
        return;
    }
    let run_at = i64::from(run_at);
    if run_at > now() {
        crate::wait::retry_at(run_at);
        return transaction::due_at(run_at);
    }
    // SAFETY: in a transaction.
    let tasks = unsafe { tasks() };
    transaction::event_added(&Queue::new(tasks, queue));
}

/// `queue_internal.announce_extension`: this database has the extension from now on.
#[pg_extern(sql = false)]
fn announce_extension() {
    if shared::get().is_some() {
        transaction::created();
    }
}

unsafe fn row_of(tuple: pg_sys::HeapTuple, shape: pg_sys::TupleDesc) -> Seen {
    let mut row = Seen::empty();
    // SAFETY: the first columns are the extension's own, whatever a user has added behind them.
    unsafe {
        let Row { values, nulls } = &mut *row;
        for (column, (value, null)) in values.iter_mut().zip(nulls).enumerate() {
            *value = pg_sys::heap_getattr(tuple, column as i32 + 1, shape, null);
        }
    }
    row
}

/// Notes what a new row or version means to its queue.
unsafe fn tell(tasks: pg_sys::Oid, row: &Seen, moment: i64) {
    let Some(name) = row.get(task::QUEUE) else { return };
    // SAFETY: the queue of a task is a text.
    let queue = Queue::new(tasks, unsafe { text_of(name) });
    row.item().into_iter().for_each(|item| transaction::counted(&queue, item, 1));
    if row.is_claimable() {
        transaction::added(&queue, row.key(), moment);
    } else if row.is_running() {
        transaction::leased(&queue, row.key(), row.long(task::LEASE_UNTIL));
    }
}

/// Notes that an old row or version counts no more; if `withdrawn`, because the task is blocked in its group now.
unsafe fn forget(tasks: pg_sys::Oid, row: &Seen, withdrawn: bool) {
    let Some(name) = row.get(task::QUEUE) else { return };
    // SAFETY: the queue of a task is a text.
    let queue = Queue::new(tasks, unsafe { text_of(name) });
    row.item().into_iter().for_each(|item| transaction::counted(&queue, item, -1));
    if withdrawn {
        return transaction::withdrawn(&queue, row.key());
    }
    let until = row.get(task::LEASE_UNTIL).map_or(NEVER, |until| until.value() as i64);
    transaction::removed(&queue, row.key(), until);
}
