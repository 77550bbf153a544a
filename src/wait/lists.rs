//! The lists of waiting sessions, which other sessions wake.

use super::call::Kind;
use crate::clock::now;
use crate::heap::{self, Use};
use crate::lanes::{self, Queue, Wake};
use crate::names::elements;
use crate::shared::{self, NEVER, Place};
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    /// The lanes in whose lists this process is.
    static LISTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// Whether it is checking whether it can go on.
    static CHECKING: Cell<bool> = const { Cell::new(false) };
}

/// This process begins or ends a check.
pub fn checking(begins: bool) {
    CHECKING.set(begins);
}

/// In which lists a waiting process is.
pub struct Standing {
    /// In a list in which it was not before.
    pub new: bool,
    /// In all lists in which it should be.
    pub everywhere: bool,
}

impl From<Place> for Standing {
    fn from(place: Place) -> Self {
        Self { new: place == Place::New, everywhere: place != Place::None }
    }
}

/// Enters the lists of the sessions that wait for the same task or queues.
pub unsafe fn enter(kind: Kind, subject: pg_sys::Datum) -> Standing {
    leave_in_any_case();
    // SAFETY: the arguments were checked.
    unsafe {
        if kind == Kind::Result {
            let place = shared::get().map(|shared| shared.results.enter(subject.value() as i64));
            return place.map_or(Standing { new: false, everywhere: false }, Standing::from);
        }
        let mut standing = Standing { new: false, everywhere: true };
        let tables = if lanes::available() { heap::open(Use::Claim).ok() } else { None };
        let Some(tables) = tables else { return Standing { everywhere: false, ..standing } };
        for name in elements(subject) {
            let queue = Queue::new(tables.tasks, name);
            let place = lanes::with_or_new(&queue, |slot| slot.waiters.enter()).unwrap_or(Place::None);
            if place == Place::New {
                expect(&queue);
                LISTS.with_borrow_mut(|lists| {
                    if !lists.contains(&queue.hash()) {
                        lists.push(queue.hash());
                    }
                });
            }
            let Standing { new, everywhere } = Standing::from(place);
            standing = Standing { new: standing.new | new, everywhere: standing.everywhere & everywhere };
        }
        standing
    }
}

/// Shows this process, which is in the lists, in `queue.workers`.
pub fn show(worker: Option<&[u8]>, since: i64) {
    if let Some(shared) = shared::get() {
        shared.idle.enter(worker, since);
    }
}

/// Makes this process leave the lists when a transaction fails, and when the session is terminated while it sleeps
/// without a transaction.
fn leave_in_any_case() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the functions only touch shared memory, which is detached later; the library is never unloaded.
        unsafe {
            pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::from(0));
            pg_sys::RegisterXactCallback(Some(at_end_of_transaction), std::ptr::null_mut());
        }
    }
}

unsafe extern "C-unwind" fn at_exit(_code: i32, _argument: pg_sys::Datum) {
    leave_lists(false);
}

unsafe extern "C-unwind" fn at_end_of_transaction(
    event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    if event == pg_sys::XactEvent::XACT_EVENT_ABORT {
        leave_lists(false);
    }
}

/// Requests that the worker wakes the waiters of a lane when a task becomes due.
fn expect(queue: &Queue<'_>) {
    let next = lanes::with(queue.hash(), |slot| slot.next_time());
    // SAFETY: a plain read of a constant of the process.
    let database = shared::get().and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }));
    if let (Some(next), Some(database)) = (next, database) {
        database.lane_time(next);
    }
}

/// When this process has to check by itself because no worker will wake it: tasks become due, leases expire.
pub fn next_time() -> i64 {
    // SAFETY: a plain read of a constant of the process.
    let database = shared::get().and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }));
    if database.is_some_and(|database| database.worker.pid() != 0) {
        return NEVER;
    }
    let next = |hash: &u64| lanes::with(*hash, |slot| slot.next_time()).unwrap_or(NEVER);
    LISTS.with_borrow(|lists| lists.iter().map(next).min().unwrap_or(NEVER))
}

/// Whether another process has woken this one, or it is in no list.
pub fn is_woken() -> bool {
    let stands = |hash: &u64| lanes::with(*hash, |slot| slot.waiters.has_caller()) == Some(true);
    LISTS.with_borrow(|lists| lists.is_empty() || !lists.iter().all(stands))
}

/// Until when this process need not check by itself, because others have checked all of its queues within the interval;
/// none if it has to check now, for all that wait.
pub fn checked_until(interval: i64) -> Option<i64> {
    let moment = now();
    let until = |hash: &u64| lanes::with(*hash, |slot| slot.checked_until(moment, interval)).flatten();
    // Of all queues, also after one that nobody has checked, because this process is going to check them all.
    let until: Vec<_> = LISTS.with_borrow(|lists| lists.iter().map(until).collect());
    let first = until.into_iter().min().flatten()?.min(next_time());
    (first > moment).then_some(first)
}

/// Leaves all lists. `served` means that this process takes the task for which it was woken, and `unannounced` that it
/// found the task by itself.
#[pg_guard]
pub unsafe extern "C-unwind" fn leave(served: bool, unannounced: bool) {
    checking(false);
    if served && unannounced {
        let found = |hash: &u64| lanes::with(*hash, |slot| slot.found_unannounced());
        LISTS.with_borrow(|lists| lists.iter().for_each(|hash| drop(found(hash))));
    }
    leave_lists(served);
    point!(WaitLeft);
}

/// The same, also for the end of a transaction that failed.
pub fn leave_lists(served: bool) {
    if let Some(shared) = shared::get() {
        shared.results.leave();
        shared.idle.leave();
    }
    LISTS.with_borrow_mut(|lists| {
        // A session that waits for several queues may claim from any of them, even from one that has just got a task.
        // So the next waiter of each queue is woken instead, perhaps in vain.
        let takes = served && lists.len() == 1;
        // An error during the check, for example because the extension was dropped. The others may rely on this process.
        let failed = CHECKING.take();
        for hash in lists.drain(..) {
            let next = lanes::with(hash, |slot| {
                let next = slot.leave(takes);
                if failed { next.or_else(|| slot.has_not_checked()) } else { next }
            });
            next.flatten().into_iter().for_each(Wake::now);
        }
    });
}
