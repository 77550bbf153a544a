//! The processes that run handlers, each with a slot.
//!
//! The worker of a database takes a slot and starts a process for it, which frees the slot when it exits. Other sessions
//! use the slots to interrupt a process.

use super::sleeper::Sleeper;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU32, Ordering};

/// The largest number of processes with handlers on a server, in all databases.
const MOST: usize = 128;
/// The longest name of a queue.
const NAME: usize = 128;

/// A process that runs a handler.
pub struct Handler {
    /// The database, 0 if the slot is free.
    database: AtomicU32,
    /// Which use of the slot this is, or the next one if it is free.
    generation: AtomicU32,
    /// The worker that takes the slot.
    manager: AtomicI32,
    role: AtomicU32,
    function: AtomicU32,
    queue: [AtomicU8; NAME],
    length: AtomicU32,
    /// The latch of the process.
    pub process: Sleeper,
    /// The process is to exit after its current task.
    stop: AtomicBool,
    /// The task that it handles, 0 if none.
    task: AtomicI64,
    /// The task whose handling was interrupted, 0 if none.
    interrupted: AtomicI64,
}

impl Default for Handler {
    fn default() -> Self {
        Self {
            database: AtomicU32::default(),
            generation: AtomicU32::default(),
            manager: AtomicI32::default(),
            role: AtomicU32::default(),
            function: AtomicU32::default(),
            queue: std::array::from_fn(|_| AtomicU8::default()),
            length: AtomicU32::default(),
            process: Sleeper::default(),
            stop: AtomicBool::default(),
            task: AtomicI64::default(),
            interrupted: AtomicI64::default(),
        }
    }
}

/// All of them.
pub struct Handlers([Handler; MOST]);

impl Default for Handlers {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Handler::default()))
    }
}

/// A use of a slot. Fits into the argument of a background worker.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Use {
    slot: u32,
    generation: u32,
}

impl From<Use> for pg_sys::Datum {
    fn from(taken: Use) -> Self {
        Self::from(u64::from(taken.generation) << 32 | u64::from(taken.slot))
    }
}

impl From<pg_sys::Datum> for Use {
    fn from(argument: pg_sys::Datum) -> Self {
        let bits = argument.value() as u64;
        Self { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

impl Handlers {
    /// Takes a slot for a process that the calling worker is going to start; none if all are taken.
    pub fn take(
        &self,
        database: pg_sys::Oid,
        queue: &[u8],
        role: pg_sys::Oid,
        function: pg_sys::Oid,
    ) -> Option<Use> {
        let takes = |handler: &Handler| {
            let database = database.to_u32();
            handler.database.compare_exchange(0, database, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let slot = self.0.iter().position(takes)?;
        let handler = &self.0[slot];
        // SAFETY: a plain read of a constant of the process.
        handler.manager.store(unsafe { pg_sys::MyProcPid }, Ordering::SeqCst);
        handler.role.store(role.to_u32(), Ordering::SeqCst);
        handler.function.store(function.to_u32(), Ordering::SeqCst);
        handler.queue.iter().zip(queue).for_each(|(place, byte)| place.store(*byte, Ordering::SeqCst));
        handler.length.store(queue.len().min(NAME) as u32, Ordering::SeqCst);
        handler.stop.store(false, Ordering::SeqCst);
        handler.task.store(0, Ordering::SeqCst);
        handler.interrupted.store(0, Ordering::SeqCst);
        Some(Use { slot: slot as u32, generation: handler.generation.load(Ordering::SeqCst) })
    }

    /// The slot, unless it was freed in the meantime, and perhaps taken again.
    pub fn get(&self, taken: Use) -> Option<&Handler> {
        let handler = self.0.get(taken.slot as usize)?;
        let same = handler.generation.load(Ordering::SeqCst) == taken.generation
            && handler.database.load(Ordering::SeqCst) != 0;
        same.then_some(handler)
    }

    /// The slots of a database.
    pub fn of(&self, database: pg_sys::Oid) -> impl Iterator<Item = &Handler> {
        let database = database.to_u32();
        self.0.iter().filter(move |handler| handler.database.load(Ordering::SeqCst) == database)
    }

    /// Wakes the processes of a database, which check whether they have to exit.
    pub fn wake(&self, database: pg_sys::Oid) {
        self.of(database).for_each(|handler| handler.process.wake());
    }

    /// The slot whose process handles a task.
    pub fn handling(&self, database: pg_sys::Oid, task: i64) -> Option<&Handler> {
        self.of(database).find(|handler| handler.task.load(Ordering::SeqCst) == task)
    }
}

impl Handler {
    pub fn database(&self) -> pg_sys::Oid {
        self.database.load(Ordering::SeqCst).into()
    }

    pub fn role(&self) -> pg_sys::Oid {
        self.role.load(Ordering::SeqCst).into()
    }

    pub fn function(&self) -> pg_sys::Oid {
        self.function.load(Ordering::SeqCst).into()
    }

    pub fn queue(&self) -> Vec<u8> {
        let length = self.length.load(Ordering::SeqCst) as usize;
        self.queue[..length].iter().map(|byte| byte.load(Ordering::SeqCst)).collect()
    }

    /// The process id of the worker that started the process.
    pub fn manager(&self) -> i32 {
        self.manager.load(Ordering::SeqCst)
    }

    /// Frees the slot. From then on, [`Handlers::get`] does not find this use of it, even while another worker takes the slot.
    pub fn free(&self) {
        self.process.leave();
        self.task.store(0, Ordering::SeqCst);
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.database.store(0, Ordering::SeqCst);
    }

    /// Makes the process exit after its current task.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.process.wake();
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Sets the task that the process handles, 0 for none. Before the claim commits, so that a session that sees the
    /// task running finds the process.
    pub fn set_task(&self, task: i64) {
        self.interrupted.store(0, Ordering::SeqCst);
        self.task.store(task, Ordering::SeqCst);
    }

    /// Interrupts the handling of the current task, once, or wakes a process that sleeps. Also in a commit callback.
    pub fn interrupt(&self) {
        let task = self.task.load(Ordering::SeqCst);
        if task != 0 && self.interrupted.swap(task, Ordering::SeqCst) != task {
            let pid = self.process.pid();
            if pid != 0 {
                // SAFETY: the process frees its slot before it exits, so this signal can reach another process only as
                // one of pg_cancel_backend can. It does the same: the signal cancels the current statement.
                unsafe { kill(pid, SIGINT) };
            }
        }
        self.process.wake();
    }

    /// Whether the handling of the task was interrupted.
    pub fn is_interrupted(&self, task: i64) -> bool {
        self.interrupted.load(Ordering::SeqCst) == task
    }
}

const SIGINT: i32 = pg_sys::SIGINT as i32;

unsafe extern "C" {
    fn kill(pid: i32, signal: i32) -> i32;
}
