//! One CALL of a waiting procedure, and the functions in SQL that it uses.

use super::{FIRST_PAUSE, LAST, RETRY_AT, lists, longer};
use crate::clock::now;
use crate::datum::text_of;
use crate::extension;
use crate::rights;
use crate::shared::NEVER;
use crate::verbs::sql;
use pgrx::prelude::*;

/// A CALL that waits, with the functions in SQL that check its arguments and find what it waits for.
pub struct Call {
    pub fcinfo: pg_sys::FunctionCallInfo,
    check: pg_sys::FmgrInfo,
    find: pg_sys::FmgrInfo,
    /// The first argument in the form for `find`.
    pub subject: pg_sys::NullableDatum,
    /// The name of the worker, unless it waits for a result.
    worker: pg_sys::NullableDatum,
    /// When the CALL began.
    pub began: i64,
    /// The memory of the CALL, which outlives its transactions.
    pub context: pg_sys::MemoryContext,
    /// The memory of one check.
    scratch: pg_sys::MemoryContext,
    /// The extension that the procedure belongs to.
    extension: pg_sys::Oid,
    /// The row that `queue.wait` returns. After DROP EXTENSION it could not be looked up.
    pub descriptor: pg_sys::TupleDesc,
    pub kind: Kind,
    pub pause: i64,
    /// Whether the first check is over.
    pub checked: bool,
    /// Whether it has slept, or was woken, since the call began.
    pub slept: bool,
    /// Whether the last check asked the lanes alone. Then one waiting session can check for the others.
    pub asked_lanes: bool,
    /// Whether the last sleep ended because no waiting session had checked for long.
    pub checks_for_all: bool,
    /// Whether the last check found only what the last wait of this session had found: see `find_first`.
    pub repeated: bool,
}

impl Call {
    /// Checks the arguments, in SQL; returns until when to wait.
    pub unsafe fn check_arguments(&mut self) -> i64 {
        // SAFETY: `prepare` has found the function, which takes the first two arguments, and the name of a worker.
        unsafe {
            let arguments = (*self.fcinfo).args.as_slice(2);
            let arguments = [arguments[0], arguments[1], self.worker];
            let entered = rights::enter(self.fcinfo);
            let count = if self.kind == Kind::Result { 2 } else { 3 };
            let until =
                sql::call(&mut self.check, &arguments[..count]).map_or(0, |until| until.value() as i64);
            rights::leave(&entered);
            until
        }
    }

    /// The name of the worker, which SQL has checked.
    pub unsafe fn worker(&self) -> Option<&[u8]> {
        // SAFETY: a text, which lives as long as the CALL.
        (!self.worker.isnull).then(|| unsafe { text_of(self.worker.value) })
    }

    /// Searches for what the call waits for, in SQL with a new snapshot.
    pub unsafe fn find(&mut self) -> Option<pg_sys::Datum> {
        // SAFETY: `prepare` has found the function. After an ERROR, transaction abort releases the snapshot.
        unsafe {
            set_snapshot(true);
            let entered = rights::enter(self.fcinfo);
            let found = sql::call(&mut self.find, &[self.subject]);
            rights::leave(&entered);
            set_snapshot(false);
            found
        }
    }

    /// Whether a claim would get a task, from queues whose claims fall back to SQL.
    ///
    /// SQL cannot see whether another transaction has the task locked. If the last wait of this session returned
    /// because of the same task or event, then the claim after it found nothing, most likely because of such a lock. So
    /// that a session that waits and claims in turn does not spin, it pauses first, longer each time, unless it is
    /// woken.
    pub unsafe fn find_first(&mut self) -> bool {
        // SAFETY: `prepare` has found the function, which returns a bigint.
        let Some(first) = (unsafe { self.find() }).map(|first| first.value() as i64) else { return false };
        let pause = LAST.get().filter(|last| last.0 == first).map(|last| last.1);
        self.repeated = !self.slept && pause.is_some();
        if self.repeated {
            self.pause = pause.unwrap_or(FIRST_PAUSE);
        } else {
            LAST.set(Some((first, pause.map_or(FIRST_PAUSE, longer))));
        }
        true
    }
}

/// Frees the memory of the last check, because there may be many, and locks the extension until the end of the
/// transaction.
#[pg_guard]
pub unsafe extern "C-unwind" fn begin_check(call: *mut Call) {
    RETRY_AT.set(NEVER);
    lists::checking(true);
    // SAFETY: the context is this call's own, and holds nothing that is still in use.
    unsafe {
        (*call).repeated = false;
        pg_sys::MemoryContextReset((*call).scratch);
        pg_sys::MemoryContextSwitchTo((*call).scratch);
        // At the first check, this is still the transaction in which the functions were found.
        if (*call).checked {
            hold_extension((*call).extension);
            find_functions(call);
            point!(WaitFound);
        }
    }
}

