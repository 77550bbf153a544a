//! The shared memory through which sessions, the launcher and the workers find one another.
//!
//! It holds hints, never truth: losing all of it costs a bounded delay and nothing else. So plain atomics are enough, and a
//! commit callback can use it: nothing in here locks, allocates or raises.

mod database;
pub mod idle;
mod queue_set;
mod result_waiters;
mod sleeper;
mod token_base;

pub use database::{Database, KEEP_OUT_MICROSECONDS};
use pgrx::prelude::*;
use pgrx::{PGRXSharedMemory, PgAtomic, pg_shmem_init};
pub use queue_set::{QueueBits, contains, queue_bit, set_bit};
pub use result_waiters::Place;
use result_waiters::ResultWaiters;
use sleeper::Sleeper;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many databases of one server can have a worker. A few hundred bytes each.
pub const MAX_DATABASES: usize = 64;

/// "Not before anything else": the time of something that is not known to come.
pub const NEVER: i64 = i64::MAX;

/// Before any time that a clock can show, one that is wrong and earlier than 2000 included, where Postgres's times are
/// negative. Far enough from the smallest number for a pause to be taken from it.
pub const AT_ONCE: i64 = i64::MIN / 2;

// SAFETY: the name is this extension's own.
static SHARED: PgAtomic<Shared> = unsafe { PgAtomic::new(c"queue_ext") };

/// Everything in shared memory.
#[derive(Default)]
pub struct Shared {
    /// The launcher's latch.
    pub launcher: Sleeper,
    /// Databases in which the extension was just created, for the launcher to look into.
    created: [AtomicU32; 16],
    /// There were more of them than places.
    created_elsewhere: AtomicBool,
    databases: Databases,
    /// The sessions that wait for the end of a task.
    pub results: ResultWaiters,
    /// Prepared transactions that have nothing to publish.
    pub idle: idle::IdleTransactions,
}

// SAFETY: nothing but atomics and arrays of atomics, no pointer into one process's own memory.
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
    idle::make_keys();
    pg_shmem_init!(SHARED);
    LOADED.store(true, Ordering::Relaxed);
}

/// Whether this process was forked from a postmaster that has the memory. Plain process memory.
static LOADED: AtomicBool = AtomicBool::new(false);

/// The shared memory, or nothing where the library was not preloaded.
pub fn get() -> Option<&'static Shared> {
    LOADED.load(Ordering::Relaxed).then(|| SHARED.get())
}

/// Has the worker of a database scan for expired leases that are not in a lane, from this time on, unless that is never.
pub fn leases_until(database: pg_sys::Oid, time: i64) {
    if time != NEVER
        && let Some(database) = get().and_then(|shared| shared.database(database))
    {
        database.lease_until(time);
    }
}

impl Shared {
    /// The slot of the database `oid`, if the launcher has given it one.
    pub fn database(&self, oid: pg_sys::Oid) -> Option<&Database> {
        // A free slot has the invalid OID.
        let known = (oid != pg_sys::InvalidOid).then_some(&self.databases.0)?;
        known.iter().find(|place| place.oid.load(Ordering::Acquire) == oid.to_u32())
    }

    /// The slot of the database `oid`, taken now if needed; nothing if all are taken. Only the
    /// launcher calls it, so no two processes take the same slot.
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

    /// Wakes every worker, so that it sees what changed.
    pub fn wake_workers(&self) {
        self.databases.0.iter().for_each(|database| database.worker.wake());
    }

    /// Takes the databases that [`Shared::announce_created`] left.
    pub fn take_created(&self) -> Created {
        let taken = self.created.iter().map(|place| place.swap(0, Ordering::AcqRel));
        let databases = taken.filter(|oid| *oid != 0).map(pg_sys::Oid::from).collect();
        Created { databases, others: self.created_elsewhere.swap(false, Ordering::AcqRel) }
    }
}

/// Where the extension was created.
pub struct Created {
    /// In these databases.
    pub databases: Vec<pg_sys::Oid>,
    /// And in others.
    pub others: bool,
}
