//! The lanes in shared memory, and their locks.

use super::prepared::{self, Prepared};
use super::slot::Slot;
use crate::settings;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TRANCHE: &std::ffi::CStr = c"queue_ext lane";

struct Directory {
    count: usize,
    locks: *mut pg_sys::LWLockPadded,
    /// The hash of each lane's queue, 0 for a free lane. Searched without a lock, and checked again under it.
    hashes: *const AtomicU64,
    /// The role that has taken each lane: see [`super::shares`]. Written under the lock for assigning lanes.
    takers: *const AtomicU64,
    slots: *mut Slot,
    /// Of prepared transactions.
    prepared: *mut Prepared,
    /// For each lane, the processes that wait for it to be refilled. Not in its slot: the server changes them at any
    /// time, and not under the lane's lock.
    refilled: *mut pg_sys::ConditionVariable,
    stamps: *const AtomicU64,
}

static mut DIRECTORY: Directory = Directory {
    count: 0,
    locks: std::ptr::null_mut(),
    hashes: std::ptr::null(),
    takers: std::ptr::null(),
    slots: std::ptr::null_mut(),
    prepared: std::ptr::null_mut(),
    refilled: std::ptr::null_mut(),
    stamps: std::ptr::null(),
};

static mut PREVIOUS_STARTUP: pg_sys::shmem_startup_hook_type = None;

#[cfg(not(feature = "pg14"))]
static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;

/// Requests the memory, while the postmaster preloads libraries.
pub fn request() {
    if settings::lanes() == 0 {
        return;
    }
    prepared::make_keys();
    // SAFETY: the postmaster is single-threaded, and no backend exists yet.
    unsafe {
        #[cfg(feature = "pg14")]
        reserve();
        #[cfg(not(feature = "pg14"))]
        {
            PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
            pg_sys::shmem_request_hook = Some(on_request);
        }
        PREVIOUS_STARTUP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(on_startup);
    }
}

/// Bytes: a number for stamps, the hashes, the takers, the slots, the prepared transactions, the condition variables.
fn size(count: usize) -> usize {
    let each = 2 * size_of::<AtomicU64>() + size_of::<Slot>() + size_of::<pg_sys::ConditionVariable>();
    size_of::<AtomicU64>() + each * count + size_of::<Prepared>() * prepared::entries()
}

// The parts follow each other in memory, in the order of `size`.
const _: () = assert!(align_of::<Slot>() == align_of::<AtomicU64>());
const _: () = assert!(align_of::<Prepared>() == align_of::<Slot>());
const _: () = assert!(align_of::<pg_sys::ConditionVariable>() <= align_of::<Slot>());

unsafe fn reserve() {
    // SAFETY: called in shmem_request_hook.
    unsafe {
        pg_sys::RequestAddinShmemSpace(size(settings::lanes()));
        // One for each lane, one for assigning them, and one for the prepared transactions.
        pg_sys::RequestNamedLWLockTranche(TRANCHE.as_ptr(), settings::lanes() as i32 + 2);
    }
}

#[cfg(not(feature = "pg14"))]
#[pg_guard]
unsafe extern "C-unwind" fn on_request() {
    // SAFETY: hooks are called in a chain.
    unsafe {
        if let Some(previous) = PREVIOUS_REQUEST {
            previous();
        }
        reserve();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_startup() {
    // SAFETY: the postmaster runs it before any backend exists, also after a crash; the memory has the size that was
    // requested, and starts on a cache line.
    unsafe {
        if let Some(previous) = PREVIOUS_STARTUP {
            previous();
        }
        let count = settings::lanes();
        let mut found = false;
        let memory =
            pg_sys::ShmemInitStruct(c"queue_ext lanes".as_ptr(), size(count), &mut found).cast::<u8>();
        let hashes = memory.add(size_of::<AtomicU64>()).cast::<AtomicU64>();
        let takers = hashes.add(count);
        let slots = takers.add(count).cast::<Slot>();
        let prepared = slots.add(count).cast::<Prepared>();
        let refilled = prepared.add(prepared::entries()).cast::<pg_sys::ConditionVariable>();
        if !found {
            std::ptr::write_bytes(memory, 0, size(count));
            for i in 0..count {
                pg_sys::ConditionVariableInit(refilled.add(i));
            }
        }
        DIRECTORY = Directory {
            count,
            locks: pg_sys::GetNamedLWLockTranche(TRANCHE.as_ptr()),
            hashes,
            takers,
            slots,
            prepared,
            refilled,
            stamps: memory.cast(),
        };
    }
}

fn directory() -> &'static Directory {
    // SAFETY: written once, in the postmaster, from which every process inherits it.
    unsafe { &*&raw const DIRECTORY }
}

/// Whether there are lanes.
pub fn available() -> bool {
    directory().count > 0
}

/// A new number, which was never returned before and is not 0.
pub fn stamp() -> u64 {
    // SAFETY: see `on_startup`; callers have found a lane.
    unsafe { (*directory().stamps).fetch_add(1, Ordering::Relaxed) + 1 }
}

pub fn hashes() -> &'static [AtomicU64] {
    let directory = directory();
    if directory.count == 0 {
        return &[];
    }
    // SAFETY: see `on_startup`.
    unsafe { std::slice::from_raw_parts(directory.hashes, directory.count) }
}

