//! The sessions that wait for a task of one queue, the longest waiting first.

use crate::shared::Place;
use pgrx::prelude::*;

/// How many a lane can have. Further sessions check again by themselves from time to time.
const ROOM: usize = 512;

/// A waiting process.
#[repr(C)]
#[derive(Clone, Copy)]
struct Waiter {
    pid: i32,
    latch: usize,
}

/// A ring of waiting processes.
#[repr(C)]
pub struct Waiters {
    start: usize,
    len: usize,
    ring: [Waiter; ROOM],
}

/// A process to be woken after the lane's lock was released.
pub struct Wake(usize);

impl Wake {
    /// Wakes it.
    pub fn now(self) {
        // SAFETY: latches are in shared memory as long as the server runs, at the same address in every process. If the
        // process has exited, a new process with its PGPROC wakes spuriously.
        unsafe { pg_sys::SetLatch(self.0 as *mut pg_sys::Latch) };
    }
}

impl Waiters {
    /// Removes all.
    pub fn clear(&mut self) {
        (self.start, self.len) = (0, 0);
    }

    /// Whether no process waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The processes, and how many they are.
    pub fn pids(&self) -> ([i32; ROOM], usize) {
        (std::array::from_fn(|i| self.ring[(self.start + i) % ROOM].pid), self.len)
    }

    /// The place of the calling process.
    fn place(&self) -> Option<usize> {
        // SAFETY: a plain read of a constant of the process.
        let me = unsafe { pg_sys::MyProcPid };
        (0..self.len).find(|i| self.ring[(self.start + i) % ROOM].pid == me)
    }

    /// Whether the calling process waits, so that no other one has removed it in order to wake it.
    pub fn has_caller(&self) -> bool {
        self.place().is_some()
    }

    /// Adds the calling process at the end, unless it is in the list.
    pub fn enter(&mut self) -> Place {
        // SAFETY: plain reads of what belongs to this process.
        let (pid, latch) = unsafe { (pg_sys::MyProcPid, pg_sys::MyLatch as usize) };
        if self.has_caller() {
            return Place::Before;
        } else if self.len == ROOM {
            return Place::None;
        }
        self.ring[(self.start + self.len) % ROOM] = Waiter { pid, latch };
        self.len += 1;
        Place::New
    }

    /// Removes the calling process; false if another one has removed it in order to wake it.
    pub fn leave(&mut self) -> bool {
        let Some(place) = self.place() else { return false };
        for i in place + 1..self.len {
            self.ring[(self.start + i - 1) % ROOM] = self.ring[(self.start + i) % ROOM];
        }
        self.len -= 1;
        true
    }

    /// Removes and returns the process that has waited longest, which the caller has to wake.
    pub fn next(&mut self) -> Option<Wake> {
        if self.len == 0 {
            return None;
        }
        let waiter = self.ring[self.start];
        self.start = (self.start + 1) % ROOM;
        self.len -= 1;
        Some(Wake(waiter.latch))
    }
}
