//! The launcher: one process per server that keeps one worker running in each database that has
//! the extension.
//!
//! It is connected to no database, so it is in nobody's way. Which databases have the extension
//! only a process inside them can see, so each is probed once by a worker that leaves again when
//! it finds nothing; later, CREATE EXTENSION tells the launcher itself.

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

/// How often the list of databases is read, for those made as a copy of one with the extension.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long to wait before a worker that ended is started again: doubled up to the second while
/// it keeps ending at once, so that a lasting fault costs a line in the log every few seconds.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// How many databases of which nothing is known are looked into at a time, so that a server with many
/// has slots left for other workers.
const PROBES: usize = 2;
/// How soon to see whether a probe has found the extension.
const PROBE_PAUSE: Duration = Duration::from_millis(100);
/// A worker that lived this long did well.
const HEALTHY_AFTER: Duration = Duration::from_secs(30);

/// Registers the launcher with the postmaster.
pub fn register() {
    BackgroundWorkerBuilder::new("queue_ext launcher")
        .set_library("queue_ext")
        .set_function("launcher_main")
        .enable_spi_access()
        // On a standby: only after promotion.
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
    let mut launcher = Launcher { shared, places: HashMap::new(), warned: Vec::new() };
    let mut looked: Option<Instant> = None;
    loop {
        process::reload_settings();
        if looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            looked = Some(Instant::now());
            launcher.look();
        }
        launcher.take_announced();
        let pause = launcher.tend();
        process::report(None);
        process::sleep(process::Sleep::Main, pause.min(LOOK_EVERY));
    }
}

/// Runs at every exit of the process. Workers leave with their launcher; the next one starts its
/// own, so that no worker is ever without one that starts it again.
#[pg_guard]
unsafe extern "C-unwind" fn leave(_code: i32, _argument: pg_sys::Datum) {
    if let Some(shared) = shared::get() {
        shared.launcher.leave();
        shared.wake_workers();
    }
}

struct Launcher {
    shared: &'static Shared,
    places: HashMap<pg_sys::Oid, Place>,
    /// What has been told since it began.
    warned: Vec<Refusal>,
}

/// Why there is no worker in a database where one was to start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// All of max_worker_processes are taken.
    Slot,
    /// As many databases as there is shared memory for have one.
    Place,
}

/// What the launcher knows of one database.
struct Place {
    worker: Option<(DynamicBackgroundWorker, Instant)>,
    /// A worker looked and found no extension.
    absent: bool,
    /// The extension was announced after the worker was started, which may have looked before.
    announced: bool,
    /// The extension is there, or was.
    known: bool,
    /// Why there was no worker when one was to start.
    refused: Option<Refusal>,
    not_before: Instant,
    pause: Duration,
}

impl Place {
    fn new() -> Self {
        Self {
            worker: None,
            absent: false,
            announced: false,
            known: false,
            refused: None,
            not_before: Instant::now(),
            pause: FIRST_PAUSE,
        }
    }
}

impl Launcher {
    /// Compares what is known with the list of databases.
    fn look(&mut self) {
        let databases = process::transaction(connectable_databases);
        for oid in &databases {
            self.places.entry(*oid).or_insert_with(Place::new);
        }
        let shared = self.shared;
        self.places.retain(|oid, place| {
            let stays = place.worker.is_some() || databases.contains(oid);
            if !stays && let Some(database) = shared.database(*oid) {
                database.forget();
                lanes::forget(*oid);
            }
            stays
        });
    }

    /// Notes where the extension was created.
    fn take_announced(&mut self) {
        let announced = self.shared.take_created();
        for oid in announced.databases {
            let place = self.places.entry(oid).or_insert_with(Place::new);
            place.announce();
            place.known = true;
        }
        if announced.others {
            self.places.values_mut().for_each(Place::announce);
        }
    }

    /// Starts what should run; returns how long nothing more is to be done.
    fn tend(&mut self) -> Duration {
        let mut next = LOOK_EVERY;
        for (oid, place) in &mut self.places {
            place.note_progress(self.shared, *oid);
        }
        let mut probes = self.places.values().filter(|place| place.is_probed()).count();
        for (oid, place) in &mut self.places {
            if place.worker.is_some() || place.absent || !settings::worker_enabled() {
                continue;
            }
            // First, since one of which nothing is known must not take the place of one with the extension.
            if !place.known && probes >= PROBES {
                next = next.min(PROBE_PAUSE);
                continue;
            }
            let Some(database) = self.shared.database_or_new(*oid) else {
                place.refused = Some(Refusal::Place);
                continue;
            };
            let kept_out = Duration::from_micros(database.kept_out(now()).unsigned_abs());
            let wait = kept_out.max(place.not_before.saturating_duration_since(Instant::now()));
            if !wait.is_zero() {
                next = next.min(wait);
                continue;
            }
            place.announced = false;
            place.worker = start_worker(*oid).map(|worker| (worker, Instant::now()));
            place.refused = place.worker.is_none().then_some(Refusal::Slot);
            probes += usize::from(place.is_probed());
            if place.refused.is_some() {
                place.not_before = Instant::now() + LOOK_EVERY;
            }
        }
        self.warn_once();
        next
    }

    fn warn_once(&mut self) {
        let is_there = |refusal: &Refusal| self.places.values().any(|place| place.refused == Some(*refusal));
        let refusals: Vec<_> = [Refusal::Slot, Refusal::Place].into_iter().filter(is_there).collect();
        refusals.iter().filter(|refusal| !self.warned.contains(refusal)).for_each(|refusal| refusal.warn());
        self.warned = refusals;
    }
}

impl Refusal {
    fn warn(self) {
        match self {
            Self::Slot => ereport!(
                PgLogLevel::WARNING,
                PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                "no background worker is free for every database that may have queue_ext",
                "Leases still expire there when tasks are claimed, or by calling queue.reap(). \
                 Raising \"max_worker_processes\" gives each database its worker."
            ),
            Self::Place => ereport!(
                PgLogLevel::WARNING,
                PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                format!("no more than {MAX_DATABASES} databases of a server can have a worker of queue_ext"),
                "In the others leases still expire when tasks are claimed, or by calling queue.maintain()."
            ),
        }
    }
}

impl Place {
    /// The extension may be here from now on.
    fn announce(&mut self) {
        self.absent = false;
        self.announced = true;
    }

    /// Whether a worker is looking for the extension, and it is not known whether it finds it.
    fn is_probed(&self) -> bool {
        self.worker.is_some() && !self.known
    }

    /// Notes what the worker found, and that it has ended, if it has.
    fn note_progress(&mut self, shared: &Shared, oid: pg_sys::Oid) {
        let Some((worker, started)) = &self.worker else { return };
        let rounds = shared.database(oid).map_or(0, |d| d.counters.rounds.load(Ordering::Relaxed));
        self.known |= rounds > 0;
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
                self.known = false;
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
        // The launcher starts it again; Postgres on its own would also do so after DROP DATABASE.
        .set_restart_time(None)
        .set_notify_pid(launcher_pid)
        .load_dynamic()
        .ok()
}

/// The connection limit of a database that a DROP DATABASE was interrupted in. The older minor versions,
/// which do not know it, have no name for it.
const INVALID: i32 = -2;

/// The databases one can connect to, templates left out: a worker there would be in the way of
/// CREATE DATABASE.
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
