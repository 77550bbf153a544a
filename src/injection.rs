//! Fault injection: after an ERROR or a panic at any of these points, shared memory and tables must be consistent
//! (pgrx-tests/tests/injection.rs). Only with the feature `injection`, which installed libraries do not have; without
//! it, a point is empty.
//!
//! There are no points where nothing may fail by design: under the lock of a lane, in the callbacks at the end of a
//! transaction, and between a lane handing out something and the transaction recording that.

/// A point, by its name.
macro_rules! point {
    ($name:ident) => {
        $crate::injection::reached($crate::injection::Point::$name)
    };
}

/// Where a fault can happen.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "injection", derive(Debug, pgrx::guc::PostgresGucEnum))]
pub enum Point {
    #[cfg(feature = "injection")]
    Nowhere,
    // verbs.rs, verbs/sql.rs: the native fast path is done; the function in SQL is found; its rows follow the native
    // ones.
    VerbServed,
    CoreFound,
    CoreAppended,
    // heap.rs, heap/tables.rs
    TablesSought,
    TablesLocked,
    HistoryLocked,
    // verbs/queue.rs
    QueueRead,
    // verbs/claim.rs, verbs/events.rs, verbs/grant.rs: from `ClaimAsked` on this process has reserved candidates, and
    // may have begun a refill.
    ClaimOpened,
    ClaimAsked,
    ClaimAwaits,
    ClaimAwaited,
    ClaimGranted,
    EventsSought,
    LeaseBegun,
    LeaseNext,
    LeaseFound,
    LeaseLocked,
    LeaseAdded,
    LeaseEnded,
    // expiry.rs
    ExpiryNoted,
    ExpiryEnded,
    // refill.rs
    RefillBegun,
    RefillLevel,
    RefillRow,
    RefillRead,
    RefillTold,
    // heap/write.rs, heap/insert.rs: rows are written, but not yet their index entries.
    InsertWritten,
    RowUnlocked,
    RowLocked,
    UpdateWritten,
    UpdateIndexed,
    StoreAdded,
    StoreWritten,
    DeleteWritten,
    // verbs/finish.rs, verbs/complete_many.rs, verbs/complete_and_claim.rs
    FinishFound,
    FinishNext,
    FinishArchived,
    FinishTold,
    FinishByCore,
    FinishGroups,
    FinishDependents,
    FinishClaims,
    // verbs/extend.rs
    ExtendFound,
    ExtendNoted,
    // verbs/push.rs, verbs/push_many.rs
    PushNoted,
    PushNext,
    // counting.rs: the count has been started.
    CountBegun,
    CountRow,
    CountEnds,
    CountRead,
    // wait.rs, wait/call.rs, wait/sleep.rs: a waiting session is in the lists from `WaitEntered` to `WaitLeft`, and has
    // no transaction while it sleeps.
    WaitPrepared,
    WaitFound,
    WaitSees,
    WaitLooks,
    WaitEntered,
    WaitSleeps,
    WaitWoken,
    WaitBegins,
    WaitLeft,
}

#[cfg(not(feature = "injection"))]
#[inline(always)]
pub fn reached(_point: Point) {}

/// Whether a rollback does not return to lanes what the transaction took from them.
#[cfg(not(feature = "injection"))]
#[inline(always)]
pub fn forgets() -> bool {
    false
}

#[cfg(feature = "injection")]
pub use faults::{define, forgets, reached};

#[cfg(feature = "injection")]
mod faults {
    use super::Point;
    use crate::process::{Sleep, sleep};
    use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
    use pgrx::prelude::*;
    use std::ffi::{CString, c_char, c_int, c_void};
    use std::time::Duration;