/// The role that has taken each lane.
pub fn takers() -> &'static [AtomicU64] {
    let directory = directory();
    if directory.count == 0 {
        return &[];
    }
    // SAFETY: see `on_startup`.
    unsafe { std::slice::from_raw_parts(directory.takers, directory.count) }
}

/// Runs `act` with the lane of this number, locked. It must not raise, panic or call the server.
pub fn locked<R>(index: usize, act: impl FnOnce(&mut Slot) -> R) -> R {
    // SAFETY: the index is below `count`, and the lock makes the reference the only one.
    alone(index, || act(unsafe { &mut *directory().slots.add(index) }))
}

/// Runs `act` with the lane of the queue with this hash; none if it has no lane.
pub fn with<R>(hash: u64, act: impl FnOnce(&mut Slot) -> R) -> Option<R> {
    let index = hashes().iter().position(|place| place.load(Ordering::Acquire) == hash)?;
    locked(index, |slot| (slot.hash == hash).then(|| act(slot)))
}

/// Runs `act` with the prepared transactions, locked; none if there are no lanes. It must not raise, panic or call the
/// server.
pub fn with_prepared<R>(act: impl FnOnce(&mut [Prepared]) -> R) -> Option<R> {
    let directory = directory();
    // SAFETY: see `on_startup`, and the lock makes the reference the only one.
    let all = || unsafe { std::slice::from_raw_parts_mut(directory.prepared, prepared::entries()) };
    (directory.count > 0).then(|| alone(directory.count + 1, || act(all())))
}

/// Runs `act` while this process has the lock of this number.
pub fn alone<R>(index: usize, act: impl FnOnce() -> R) -> R {
    // SAFETY: there are `count` locks and two more. An LWLock can be taken anywhere, in commit callbacks
    // too, and is released by the server itself after an ERROR.
    unsafe {
        let lock = &raw mut (*directory().locks.add(index)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let result = act();
        pg_sys::LWLockRelease(lock);
        result
    }
}

/// Waits until another process has refilled the lane with this hash; returns whether it has. Can be interrupted.
///
/// That process may itself wait for a lock that this session holds, and the deadlock detector does not know of this
/// wait. So it ends after deadlock_timeout.
pub fn await_refill(hash: u64) -> bool {
    let Some(index) = hashes().iter().position(|place| place.load(Ordering::Acquire) == hash) else {
        return true;
    };
    let started = Instant::now();
    // SAFETY: the condition variable is in shared memory and was initialized in `on_startup`; after an ERROR,
    // transaction abort cancels the sleep. The setting is a variable of this process.
    unsafe {
        let limit = Duration::from_millis(u64::from(pg_sys::DeadlockTimeout.unsigned_abs()));
        let refilled = directory().refilled.add(index);
        pg_sys::ConditionVariablePrepareToSleep(refilled);
        let done = loop {
            // The lane may have been assigned to another queue meanwhile.
            if !with(hash, |slot| slot.lane.refiller() != 0).unwrap_or(false) {
                break true;
            }
            let left = limit.saturating_sub(started.elapsed()).as_millis();
            if left == 0 {
                break false;
            }
            let left = left.min(1000) as std::ffi::c_long;
            pg_sys::ConditionVariableTimedSleep(refilled, left, pg_sys::PG_WAIT_EXTENSION);
        };
        pg_sys::ConditionVariableCancelSleep();
        done
    }
}

/// Wakes the processes that wait for a refill of the lane with this hash.
pub fn announce_refill(hash: u64) {
    if let Some(index) = hashes().iter().position(|place| place.load(Ordering::Acquire) == hash) {
        // SAFETY: as in `await_refill`; only sets latches.
        unsafe { pg_sys::ConditionVariableBroadcast(directory().refilled.add(index)) };
    }
}
