//! The launcher: one process per server, which keeps a background worker running in each database that has the
//! extension.
//!
//! It is connected to no database, so that it does not prevent DROP DATABASE. Only a process connected to a database
//! can see whether it has the extension. So the launcher starts a worker in each database once, which exits if the
//! extension is absent. Later, CREATE EXTENSION notifies the launcher.

use crate::clock::now;
use crate::lanes;
use crate::process;
use crate::settings;
use crate::shared::{self, MAX_DATABASES, Shared};
use pgrx::bgworkers::{
    BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime, DynamicBackgroundWorker,
};
use pgrx::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often to read the list of databases, to find copies of a database with the extension.
const LIST_EVERY: Duration = Duration::from_secs(10);
/// The pause before a worker that has exited is started again. It doubles up to the second of these while workers exit
/// early, so that a lasting fault writes one line to the log every few seconds.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// How many databases are probed at a time, so that a server with many databases has slots left for other workers.
const PROBES: usize = 2;
/// How often to check whether a probe has found the extension.
const PROBE_PAUSE: Duration = Duration::from_millis(100);
/// A worker that ran for this long resets the pause.
const HEALTHY_AFTER: Duration = Duration::from_secs(30);

/// Registers the launcher with the postmaster.
pub fn register() {
    BackgroundWorkerBuilder::new("queue_ext launcher")
        .set_library("queue_ext")
        .set_function("launcher_main")
        .enable_spi_access()
        // On a standby only after its promotion.
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(Duration::from_secs(1)))
        .load();
}

/// The launcher's main function.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn launcher_main(_argument: pg_sys::Datum) {
    process::start(pg_sys::InvalidOid);
    let Some(shared) = shared::get() else { return };
    shared.launcher.enter();
    // SAFETY: the function only touches atomics in shared memory, which outlives the process.
    unsafe { pg_sys::before_shmem_exit(Some(leave), pg_sys::Datum::from(0)) };
    let mut launcher = Launcher { shared, databases: HashMap::new(), warned: Vec::new() };
    let mut listed: Option<Instant> = None;
    loop {
        process::reload_settings();
        if listed.is_none_or(|at| at.elapsed() >= LIST_EVERY) {
            listed = Some(Instant::now());
            launcher.read_databases();
        }
        launcher.take_announced();
        let pause = launcher.start_workers();
        process::report(None);
        process::sleep(process::Sleep::Main, pause.min(LIST_EVERY));
    }
}

/// An exit callback. The workers exit with their launcher, and the next launcher starts its own, so that every worker
/// has a launcher that restarts it.
#[pg_guard]
unsafe extern "C-unwind" fn leave(_code: i32, _argument: pg_sys::Datum) {
    if let Some(shared) = shared::get() {
        shared.launcher.leave();
        shared.wake_workers();
    }
}

struct Launcher {
    shared: &'static Shared,
    databases: HashMap<pg_sys::Oid, Known>,
    /// The refusals that have been logged since they began.
    warned: Vec<Refusal>,
}

/// Why no worker could be started in a database.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// All max_worker_processes are in use.
    WorkerSlot,
    /// Shared memory has entries for MAX_DATABASES databases only.
    SharedMemory,
}

/// What the launcher knows of one database.
struct Known {
    worker: Option<(DynamicBackgroundWorker, Instant)>,
    /// A worker has found no extension.
    absent: bool,
    /// The extension was announced after the worker was started, which may have checked before that.
    announced: bool,
    /// A worker has found the extension, or CREATE EXTENSION has announced it.
    has_extension: bool,
    /// Why the last worker could not be started.
    refused: Option<Refusal>,
    not_before: Instant,
    pause: Duration,
}

impl Known {
    fn new() -> Self {
        Self {
            worker: None,
            absent: false,
            announced: false,
            has_extension: false,
            refused: None,
            not_before: Instant::now(),
            pause: FIRST_PAUSE,
        }
    }
}

impl Launcher {
    /// Reads the list of databases, and forgets those that were dropped.
    fn read_databases(&mut self) {
        let databases = process::transaction(connectable_databases);
        for oid in &databases {
            self.databases.entry(*oid).or_insert_with(Known::new);
        }
        let shared = self.shared;
        self.databases.retain(|oid, known| {
            let stays = known.worker.is_some() || databases.contains(oid);
            if !stays && let Some(database) = shared.database(*oid) {
                database.forget();
                lanes::forget(*oid);
            }
            stays
        });
    }

    /// Reads in which databases the extension was created.
    fn take_announced(&mut self) {
        let announced = self.shared.take_created();
        for oid in announced.databases {
            let known = self.databases.entry(oid).or_insert_with(Known::new);
            known.announce();
            known.has_extension = true;
        }
        if announced.others {
            self.databases.values_mut().for_each(Known::announce);
        }
    }

