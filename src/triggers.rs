//! The triggers that publish changes which the native fast path did not make: statements of the SQL implementation, and
//! INSERT, COPY, UPDATE and DELETE by clients.

use crate::clock::now;
use crate::datum::text_of;
use crate::heap::columns::{self, Column, dead_letter, event, history, task};
use crate::heap::row::Row;
use crate::heap::task::Task;
use crate::lanes::{self, Item, LaneSet, Queue};
use crate::shared::{self, NEVER};
use crate::transaction;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;
use std::ffi::CStr;

macro_rules! trigger {
    ($name:ident, $info:ident, $act:path, $($table:literal)|+, $columns:expr, $needs:expr) => {
        declare_symbol!($info);

        /// The trigger's function, as native.sql declares it.
        #[unsafe(no_mangle)]
        #[pg_guard]
        unsafe extern "C-unwind" fn $name(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
            // SAFETY: if the call is that of a trigger, its context is a TriggerData.
            unsafe {
                let context = (*fcinfo).context;
                if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
                    refuse("only to be called as a trigger");
                }
                let trigger = &*context.cast::<pg_sys::TriggerData>();
                if !is_ours(trigger, &[$($table),+]) || !$needs.are_met_by(trigger) {
                    refuse("only to be called as the extension's own triggers");
                }
                if shared::get().is_none() {
                    // Without preloading there are no lanes.
                } else if columns::begins_with((*(*trigger).tg_relation).rd_att, $columns) {
                    $act(trigger);
                } else {
                    // A table of another version, or one that a user altered: its rows cannot be read here. The native
                    // fast path does not use it.
                    lanes::invalidate(&LaneSet::ALL);
                    lanes::invalidate_counters(&LaneSet::ALL);
                }
            }
            pg_sys::Datum::from(0)
        }
    };
}

trigger!(tasks_announced, pg_finfo_tasks_announced, inserted, c"tasks", READ, Needs::Rows);
trigger!(task_changed, pg_finfo_task_changed, changed, c"tasks", READ, Needs::Row);
trigger!(
    event_announced,
    pg_finfo_event_announced,
    event_inserted,
    c"events",
    columns::EVENT_QUEUE,
    Needs::Row
);
trigger!(history_counted, pg_finfo_history_counted, archived, c"history", columns::HISTORY, Needs::Rows);
trigger!(
    dead_letter_counted,
    pg_finfo_dead_letter_counted,
    dead_letter_changed,
    c"dead_letters",
    columns::DEAD_LETTERS,
    Needs::Row
);
trigger!(
    table_emptied,
    pg_finfo_table_emptied,
    emptied,
    c"tasks" | c"history" | c"dead_letters",
    &[],
    Needs::Nothing
);

trigger!(
    handlers_announced,
    pg_finfo_handlers_announced,
    handlers_changed,
    c"handlers" | c"rights",
    &[],
    Needs::Nothing
);

/// The columns of a task that these triggers read.
const READ_COUNT: usize = task::START_BY + 1;
const READ: &[Column] = columns::TASKS.split_at(READ_COUNT).0;

/// Whether the trigger is on one of these tables in a schema of the extension. Another table may have columns of other
/// types.
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

/// The data that a trigger needs. The owner of a table can create a trigger with these functions at any event.
enum Needs {
    Nothing,
    /// The changed row.
    Row,
    /// The transition table of the inserted or deleted rows.
    Rows,
}

