//! The shared memory through which sessions, the launcher and the background workers communicate.
//!
//! It contains only hints: losing all of it causes a bounded delay and nothing else. So plain atomics are enough, and
//! commit callbacks can use it, because nothing in here locks, allocates memory or raises an ERROR.

mod database;
mod handlers;
mod idle_workers;
mod queue_set;
mod result_waiters;
mod sleeper;
mod token_base;

pub use database::{Database, KEEP_OUT_MICROSECONDS};
pub use handlers::{Handler, Handlers, Use as HandlerUse};
use idle_workers::IdleWorkers;
use pgrx::prelude::*;
use pgrx::{PGRXSharedMemory, PgAtomic, pg_shmem_init};
pub use queue_set::{QueueBits, contains, queue_bit, set_bit};
pub use result_waiters::Place;
use result_waiters::ResultWaiters;
use sleeper::Sleeper;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many databases of a server can have a worker. Each takes a few hundred bytes.
pub const MAX_DATABASES: usize = 64;

/// After every time: for events that are not expected.
pub const NEVER: i64 = i64::MAX;

/// Before every time that a clock can show, even one before 2000, which is negative. Far enough from the smallest
/// number to subtract a pause.
pub const AT_ONCE: i64 = i64::MIN / 2;

// SAFETY: the name is this extension's own.
static SHARED: PgAtomic<Shared> = unsafe { PgAtomic::new(c"queue_ext") };

/// Everything in shared memory.
#[derive(Default)]
pub struct Shared {
    /// The launcher's latch.
    pub launcher: Sleeper,
    /// Databases in which the extension has just been created, for the launcher.
    created: [AtomicU32; 16],
    /// There were more of them than entries.
    created_elsewhere: AtomicBool,
    databases: Databases,
    /// The sessions that wait for the end of a task.
    pub results: ResultWaiters,
    /// The processes that run handlers.
    pub handlers: Handlers,
    /// The names of the sessions that wait for a task.
    pub idle: IdleWorkers,
}

// SAFETY: it consists of atomics, without pointers into the memory of a process.
unsafe impl PGRXSharedMemory for Shared {}

/// Array without the 32-element limit of `Default` for arrays.
struct Databases([Database; MAX_DATABASES]);

impl Default for Databases {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Database::default()))
    }
}

/// Asks the postmaster for the memory. Only while it preloads libraries.
pub fn request() {
    pg_shmem_init!(SHARED);
    LOADED.store(true, Ordering::Relaxed);
}

/// Whether the postmaster has requested the memory. In process memory, inherited by fork.
static LOADED: AtomicBool = AtomicBool::new(false);

/// The shared memory; none if the library was not preloaded.
pub fn get() -> Option<&'static Shared> {
    LOADED.load(Ordering::Relaxed).then(|| SHARED.get())
}

/// Requests a scan of the worker for expired leases that are not in a lane, from this time on, unless it is NEVER.
pub fn leases_until(database: pg_sys::Oid, time: i64) {
    announce(database, time, Database::lease_until);
}

/// Requests that the worker ends the tasks that have to be started by this time, unless it is NEVER.
pub fn start_deadline(database: pg_sys::Oid, time: i64) {
    announce(database, time, Database::start_by);
}

fn announce(database: pg_sys::Oid, time: i64, how: fn(&Database, i64)) {
    if time != NEVER
        && let Some(database) = get().and_then(|shared| shared.database(database))
    {
        how(database, time);
    }
}

impl Shared {
    /// The slot of the database `oid`, if the launcher has given it one.
    pub fn database(&self, oid: pg_sys::Oid) -> Option<&Database> {
        // A free slot has the invalid OID.
        let known = (oid != pg_sys::InvalidOid).then_some(&self.databases.0)?;
        known.iter().find(|place| place.oid.load(Ordering::Acquire) == oid.to_u32())
    }

    /// The slot of the database `oid`, assigned now if needed; none if all are taken. Only the launcher calls it, so no
    /// two processes assign the same slot.
    pub fn database_or_new(&self, oid: pg_sys::Oid) -> Option<&Database> {
        self.database(oid).or_else(|| {
            let free = self.databases.0.iter().find(|d| d.oid.load(Ordering::Acquire) == 0)?;
            free.oid.store(oid.to_u32(), Ordering::Release);
            Some(free)
        })
    }

    /// Announces to the launcher that the database `oid` now has the extension.
    pub fn announce_created(&self, oid: pg_sys::Oid) {
        let take = |place: &AtomicU32| {
            place.compare_exchange(0, oid.to_u32(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if !self.created.iter().any(take) {
            self.created_elsewhere.store(true, Ordering::Release);
        }
        self.launcher.wake();
    }

    /// Wakes every worker.
    pub fn wake_workers(&self) {
        self.databases.0.iter().for_each(|database| database.worker.wake());
    }

    /// Takes the databases that [`Shared::announce_created`] announced.
    pub fn take_created(&self) -> Created {
        let taken = self.created.iter().map(|place| place.swap(0, Ordering::AcqRel));
        let databases = taken.filter(|oid| *oid != 0).map(pg_sys::Oid::from).collect();
        Created { databases, others: self.created_elsewhere.swap(false, Ordering::AcqRel) }
    }
}

/// Where the extension was created.
pub struct Created {
    /// These databases have the extension.
    pub databases: Vec<pg_sys::Oid>,
    /// Others may have it too.
    pub others: bool,
}