    /// Starts the workers that should run; returns how long to sleep.
    fn start_workers(&mut self) -> Duration {
        let mut next = LIST_EVERY;
        for (oid, known) in &mut self.databases {
            known.note_progress(self.shared, *oid);
        }
        let mut probes = self.databases.values().filter(|known| known.is_probed()).count();
        for (oid, known) in &mut self.databases {
            if known.worker.is_some() || known.absent || !settings::worker_enabled() {
                continue;
            }
            // Before an entry in shared memory is used: a probe must not take that of a database with the extension.
            if !known.has_extension && probes >= PROBES {
                next = next.min(PROBE_PAUSE);
                continue;
            }
            let Some(database) = self.shared.database_or_new(*oid) else {
                known.refused = Some(Refusal::SharedMemory);
                continue;
            };
            let kept_out = Duration::from_micros(database.kept_out(now()).unsigned_abs());
            let wait = kept_out.max(known.not_before.saturating_duration_since(Instant::now()));
            if !wait.is_zero() {
                next = next.min(wait);
                continue;
            }
            known.announced = false;
            known.worker = start_worker(*oid).map(|worker| (worker, Instant::now()));
            known.refused = known.worker.is_none().then_some(Refusal::WorkerSlot);
            probes += usize::from(known.is_probed());
            if known.refused.is_some() {
                known.not_before = Instant::now() + LIST_EVERY;
            }
        }
        self.warn_once();
        next
    }

    fn warn_once(&mut self) {
        let is_there =
            |refusal: &Refusal| self.databases.values().any(|known| known.refused == Some(*refusal));
        let refusals: Vec<_> =
            [Refusal::WorkerSlot, Refusal::SharedMemory].into_iter().filter(is_there).collect();
        refusals.iter().filter(|refusal| !self.warned.contains(refusal)).for_each(|refusal| refusal.warn());
        self.warned = refusals;
    }
}

impl Refusal {
    fn warn(self) {
        match self {
            Self::WorkerSlot => ereport!(
                PgLogLevel::WARNING,
                PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                "no background worker is free for every database that may have queue_ext",
                "Leases still expire there when tasks are claimed, or by calling queue.reap(). \
                 Raising \"max_worker_processes\" gives each database its worker."
            ),
            Self::SharedMemory => ereport!(
                PgLogLevel::WARNING,
                PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                format!("no more than {MAX_DATABASES} databases of a server can have a worker of queue_ext"),
                "In the others leases still expire when tasks are claimed, or by calling queue.maintain()."
            ),
        }
    }
}

impl Known {
    /// The database may have the extension from now on.
    fn announce(&mut self) {
        self.absent = false;
        self.announced = true;
    }

    /// Whether a worker runs that has not yet found whether the extension is there.
    fn is_probed(&self) -> bool {
        self.worker.is_some() && !self.has_extension
    }

    /// Reads what the worker has found, and whether it has exited.
    fn note_progress(&mut self, shared: &Shared, oid: pg_sys::Oid) {
        let Some((worker, started)) = &self.worker else { return };
        let rounds = shared.database(oid).map_or(0, |d| d.counters.rounds.load(Ordering::Relaxed));
        self.has_extension |= rounds > 0;
        let ended = matches!(
            worker.pid(),
            Err(BackgroundWorkerStatus::Stopped | BackgroundWorkerStatus::PostmasterDied)
        );
        if !ended {
            return;
        }
        let healthy = started.elapsed() >= HEALTHY_AFTER;
        self.pause = if healthy { FIRST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        self.worker = None;
        self.not_before = Instant::now() + self.pause;
        if let Some(database) = shared.database(oid) {
            if database.absent.swap(false, Ordering::SeqCst) {
                self.absent = !self.announced;
                self.has_extension = false;
                self.pause = FIRST_PAUSE;
                self.not_before = Instant::now();
                database.forget();
            }
        }
    }
}

fn start_worker(oid: pg_sys::Oid) -> Option<DynamicBackgroundWorker> {
    // SAFETY: a plain read of a constant of the process.
    let launcher_pid = unsafe { pg_sys::MyProcPid };
    BackgroundWorkerBuilder::new("queue_ext worker")
        .set_library("queue_ext")
        .set_function("worker_main")
        .set_argument(oid.into_datum())
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        // The launcher restarts it. The postmaster would do so even after DROP DATABASE.
        .set_restart_time(None)
        .set_notify_pid(launcher_pid)
        .load_dynamic()
        .ok()
}

/// DATCONNLIMIT_INVALID_DB, the connection limit of a database whose DROP DATABASE was interrupted. Older minor
/// versions do not define it.
const INVALID: i32 = -2;

/// The databases that allow connections, without templates, where a worker would prevent CREATE DATABASE.
fn connectable_databases() -> Vec<pg_sys::Oid> {
    let mut found = Vec::new();
    // SAFETY: reads a shared catalog in a transaction; every tuple is used before the next is
    // fetched, and pg_database's rows have the layout of FormData_pg_database.
    unsafe {
        let relation = pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as i32);
        let scan = pg_sys::systable_beginscan(
            relation,
            pg_sys::InvalidOid,
            false,
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
        );
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let row = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>();
            if (*row).datallowconn && !(*row).datistemplate && (*row).datconnlimit != INVALID {
                found.push((*row).oid);
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
    }
    found
}
