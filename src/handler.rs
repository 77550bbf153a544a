//! A process that runs the handler of a queue (queue.attach). The worker of the database starts it (worker/handlers.rs).
//!
//! It is connected as the role of the handler and calls the public functions like any session of that role, so it never has
//! more rights than the role. The first claim commits in a transaction of its own, so that a task that crashes the process
//! uses up an attempt, operators see it running, and it can be cancelled. Then the handler, the completion and the next
//! claim are one transaction, so each task costs one commit. If the handler raises an ERROR, that transaction is
//! rolled back, and the failure is reported in another one.
//!
//! The lease bounds the call and the commit as a statement timeout does. If a handler catches that error, the process exits
//! when the lease ends. A session that requests the cancellation of the task interrupts the call after its commit
//! (triggers.rs), and so do commands on the whole database (hooks.rs).
//!
//! The process exits after its current task when the handler is detached and when its worker exits, and whenever a
//! public function raises an unexpected ERROR. The worker then decides whether to start another one.

mod call;
mod failure;
mod verbs;

use crate::clock::now;
use crate::durability;
use crate::extension::{self, Installed};
use crate::names::shown;
use crate::process;
use crate::settings;
use crate::shared::{self, Database, Handler, HandlerUse};
use crate::transaction;
use crate::wait::Waiting;
use crate::worker;
use failure::{Failure, LEASE_LOST, QUERY_CANCELED, attempt};
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::CString;
use std::time::Duration;
use verbs::{Task, Verbs};

/// The process's main function; the argument is its slot.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn handler_main(argument: pg_sys::Datum) {
    let Some(shared) = shared::get() else { return };
    let Some(slot) = shared.handlers.get(HandlerUse::from(argument)) else { return };
    slot.process.enter();
    // Before it connects, which may fail.
    // SAFETY: the function only touches atomics in shared memory, which outlives the process.
    unsafe { pg_sys::before_shmem_exit(Some(leave), argument) };
    process::start_as(slot.database(), slot.role());
    let Some(database) = shared.database(slot.database()) else { return };
    let queue = slot.queue();
    set([("application_name", format!("queue_ext handler of {}", shown(&queue)).as_str())]);
    Process::new(slot, database, queue).run();
}

/// An exit callback, which also runs after an ERROR.
#[pg_guard]
unsafe extern "C-unwind" fn leave(_code: i32, argument: pg_sys::Datum) {
    if let Some(slot) = shared::get().and_then(|shared| shared.handlers.get(HandlerUse::from(argument))) {
        slot.free();
    }
}

/// The settings of the role and the database apply as in any session of the role, and so do those that a handler made
/// for the session, except for these: the public functions need them, or they would end the process.
const SESSION: &[(&str, &str)] = &[
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("session_replication_role", "origin"),
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    ("transaction_timeout", "0"),
];

/// Sets settings for the session, as SET does. Outside a transaction.
fn set<'a>(settings: impl IntoIterator<Item = (&'a str, &'a str)>) {
    for (setting, value) in settings {
        let (Ok(setting), Ok(value)) = (CString::new(setting), CString::new(value)) else { continue };
        // SAFETY: zero-terminated strings; the context is that of a superuser.
        unsafe {
            pg_sys::SetConfigOption(
                setting.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_SESSION,
            );
        }
    }
}

/// What the process does next.
enum Next {
    Claim,
    Handle(Task),
    Exit,
}

struct Process {
    slot: &'static Handler,
    database: &'static Database,
    queue: Vec<u8>,
    verbs: Verbs,
    waiting: Waiting,
}

impl Process {
    fn new(slot: &'static Handler, database: &'static Database, queue: Vec<u8>) -> Self {
        Self { slot, database, verbs: Verbs::new(&queue), queue, waiting: Waiting::new() }
    }

    fn run(mut self) {
        // A task whose function crashes the server has to count an attempt each time.
        durability::require_always();
        let mut next = Next::Claim;
        loop {
            process::reload_settings();
            set(SESSION.iter().copied());
            next = match next {
                Next::Claim if !self.may_stay() => return,
                Next::Claim => self.claim_or_wait(),
                Next::Handle(task) => self.handle(&task),
                Next::Exit => return,
            };
        }
    }

    /// Whether to claim another task.
    fn may_stay(&self) -> bool {
        settings::worker_enabled() && !self.slot.is_stopped() && !self.is_abandoned()
    }

    /// Whether the worker has exited, or has to disconnect from the database.
    fn is_abandoned(&self) -> bool {
        self.database.worker.pid() != self.slot.manager() || self.database.kept_out(now()) != 0
    }

    fn claim_or_wait(&mut self) -> Next {
        process::report(Some(c"claiming a task"));
        let claimed = attempt(|| {
            match extension::try_hold() {
                Installed::Locked => return Claimed::Locked,
                Installed::No => return Claimed::Exit,
                _ if !call::is_callable(self.slot.function()) => return Claimed::Exit,
                _ => {}
            }
            if let Some(task) = self.verbs.claim() {
                self.waiting.leave(true);
                self.slot.set_task(task.id);
                return Claimed::Task(task);
            }
            // SAFETY: in a transaction with a snapshot.
            let may_sleep = worker::as_owner(|| unsafe {
                self.waiting.enter(&self.queue, self.verbs.worker(), || worker::first_ready(&self.queue))
            });
            if may_sleep { Claimed::Nothing } else { Claimed::Repeat }
        });
        process::report(None);
        match claimed {
            Ok(Claimed::Task(task)) => Next::Handle(task),
            Ok(Claimed::Repeat) => Next::Claim,
            Ok(Claimed::Exit) => Next::Exit,
            Ok(Claimed::Nothing) => self.sleep(None),
            Ok(Claimed::Locked) => self.sleep(Some(extension::RETRY_LOCKED)),
            // Nothing was claimed.
            Err(failure) if failure.is_passing() => {
                self.slot.set_task(0);
                Next::Claim
            }
            Err(failure) => self.give_up("claiming", &failure),
        }
    }

