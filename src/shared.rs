//! The shared memory through which sessions, the launcher and the workers find one another.
//!
//! It holds hints, never truth: losing all of it costs a bounded delay and nothing else. That is
//! why plain atomics are enough, and why a commit callback may touch it: nothing in here locks,
//! allocates or raises.

pub mod idle;
mod token_base;

use crate::fallback::REASONS;
use crate::rights;
use pgrx::prelude::*;
use pgrx::{PGRXSharedMemory, PgAtomic, pg_shmem_init};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// How many databases of one server can have a worker. A few hundred bytes each.
pub const MAX_DATABASES: usize = 64;

/// How long the worker stays away after it has left for a command. The command locks the database long before this is
/// over, and from then on a new worker waits for that lock.
pub const KEEP_OUT_MICROSECONDS: i64 = 3_000_000;

/// "Not before anything else": the time of something that is not known to come.
pub const NEVER: i64 = i64::MAX;

/// Before any time that a clock can show, one that is wrong and earlier than 2000 included, where Postgres's times are
/// negative. Far enough from the smallest number for a pause to be taken from it.
pub const AT_ONCE: i64 = i64::MIN / 2;

const QUEUE_BITS: usize = 256;

static SHARED: PgAtomic<Shared> = unsafe {
    // SAFETY: the name is this extension's own.
    PgAtomic::new(c"queue_ext")
};

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
    /// Who waits for the end of a task.
    pub results: ResultWaiters,
    /// Prepared transactions that did nothing that anybody would have to be told of.
    pub idle: idle::IdleTransactions,
}

/// What the sessions of one database tell its worker, and what it tells them. Times are
/// microseconds since 2000-01-01 UTC, as Postgres counts them.
#[derive(Default)]
pub struct Database {
    oid: AtomicU32,
    /// The worker's latch, and whether it runs.
    pub worker: Sleeper,
    /// The earliest expiry of a lease that was granted since the worker last looked, and is in no lane.
    pub next_lease: Earliest,
    /// The earliest time at which something is to be done in a lane, of which the worker was not told yet.
    pub next_lane: Earliest,
    /// The earliest run_at of a task that was put off since the worker last looked.
    pub next_run: Earliest,
    /// The queues that got something to claim since the worker last looked.
    pub pushed: QueueSet,
    /// Until when the worker must stay away, because somebody wants to drop the database.
    pub keep_out_until: AtomicI64,
    /// The worker looked and found that the database does not have the extension.
    pub absent: AtomicBool,
    /// The base of this database's tokens.
    pub tokens: token_base::TokenBase,
    /// What the worker did so far.
    pub counters: Counters,
}

/// What one database's workers did since the server started.
#[derive(Default)]
pub struct Counters {
    /// Rounds of the worker's loop in which it found the extension.
    pub rounds: AtomicU64,
    /// Leases that the worker found expired.
    pub leases_reaped: AtomicU64,
    /// NOTIFYs sent.
    pub notifications: AtomicU64,
    /// Calls that the native verbs served.
    pub served: AtomicU64,
    /// Calls that they handed to the core, by [`Reason`].
    pub handed_over: [AtomicU64; REASONS],
}