impl Needs {
    fn are_met_by(&self, trigger: &pg_sys::TriggerData) -> bool {
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

/// The columns of a task that these triggers read.
type Columns = Task<READ_COUNT>;

/// AFTER INSERT of tasks, for each statement.
unsafe fn inserted(trigger: &pg_sys::TriggerData) {
    let moment = now();
    // SAFETY: the trigger has a transition table of new rows, which are tasks.
    unsafe {
        let tasks = (*trigger.tg_relation).rd_id;
        for_each_row((trigger, trigger.tg_newtable), READ_COUNT, |slot| {
            publish(tasks, &Task::of(slot), moment)
        });
    }
}

/// Calls `act` with each row of a transition table, of which so many columns are deformed.
unsafe fn for_each_row(
    (trigger, rows): (&pg_sys::TriggerData, *mut pg_sys::Tuplestorestate),
    columns: usize,
    mut act: impl FnMut(*mut pg_sys::TupleTableSlot),
) {
    // The trigger may have been created for another event, with the other transition table only.
    if rows.is_null() {
        refuse("only to be called as the extension's own triggers");
    }
    // SAFETY: a tuplestore of the server.
    unsafe {
        let slot = pg_sys::MakeSingleTupleTableSlot(
            (*trigger.tg_relation).rd_att,
            &raw const pg_sys::TTSOpsMinimalTuple,
        );
        // A read pointer of its own, because other triggers read the same rows.
        let pointer = pg_sys::tuplestore_alloc_read_pointer(rows, pg_sys::EXEC_FLAG_REWIND as i32);
        pg_sys::tuplestore_select_read_pointer(rows, pointer);
        pg_sys::tuplestore_rescan(rows);
        while pg_sys::tuplestore_gettupleslot(rows, true, false, slot) {
            pg_sys::slot_getsomeattrs_int(slot, columns as i32);
            act(slot);
        }
        pg_sys::ExecDropSingleTupleTableSlot(slot);
    }
}

/// AFTER UPDATE OR DELETE of tasks, for each row.
unsafe fn changed(trigger: &pg_sys::TriggerData) {
    // SAFETY: a row trigger has the old row, and for an update the new one.
    unsafe {
        let moment = now();
        let (tasks, descriptor) = ((*trigger.tg_relation).rd_id, (*trigger.tg_relation).rd_att);
        let old = row_of(trigger.tg_trigtuple, descriptor);
        let update = pg_sys::TRIGGER_EVENT_UPDATE == trigger.tg_event & pg_sys::TRIGGER_EVENT_OPMASK;
        let new = update.then(|| row_of(trigger.tg_newtuple, descriptor));
        let blocked = |task: &Columns| task.is_queued() && !task.is_admitted();
        let withdrawn = old.is_queued() && new.as_ref().is_some_and(blocked);
        publish_removal(tasks, &old, withdrawn);
        if let Some(new) = new {
            if old.is_running() && new.is_running() && is_cancelled(trigger) {
                transaction::cancel_requested(new.key().id);
            }
            publish(tasks, &new, moment);
        }
    }
}

/// Whether the update of a running task requests its cancellation, and a handler in this database has the task.
unsafe fn is_cancelled(trigger: &pg_sys::TriggerData) -> bool {
    const REQUESTED: i32 = task::CANCEL_REQUESTED_AT as i32 + 1;
    const ID: i32 = task::ID as i32 + 1;
    // SAFETY: an update has both rows, and the columns are those of a task.
    unsafe {
        let descriptor = (*trigger.tg_relation).rd_att;
        let value = |tuple, column| {
            let mut null = false;
            let value = pg_sys::heap_getattr(tuple, column, descriptor, &mut null);
            (!null).then(|| value.value() as i64)
        };
        let id = value(trigger.tg_newtuple, ID).unwrap_or(0);
        let handled = shared::get().and_then(|shared| shared.handlers.handling(pg_sys::MyDatabaseId, id));
        // Short rows of an altered table have no such column.
        handled.is_some()
            && (*descriptor).natts >= REQUESTED
            && value(trigger.tg_trigtuple, REQUESTED).is_none()
            && value(trigger.tg_newtuple, REQUESTED).is_some()
    }
}

/// AFTER INSERT of events, for each row.
unsafe fn event_inserted(trigger: &pg_sys::TriggerData) {
    // SAFETY: a row trigger has the row; its queue is a text and never null.
    unsafe {
        let mut null = false;
        let descriptor = (*trigger.tg_relation).rd_att;
        let queue =
            pg_sys::heap_getattr(trigger.tg_trigtuple, event::QUEUE as i32 + 1, descriptor, &mut null);
        transaction::event_added(&Queue::new(tasks(), text_of(queue)));
    }
}

/// AFTER INSERT OR DELETE of the history, for each statement.
unsafe fn archived(trigger: &pg_sys::TriggerData) {
    const COLUMNS: usize = history::FINISHED_AT + 1;
    let moment = now();
    // SAFETY: the triggers have a transition table of new or old rows, which are those of the history.
    unsafe {
        let tasks = tasks();
        let insert = trigger.tg_event & pg_sys::TRIGGER_EVENT_OPMASK == pg_sys::TRIGGER_EVENT_INSERT;
        let (rows, more) = if insert { (trigger.tg_newtable, 1) } else { (trigger.tg_oldtable, -1) };
        for_each_row((trigger, rows), COLUMNS, |slot| {
            let row = Row::<COLUMNS>::of(slot);
            let (queue, state) = (text_of(row.values[history::QUEUE]), text_of(row.values[history::STATE]));
            if let Some(item) = Item::ended(state, row.long(history::FINISHED_AT), moment) {
                transaction::counted(&Queue::new(tasks, queue), item, more);
            }
        });
    }
}

/// AFTER INSERT OR UPDATE OR DELETE of dead letters, for each row.
unsafe fn dead_letter_changed(trigger: &pg_sys::TriggerData) {
    const QUEUE: i32 = dead_letter::QUEUE as i32 + 1;
    const FAILED_AT: i32 = dead_letter::FAILED_AT as i32 + 1;
    let moment = now();
    // SAFETY: a row trigger has the old row, the new one, or both; the columns are those of the extension and not null.
    unsafe {
        let (tasks, descriptor) = (tasks(), (*trigger.tg_relation).rd_att);
        let count = |row, more| {
            let mut null = false;
            let queue = text_of(pg_sys::heap_getattr(row, QUEUE, descriptor, &mut null));
            let failed_at = pg_sys::heap_getattr(row, FAILED_AT, descriptor, &mut null).value() as i64;
            let failed = Item::ended(b"failed", failed_at, moment);
            for item in failed.into_iter().chain([Item::DEAD]) {
                transaction::counted(&Queue::new(tasks, queue), item, more);
            }
        };
        let operation = trigger.tg_event & pg_sys::TRIGGER_EVENT_OPMASK;
        count(trigger.tg_trigtuple, if operation == pg_sys::TRIGGER_EVENT_INSERT { 1 } else { -1 });
        if operation == pg_sys::TRIGGER_EVENT_UPDATE {
            count(trigger.tg_newtuple, 1);
        }
    }
}

/// AFTER any change of queue.handlers or queue.rights.
unsafe fn handlers_changed(_trigger: &pg_sys::TriggerData) {
    transaction::handlers_changed();
}

/// AFTER TRUNCATE, whose rows are unknown.
unsafe fn emptied(_trigger: &pg_sys::TriggerData) {
    transaction::uncounted();
}

/// The OID of queue.tasks.
unsafe fn tasks() -> pg_sys::Oid {
    // SAFETY: catalog lookups.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"queue".as_ptr(), false);
        pg_sys::get_relname_relid(c"tasks".as_ptr(), schema)
    }
}

/// `queue_internal.announce_task`: now or from `run_at` on, claims may find more than the committed tasks show. The
/// queue is a text, which has the layout of the bytea that pgrx passes as bytes.
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

/// `queue_internal.announce_extension`: notifies the launcher at commit that this database has the extension.
#[pg_extern(sql = false)]
fn announce_extension() {
    if shared::get().is_some() {
        transaction::created();
    }
}

unsafe fn row_of(tuple: pg_sys::HeapTuple, descriptor: pg_sys::TupleDesc) -> Columns {
    let mut row = Columns::empty();
    // SAFETY: the first columns are those of the extension, whatever a user has added after them.
    unsafe {
        let Row { values, nulls } = &mut *row;
        for (column, (value, null)) in values.iter_mut().zip(nulls).enumerate() {
            *value = pg_sys::heap_getattr(tuple, column as i32 + 1, descriptor, null);
        }
    }
    row
}

/// Publishes a new row or a new version of a row.
unsafe fn publish(tasks: pg_sys::Oid, row: &Columns, moment: i64) {
    let Some(name) = row.get(task::QUEUE) else { return };
    // SAFETY: the queue of a task is a text.
    let queue = Queue::new(tasks, unsafe { text_of(name) });
    row.item().into_iter().for_each(|item| transaction::counted(&queue, item, 1));
    if !row.is_running() {
        row.start_deadline().into_iter().for_each(transaction::start_by);
    }
    if row.is_claimable() {
        transaction::added(&queue, row.key(), moment);
    } else if row.is_running() {
        transaction::leased(&queue, row.key(), row.long(task::LEASE_UNTIL));
    }
}

/// Publishes that an old version of a row is gone. With `withdrawn`, the task is now blocked in its group.
unsafe fn publish_removal(tasks: pg_sys::Oid, row: &Columns, withdrawn: bool) {
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