    /// Sleeps until there may be a task, or for a time. An interrupt for a task that has just ended is ignored.
    fn sleep(&self, time: Option<Duration>) -> Next {
        if self.may_stay() {
            failure::catch(|| match time {
                Some(time) => process::sleep(process::Sleep::Leave, time),
                None => self.waiting.sleep(),
            })
            .ok();
        }
        Next::Claim
    }

    fn handle(&mut self, task: &Task) -> Next {
        process::report(Some(c"running a handler"));
        let deadline = task.deadline();
        let completing = Cell::new(false);
        let handled = if self.slot.is_interrupted(task.id) {
            Err(Failure::interrupted())
        } else {
            attempt(|| {
                if !call::is_callable(self.slot.function()) {
                    return Handled::NotCallable;
                }
                transaction::watch(task.id);
                // SAFETY: in a transaction with a snapshot.
                let result = unsafe { call::call(self.slot.function(), task) };
                completing.set(true);
                self.complete(task, result).map_or(Handled::Done, Handled::Next)
            })
        };
        process::report(None);
        call::forget_interrupts();
        let failure = match handled {
            Ok(Handled::Next(next)) => return Next::Handle(next),
            Ok(Handled::Done) => {
                self.slot.set_task(0);
                return Next::Claim;
            }
            Ok(Handled::NotCallable) => {
                self.slot.set_task(0);
                self.report(|verbs| verbs.release(task)).ok();
                return Next::Exit;
            }
            Err(failure) => failure,
        };
        let interrupted = self.slot.is_interrupted(task.id) || self.is_abandoned();
        // From here on, the report honours a cancellation that is requested.
        self.slot.set_task(0);
        let reported = if failure.sqlstate == QUERY_CANCELED && interrupted || failure.is_lock_on_extension()
        {
            // If its cancellation was requested, that cancels it. Otherwise the attempt does not count.
            self.report(|verbs| verbs.release(task))
        } else if failure.sqlstate == LEASE_LOST && completing.get() {
            // Nothing to report: another process has the task, or it has ended.
            Ok(())
        } else if failure.sqlstate == QUERY_CANCELED && now() >= deadline {
            self.report(|verbs| verbs.fail(task, &failure.timed_out()))
        } else {
            self.report(|verbs| verbs.fail(task, &failure))
        };
        match reported {
            Ok(()) => Next::Claim,
            // The handler itself may have lost the lease.
            Err(failure) if failure.sqlstate == LEASE_LOST => Next::Claim,
            Err(failure) => self.give_up("reporting a failure", &failure),
        }
    }

    /// Reports how a task ended. Repeats that once after an error that may not recur.
    fn report(&mut self, end: impl Fn(&mut Verbs)) -> Result<(), Failure> {
        let mut reported = Ok(());
        for _ in 0..2 {
            call::forget_interrupts();
            // If the extension was dropped, there is nothing to report.
            reported = attempt(|| {
                if extension::hold_first() == Installed::Yes {
                    end(&mut self.verbs);
                }
            });
            if !matches!(&reported, Err(failure) if failure.is_passing()) {
                break;
            }
        }
        reported
    }

    /// Completes the task, unless the handler has ended it itself, and claims the next one.
    fn complete(&mut self, task: &Task, result: Option<pg_sys::Datum>) -> Option<Task> {
        if extension::try_hold() != Installed::Yes {
            failure::raise_locked();
        }
        let next = if task.was_ended_by_this_transaction() {
            None
        } else if self.may_stay() && call::is_callable(self.slot.function()) {
            self.verbs.complete_and_claim(task, result)
        } else {
            self.verbs.complete(task, result);
            None
        };
        // From here on the row of the completed task is locked, so that no session can request its cancellation.
        next.iter().for_each(|next| self.slot.set_task(next.id));
        next
    }

    /// Logs an ERROR of a public function, and lets the worker decide whether to start another process.
    fn give_up(&mut self, activity: &str, failure: &Failure) -> Next {
        self.waiting.leave(false);
        // Not if the extension has just been dropped.
        let installed = || attempt(extension::oid).is_ok_and(|oid| oid != pg_sys::InvalidOid);
        if self.may_stay() && installed() {
            failure.warn(activity, &self.queue);
        }
        Next::Exit
    }
}

/// The result of a claim.
enum Claimed {
    Task(Task),
    /// There is no task, and the process is in the list of those that wait for one.
    Nothing,
    /// It was not in that list before.
    Repeat,
    /// Another session has the extension locked.
    Locked,
    /// The extension or the function was dropped, or the role may not execute the function.
    Exit,
}

/// How the handling of a task ended.
enum Handled {
    /// It ended, and this task was claimed with its completion.
    Next(Task),
    /// It ended.
    Done,
    /// The function was dropped, or the role may not execute it.
    NotCallable,
}