impl Counters {
    fn clear(&self) {
        let single = [&self.rounds, &self.leases_reaped, &self.notifications, &self.served];
        single.into_iter().chain(&self.handed_over).for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
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

/// Has the worker of a database look for leases that no lane knows from this time on, unless that is never.
pub fn leases_until(database: pg_sys::Oid, time: i64) {
    if time != NEVER
        && let Some(database) = get().and_then(|shared| shared.database(database))
    {
        database.lease_until(time);
    }
}

impl Shared {
    /// The place of the database `oid`, if the launcher has given it one.
    pub fn database(&self, oid: pg_sys::Oid) -> Option<&Database> {
        // A free place has the invalid OID.
        let known = (oid != pg_sys::InvalidOid).then_some(&self.databases.0)?;
        known.iter().find(|place| place.oid.load(Ordering::Acquire) == oid.to_u32())
    }

    /// The place of the database `oid`, taken now if need be; nothing when all are taken. Only the
    /// launcher calls it, so no two processes take the same place.
    pub fn database_or_new(&self, oid: pg_sys::Oid) -> Option<&Database> {
        self.database(oid).or_else(|| {
            let free = self.databases.0.iter().find(|d| d.oid.load(Ordering::Acquire) == 0)?;
            free.oid.store(oid.to_u32(), Ordering::Release);
            Some(free)
        })
    }

    /// Tells the launcher that the database `oid` now has the extension.
    pub fn announce_created(&self, oid: pg_sys::Oid) {
        let free = |place: &&AtomicU32| {
            place.compare_exchange(0, oid.to_u32(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if self.created.iter().find(free).is_none() {
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

impl Database {
    /// Gives the place back. The launcher calls it for a database that is gone.
    pub fn forget(&self) {
        self.next_lease.take();
        self.next_lane.take();
        self.next_run.take();
        self.pushed.take();
        self.keep_out_until.store(0, Ordering::SeqCst);
        self.counters.clear();
        self.tokens.clear();
        self.oid.store(0, Ordering::Release);
    }

    /// For how many microseconds the worker is still to stay away.
    pub fn kept_out(&self, moment: i64) -> i64 {
        match self.keep_out_until.load(Ordering::SeqCst) {
            // Much further away than any session asks for: the clock was put back. Twice, since `moment` may be from before.
            until if (1..=2 * KEEP_OUT_MICROSECONDS).contains(&(until - moment)) => until - moment,
            _ => 0,
        }
    }

    /// Tells the worker of a lease that ends at `time`.
    pub fn lease_until(&self, time: i64) {
        self.next_lease.lower(time);
        self.worker.wake_if_later(time);
    }

    /// Tells the worker that something is to be done in a lane at `time`.
    pub fn lane_time(&self, time: i64) {
        self.next_lane.lower(time);
        self.worker.wake_if_later(time);
    }

    /// Tells the worker of a task that comes due at `time`.
    pub fn run_at(&self, time: i64) {
        self.next_run.lower(time);
        self.worker.wake_if_later(time);
    }

    /// Tells the worker that the queues in `queues` have something to claim.
    pub fn pushed(&self, queues: &QueueBits) {
        if self.pushed.insert(queues) {
            self.worker.wake();
        }
    }
}

/// A process that sleeps until a certain time, and may be woken earlier.
#[derive(Default)]
pub struct Sleeper {
    pid: AtomicI32,
    latch: AtomicUsize,
    wakes_at: AtomicI64,
}

impl Sleeper {
    /// Puts the calling process here.
    pub fn enter(&self) {
        // SAFETY: MyLatch is this process's own latch in shared memory, set up before its main
        // function runs.
        self.latch.store(unsafe { pg_sys::MyLatch } as usize, Ordering::Release);
        // SAFETY: a plain read of a constant of the process.
        self.pid.store(unsafe { pg_sys::MyProcPid }, Ordering::Release);
    }

    /// Puts the calling process here unless another is; says whether it could.
    pub fn try_enter(&self) -> bool {
        // SAFETY: a plain read of a constant of the process.
        let me = unsafe { pg_sys::MyProcPid };
        let free = self.pid.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if free {
            self.enter();
        }
        free
    }

    /// Takes the process out again.
    pub fn leave(&self) {
        self.latch.store(0, Ordering::Release);
        self.pid.store(0, Ordering::Release);
    }

    /// The process, 0 if there is none.
    pub fn pid(&self) -> i32 {
        self.pid.load(Ordering::Acquire)
    }

    /// When the process means to wake by itself.
    pub fn wakes_at(&self) -> i64 {
        self.wakes_at.load(Ordering::Acquire)
    }

    /// Says when the process means to wake by itself.
    pub fn sleep_until(&self, time: i64) {
        self.wakes_at.store(time, Ordering::SeqCst);
    }

    /// Wakes the process if it would sleep beyond `time`.
    pub fn wake_if_later(&self, time: i64) {
        if self.wakes_at.load(Ordering::SeqCst) > time {
            self.wake();
        }
    }

    /// Wakes the process.
    pub fn wake(&self) {
        let latch = self.latch.load(Ordering::Acquire) as *mut pg_sys::Latch;
        if !latch.is_null() {
            // SAFETY: latches live in shared memory as long as the server runs, at the same
            // address in every process. At worst the process has left and its successor in the
            // same slot wakes for nothing, which every latch user must expect.
            unsafe { pg_sys::SetLatch(latch) };
        }
    }
}

/// How many sessions can wait for the end of a task and be woken by it; more look by themselves. A role has at most as
/// many places as are left for others.
const RESULT_WAITERS: usize = 512;

/// Whether a process that wanted to wait has a place in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It has one now.
    New,
    /// It had one before.
    Before,
    /// There is no room.
    None,
}

/// Sessions that wait for the end of a task.
pub struct ResultWaiters {
    count: AtomicUsize,
    places: [ResultWaiter; RESULT_WAITERS],
}

#[derive(Default)]
struct ResultWaiter {
    pid: AtomicI32,
    role: AtomicU32,
    database: AtomicU32,
    task: AtomicI64,
    latch: AtomicUsize,
}

impl Default for ResultWaiters {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), places: std::array::from_fn(|_| ResultWaiter::default()) }
    }
}

impl ResultWaiters {
    /// Puts the calling process here, unless it is, to be woken when the task of this database ends.
    pub fn enter(&self, task: i64) -> Place {
        // SAFETY: plain reads of what belongs to this process.
        let (me, database, latch) =
            unsafe { (pg_sys::MyProcPid, pg_sys::MyDatabaseId.to_u32(), pg_sys::MyLatch as usize) };
        if self.places.iter().any(|place| place.pid.load(Ordering::SeqCst) == me) {
            return Place::Before;
        }
        let role = rights::caller().to_u32();
        let is_of_role = |place: &&ResultWaiter| {
            place.pid.load(Ordering::SeqCst) != 0 && place.role.load(Ordering::SeqCst) == role
        };
        if self.places.iter().filter(is_of_role).count() + self.count.load(Ordering::SeqCst) >= RESULT_WAITERS
        {
            return Place::None;
        }
        let free = |place: &&ResultWaiter| {
            place.pid.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(place) = self.places.iter().find(free) else { return Place::None };
        place.role.store(role, Ordering::SeqCst);
        place.database.store(database, Ordering::SeqCst);
        place.latch.store(latch, Ordering::SeqCst);
        place.task.store(task, Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::SeqCst);
        Place::New
    }

    /// Takes the calling process out, if it is here.
    pub fn leave(&self) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        // SAFETY: a plain read of a constant of the process.
        let me = unsafe { pg_sys::MyProcPid };
        for place in self.places.iter().filter(|place| place.pid.load(Ordering::SeqCst) == me) {
            place.task.store(0, Ordering::SeqCst);
            place.latch.store(0, Ordering::SeqCst);
            self.count.fetch_sub(1, Ordering::SeqCst);
            place.pid.store(0, Ordering::SeqCst);
        }
    }

    /// Whether nobody is here.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Wakes those who wait for the end of this task of this database.
    pub fn wake(&self, database: u32, task: i64) {
        for place in self.places.iter().filter(|place| place.task.load(Ordering::SeqCst) == task) {
            let latch = place.latch.load(Ordering::SeqCst) as *mut pg_sys::Latch;
            if place.database.load(Ordering::SeqCst) == database && !latch.is_null() {
                // SAFETY: as in `Sleeper::wake`.
                unsafe { pg_sys::SetLatch(latch) };
            }
        }
    }
}

/// The earliest of the times it was told.
pub struct Earliest(AtomicI64);

impl Default for Earliest {
    fn default() -> Self {
        Self(AtomicI64::new(NEVER))
    }
}

impl Earliest {
    /// Tells it of a time.
    pub fn lower(&self, time: i64) {
        self.0.fetch_min(time, Ordering::SeqCst);
    }

    /// The earliest time.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    /// The earliest time, forgotten from now on.
    pub fn take(&self) -> i64 {
        self.0.swap(NEVER, Ordering::SeqCst)
    }
}

/// A set of queues as bits chosen by a hash of their names. Two queues may share a bit: a set
/// can name a queue too many, never one too few.
pub type QueueBits = [u64; QUEUE_BITS / 64];

/// The bit of the queue `name`.
pub fn queue_bit(name: &[u8]) -> usize {
    // Without random keys: every process must find the same bit.
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    (hasher.finish() % QUEUE_BITS as u64) as usize
}

/// Adds a bit to a set of queues.
pub fn set_bit(bits: &mut QueueBits, bit: usize) {
    bits[bit / 64] |= 1 << (bit % 64);
}

/// Whether a set of queues has the bit of the queue `name`.
pub fn contains(bits: &QueueBits, name: &[u8]) -> bool {
    let bit = queue_bit(name);
    bits[bit / 64] & (1 << (bit % 64)) != 0
}

/// A set of queues in shared memory.
#[derive(Default)]
pub struct QueueSet([AtomicU64; QUEUE_BITS / 64]);

impl QueueSet {
    /// Adds queues; says whether any of them was new.
    pub fn insert(&self, bits: &QueueBits) -> bool {
        let words = self.0.iter().zip(bits).filter(|(_, bits)| **bits != 0);
        words.fold(false, |new, (word, bits)| new | (word.fetch_or(*bits, Ordering::SeqCst) & bits != *bits))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::SeqCst) == 0)
    }

    /// The queues, forgotten from now on.
    pub fn take(&self) -> QueueBits {
        std::array::from_fn(|i| self.0[i].swap(0, Ordering::SeqCst))
    }
}
