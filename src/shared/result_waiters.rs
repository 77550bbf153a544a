//! The sessions that wait for the end of a task.

use crate::rights;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicUsize, Ordering};

/// How many sessions the end of a task can wake; others check by themselves. A role has at most as many slots as remain
/// for other roles.
const RESULT_WAITERS: usize = 512;

/// Whether a process that wants to wait is in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It has been added.
    New,
    /// It was in the list before.
    Before,
    /// The list is full.
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
    /// Adds the calling process, unless it is here, to be woken when the task of this database ends.
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

    /// Removes the calling process, if it is here.
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

    /// Whether no session is here.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Wakes the sessions that wait for the end of this task of this database.
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