/// Locks the extension until the end of the transaction. Raises an ERROR if it was dropped, even if it was created
/// again, because the running procedure was dropped with it.
fn hold_extension(extension: pg_sys::Oid) {
    extension::hold(true);
    if extension::oid() != extension {
        ereport!(
            ERROR,
            PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
            "extension \"queue_ext\" does not exist any more",
            "It was dropped while this session waited."
        );
    }
}

/// Sets a new snapshot, or removes it.
#[pg_guard]
unsafe extern "C-unwind" fn set_snapshot(begin: bool) {
    // SAFETY: the caller pairs them.
    unsafe {
        if begin {
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            point!(WaitSees);
        } else {
            pg_sys::PopActiveSnapshot();
        }
    }
}

/// What a CALL waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum Kind {
    Queue,
    Queues,
    Result,
}

/// Finds the functions in SQL, and brings the first argument into their form.
#[pg_guard]
pub unsafe extern "C-unwind" fn prepare(call: *mut Call, fcinfo: pg_sys::FunctionCallInfo, kind: Kind) {
    // SAFETY: catalog lookups; what is found lives in the memory of the CALL.
    unsafe {
        let arguments = (*fcinfo).args.as_slice(4);
        let argument = arguments[0];
        (*call).fcinfo = fcinfo;
        (*call).worker = arguments[3];
        (*call).began = now();
        (*call).kind = kind;
        let context = pg_sys::CurrentMemoryContext;
        (*call).context = context;
        (*call).scratch = pg_sys::AllocSetContextCreateInternal(
            context,
            c"queue_ext wait".as_ptr(),
            pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
        );
        (*call).subject = if kind == Kind::Queue { in_array(argument) } else { argument };
        (*call).descriptor = descriptor_of(fcinfo);
        (*call).extension = extension::oid();
        (*call).pause = FIRST_PAUSE;
        find_functions(call);
        point!(WaitPrepared);
    }
}

/// Finds the functions in SQL, which may be others than before if the extension was updated.
unsafe fn find_functions(call: *mut Call) {
    // SAFETY: catalog lookups; what is found lives in the memory of the CALL.
    unsafe {
        let (check, first, find) = match (*call).kind {
            Kind::Queue => (c"check_wait", pg_sys::TEXTOID, c"first_ready"),
            Kind::Queues => (c"check_wait", pg_sys::TEXTARRAYOID, c"first_ready"),
            Kind::Result => (c"check_wait_result", pg_sys::INT8OID, c"outcome"),
        };
        let wanted = if (*call).kind == Kind::Result { pg_sys::INT8OID } else { pg_sys::TEXTARRAYOID };
        let context = (*call).context;
        let look_up = |name, types: &[pg_sys::Oid], info: *mut pg_sys::FmgrInfo| {
            let found = sql::oid(name, types);
            if (*info).fn_oid != found {
                pg_sys::fmgr_info_cxt(found, info, context);
            }
        };
        let types = [first, pg_sys::INTERVALOID, pg_sys::TEXTOID];
        let count = if (*call).kind == Kind::Result { 2 } else { 3 };
        look_up(check, &types[..count], &raw mut (*call).check);
        look_up(find, &[wanted], &raw mut (*call).find);
    }
}

/// An array with this text as its only element.
unsafe fn in_array(element: pg_sys::NullableDatum) -> pg_sys::NullableDatum {
    // SAFETY: the properties are those of the type text.
    unsafe {
        let (mut value, mut null, mut count, mut lower) = (element.value, element.isnull, 1, 1);
        let align = pg_sys::TYPALIGN_INT as std::ffi::c_char;
        let array = pg_sys::construct_md_array(
            &mut value,
            &mut null,
            1,
            &mut count,
            &mut lower,
            pg_sys::TEXTOID,
            -1,
            false,
            align,
        );
        pg_sys::NullableDatum { value: pg_sys::Datum::from(array), isnull: false }
    }
}

/// The tuple descriptor of the row that a procedure with INOUT arguments returns.
pub unsafe fn descriptor_of(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::TupleDesc {
    // SAFETY: a catalog lookup for the procedure that was called.
    unsafe {
        let mut descriptor = std::ptr::null_mut();
        pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &mut descriptor);
        pg_sys::BlessTupleDesc(descriptor)
    }
}

/// A row of one column.
#[pg_guard]
pub unsafe extern "C-unwind" fn row_of(descriptor: pg_sys::TupleDesc, value: bool) -> pg_sys::Datum {
    // SAFETY: the descriptor has the one column that the SQL declares.
    unsafe {
        let (mut values, mut nulls) = ([pg_sys::Datum::from(value)], [false]);
        let row = pg_sys::heap_form_tuple(descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
        pg_sys::HeapTupleHeaderGetDatum((*row).t_data)
    }
}