    /// The fault.
    #[derive(Clone, Copy, PostgresGucEnum)]
    enum Fault {
        /// Nothing.
        None,
        /// A NOTICE names every point that is reached.
        Tell,
        /// The server raises an ERROR.
        Error,
        /// Rust panics.
        Panic,
        /// The session waits until it is cancelled.
        Stop,
        /// The session sleeps for 20 ms.
        Linger,
        /// The session waits until no other session holds the advisory lock 4711.
        Gate,
        /// At the commit, after this library's callback, that of another extension writes a row into the table `late`.
        LateWrite,
        /// It raises an ERROR.
        LateError,
        /// At every point: a rollback does not return to lanes what the transaction took from them. The suite torture
        /// must detect that.
        Forget,
    }

    static FAULT: GucSetting<Fault> = GucSetting::<Fault>::new(Fault::None);
    static FAULT_AT: GucSetting<Point> = GucSetting::<Point>::new(Point::Nowhere);

    /// Defines the settings `queue.fault` and `queue.fault_at`.
    pub fn define() {
        GucRegistry::define_enum_guc(
            c"queue.fault",
            c"What fault happens.",
            c"",
            &FAULT,
            GucContext::Suset,
            GucFlags::default(),
        );
        GucRegistry::define_enum_guc(
            c"queue.fault_at",
            c"Where it happens.",
            c"",
            &FAULT_AT,
            GucContext::Suset,
            GucFlags::default(),
        );
        // SAFETY: the library is never unloaded. The callback that was registered first is called last.
        unsafe { pg_sys::RegisterXactCallback(Some(late), std::ptr::null_mut()) };
    }

    #[pg_guard]
    unsafe extern "C-unwind" fn late(event: pg_sys::XactEvent::Type, _nothing: *mut c_void) {
        match FAULT.get() {
            _ if event != pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => {}
            Fault::LateWrite => {
                // SAFETY: the transaction is still open; it has no snapshot at this time.
                unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot()) };
                Spi::run("INSERT INTO public.late DEFAULT VALUES").expect("a row");
                // SAFETY: pushed above.
                unsafe { pg_sys::PopActiveSnapshot() };
            }
            Fault::LateError => raise("the commit"),
            _ => {}
        }
    }

    /// Triggers the fault, if it is set for this point.
    pub fn reached(point: Point) {
        let here = FAULT_AT.get() == point;
        match FAULT.get() {
            Fault::Tell => notice!("{point:?}"),
            Fault::Error if here => raise(&format!("{point:?}")),
            Fault::Panic if here => panic!("panic at {point:?}"),
            Fault::Stop if here => loop {
                sleep(Sleep::Wait, Duration::from_secs(60));
            },
            Fault::Linger if here => std::thread::sleep(Duration::from_millis(20)),
            Fault::Gate if here => await_gate(),
            _ => {}
        }
    }

    fn await_gate() {
        Spi::run("SELECT pg_catalog.pg_advisory_xact_lock_shared(4711)").expect("a lock");
    }

    pub fn forgets() -> bool {
        matches!(FAULT.get(), Fault::Forget)
    }

    unsafe extern "C-unwind" {
        fn errstart(level: c_int, domain: *const c_char) -> bool;
        fn errcode(code: c_int) -> c_int;
        fn errmsg(format: *const c_char, ...) -> c_int;
        fn errfinish(file: *const c_char, line: c_int, function: *const c_char);
    }

    /// Raises the ERROR like C code, with a long jump, which pgrx catches.
    fn raise(place: &str) {
        let message = CString::new(format!("error at {place}")).unwrap_or_default();
        let nowhere = std::ptr::null();
        // SAFETY: the server's functions, in the order of its own ereport; the message is copied.
        unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                if errstart(PgLogLevel::ERROR as c_int, nowhere) {
                    errcode(PgSqlErrorCode::ERRCODE_EXTERNAL_ROUTINE_EXCEPTION as c_int);
                    errmsg(c"%s".as_ptr(), message.as_ptr());
                    errfinish(nowhere, 0, nowhere);
                }
            });
        }
    }
}
