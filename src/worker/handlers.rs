//! Starts and stops the processes that run handlers (handler.rs).

use super::core::{Attached, runnable_handlers};
use super::{Pause, RUN_HANDLERS, Worker, microseconds};
use crate::clock::now;
use crate::extension::Installed;
use crate::names::shown;
use crate::settings;
use crate::shared::{AT_ONCE, Database, HandlerUse, Handlers, QueueBits};
use pgrx::bgworkers::{
    BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime, DynamicBackgroundWorker,
};
use pgrx::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// How often to try again if no process could be started, in microseconds.
const RETRY_START: i64 = 10_000_000;
/// A process that ran for this long resets the pause.
const HEALTHY_AFTER: i64 = 30_000_000;

impl Worker {
    /// Starts and stops the processes that run handlers.
    pub(super) fn run_handlers(&mut self, _pushed: &QueueBits) -> Installed {
        self.handlers.note_ended(&self.shared.handlers);
        let announced = self.database.handlers_changed.swap(false, Ordering::SeqCst);
        if announced {
            self.handlers.forget_pauses();
        } else if self.handlers.due() > now() {
            return Installed::Yes;
        }
        let step = self.attempt(RUN_HANDLERS, c"reading the handlers", runnable_handlers);
        match &step.result {
            Some(wanted) => self.handlers.arrange(wanted, &self.shared.handlers, self.database),
            None if announced => self.database.handlers_changed.store(true, Ordering::SeqCst),
            None => {}
        }
        step.installed
    }
}

/// A process that this worker has started.
struct Process {
    attached: Attached,
    taken: HandlerUse,
    handle: DynamicBackgroundWorker,
    started: i64,
    /// Whether the worker has asked it to exit.
    stopped: bool,
}

/// The processes of a database, and when to start more of them.
pub struct Processes {
    running: Vec<Process>,
    /// The pauses of handlers whose processes have exited by themselves.
    pauses: HashMap<Vec<u8>, Pause>,
    /// When to compare them with the attached handlers again, even if nothing was announced.
    due: i64,
    /// Whether the lack of processes has been logged since it began.
    warned: bool,
}

impl Processes {
    pub fn new() -> Self {
        Self { running: Vec::new(), pauses: HashMap::new(), due: AT_ONCE, warned: false }
    }

    /// When the next step is due. The times were planned by a clock that was set back if `replan` is called.
    pub fn due(&self) -> i64 {
        self.due
    }

    /// Forgets all times, because the clock was set back.
    pub fn replan(&mut self) {
        self.pauses.clear();
        self.due = AT_ONCE;
    }

    /// Finds the processes that have exited. The next step starts others in their place.
    pub fn note_ended(&mut self, handlers: &Handlers) {
        let ended = |process: &Process| {
            let status = process.handle.pid();
            matches!(status, Err(BackgroundWorkerStatus::Stopped | BackgroundWorkerStatus::PostmasterDied))
        };
        for process in self.running.extract_if(.., |process| ended(process)) {
            // If the process has never started, the slot is still taken.
            if let Some(slot) = handlers.get(process.taken) {
                slot.free();
            }
            self.due = AT_ONCE;
            if process.stopped {
                continue;
            }
            self.pauses.entry(process.attached.queue).or_insert(Pause::NONE).failed(now());
        }
    }

    /// Forgets the pauses, because the cause may be gone.
    pub fn forget_pauses(&mut self) {
        self.pauses.clear();
    }

    /// Stops processes whose handler is no longer attached, and starts those that are missing. Outside a transaction,
    /// because the server allocates the handles.
    pub fn arrange(&mut self, wanted: &[(Attached, usize)], handlers: &Handlers, database: &Database) {
        let moment = now();
        self.due = moment.saturating_add(microseconds(settings::sweep_interval()));
        let mut counts = vec![0; wanted.len()];
        for process in self.running.iter_mut().filter(|process| !process.stopped) {
            let place = wanted.iter().position(|(attached, _)| *attached == process.attached);
            match place.filter(|place| counts[*place] < wanted[*place].1) {
                Some(place) => counts[place] += 1,
                None => {
                    process.stopped = true;
                    handlers.get(process.taken).into_iter().for_each(|slot| slot.stop());
                }
            }
        }
        self.pauses.retain(|queue, _| {
            let is_healthy = |process: &Process| {
                process.attached.queue == *queue && moment - process.started >= HEALTHY_AFTER
            };
            wanted.iter().any(|(attached, _)| attached.queue == *queue)
                && !self.running.iter().any(is_healthy)
        });
        let mut unstarted = 0;
        for ((attached, workers), count) in wanted.iter().zip(counts) {
            if let Some(pause) = self.pauses.get(&attached.queue).filter(|pause| pause.until > moment) {
                self.due = self.due.min(pause.until);
                continue;
            }
            for _ in count..*workers {
                match Process::start(attached, handlers, moment) {
                    Some(process) => self.running.push(process),
                    None => unstarted += 1,
                }
            }
        }
        if unstarted > 0 {
            self.due = self.due.min(moment + RETRY_START);
            if !self.warned {
                warn(unstarted, wanted.iter().map(|(attached, _)| attached.queue.as_slice()));
            }
        }
        self.warned = unstarted > 0;
        let failing = self.pauses.values().filter(|pause| pause.failures > 1).count();
        database.handlers_unstarted.store(unstarted, Ordering::SeqCst);
        database.handlers_failing.store(failing as u32, Ordering::SeqCst);
    }
}

impl Process {
    /// Starts a process; none if all slots or all max_worker_processes are in use.
    fn start(attached: &Attached, handlers: &Handlers, moment: i64) -> Option<Self> {
        // SAFETY: plain reads of constants of the process.
        let (database, me) = unsafe { (pg_sys::MyDatabaseId, pg_sys::MyProcPid) };
        let taken = handlers.take(database, &attached.queue, attached.role, attached.function)?;
        let started = BackgroundWorkerBuilder::new("queue_ext handler")
            .set_library("queue_ext")
            .set_function("handler_main")
            .set_argument(Some(taken.into()))
            .enable_spi_access()
            .set_start_time(BgWorkerStartTime::RecoveryFinished)
            // The worker starts another one, if the handler is still attached.
            .set_restart_time(None)
            .set_notify_pid(me)
            .load_dynamic();
        match started {
            Ok(handle) => {
                Some(Self { attached: attached.clone(), taken, handle, started: moment, stopped: false })
            }
            Err(_) => {
                handlers.get(taken).into_iter().for_each(|slot| slot.free());
                None
            }
        }
    }
}

fn warn<'a>(unstarted: u32, queues: impl Iterator<Item = &'a [u8]>) {
    let queues: Vec<_> = queues.map(shown).collect();
    ereport!(
        PgLogLevel::WARNING,
        PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
        format!("{unstarted} processes for handlers of queues could not be started"),
        format!(
            "All \"max_worker_processes\" are in use. Handlers are attached to these queues: {}.",
            queues.join(", ")
        )
    );
}
