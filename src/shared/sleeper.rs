//! A process that sleeps on its latch, and how others wake it.

use pgrx::prelude::*;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicUsize, Ordering};

/// A process that sleeps until a certain time, and may be woken earlier.
#[derive(Default)]
pub struct Sleeper {
    pid: AtomicI32,
    latch: AtomicUsize,
    wakes_at: AtomicI64,
}

impl Sleeper {
    /// Registers the calling process.
    pub fn enter(&self) {
        // SAFETY: MyLatch is this process's own latch in shared memory, set up before its main
        // function runs.
        self.latch.store(unsafe { pg_sys::MyLatch } as usize, Ordering::Release);
        // SAFETY: a plain read of a constant of the process.
        self.pid.store(unsafe { pg_sys::MyProcPid }, Ordering::Release);
    }

    /// Registers the calling process unless another one is registered; returns whether it could.
    pub fn try_enter(&self) -> bool {
        // SAFETY: a plain read of a constant of the process.
        let me = unsafe { pg_sys::MyProcPid };
        let free = self.pid.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if free {
            self.enter();
        }
        free
    }

    /// Removes the process.
    pub fn leave(&self) {
        self.latch.store(0, Ordering::Release);
        self.pid.store(0, Ordering::Release);
    }

    /// The process, 0 if there is none.
    pub fn pid(&self) -> i32 {
        self.pid.load(Ordering::Acquire)
    }

    /// When the process wakes by itself.
    pub fn wakes_at(&self) -> i64 {
        self.wakes_at.load(Ordering::Acquire)
    }

    /// Sets when the process wakes by itself.
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
            // SAFETY: latches are in shared memory as long as the server runs, at the same address in every process. If
            // the process has exited, a new process with its PGPROC wakes spuriously, which every user of a latch must
            // expect.
            unsafe { pg_sys::SetLatch(latch) };
        }
    }
}
