//! The names of the sessions that wait for a task, for `queue.workers`. Which queues they wait for is in the lanes.

use pgrx::prelude::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

/// How many sessions can be named; others wait without a name.
const ROOM: usize = 512;

/// The longest name of a worker, in bytes.
const NAME: usize = 128;

thread_local! {
    /// The index of this process's entry.
    static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The sessions of the server that wait in `queue.wait` or `queue.take`.
pub struct IdleWorkers([Place; ROOM]);

#[derive(Default)]
struct Place {
    pid: AtomicI32,
    /// Not 0 if the other fields are complete.
    database: AtomicU32,
    since: AtomicI64,
    length: AtomicU32,
    name: [AtomicU64; NAME / 8],
}

/// A session that waits.
pub struct IdleWorker {
    pub pid: i32,
    /// The name of the worker.
    pub name: Option<Vec<u8>>,
    /// When its call began, in microseconds since 2000.
    pub since: i64,
}

impl Default for IdleWorkers {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Place::default()))
    }
}

impl IdleWorkers {
    /// Adds the calling process, unless it has an entry or no entry is free. The name is in the encoding of the database.
    pub fn enter(&self, name: Option<&[u8]>, since: i64) {
        // SAFETY: plain reads of what belongs to this process.
        let (me, database) = unsafe { (pg_sys::MyProcPid, pg_sys::MyDatabaseId.to_u32()) };
        if PLACE.get().is_some() {
            return;
        }
        let is_free =
            |place: &Place| place.pid.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let Some(index) = self.0.iter().position(is_free) else { return };
        let place = &self.0[index];
        place.since.store(since, Ordering::SeqCst);
        // No name: a length beyond the longest one.
        place.length.store(name.map_or(u32::MAX, |name| name.len() as u32), Ordering::SeqCst);
        for (to, from) in place.name.iter().zip(name.unwrap_or_default().chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..from.len()].copy_from_slice(from);
            to.store(u64::from_ne_bytes(bytes), Ordering::SeqCst);
        }
        place.database.store(database, Ordering::SeqCst);
        PLACE.set(Some(index));
    }

    /// Removes the entry of the calling process, if it has one.
    pub fn leave(&self) {
        if let Some(index) = PLACE.take() {
            self.0[index].database.store(0, Ordering::SeqCst);
            self.0[index].pid.store(0, Ordering::SeqCst);
        }
    }

    /// The sessions of this database.
    pub fn list(&self) -> Vec<IdleWorker> {
        // SAFETY: a plain read of a constant of the process.
        let database = unsafe { pg_sys::MyDatabaseId }.to_u32();
        self.0.iter().filter_map(|place| place.read(database)).collect()
    }
}

impl Place {
    /// Its session, if there is one of that database.
    fn read(&self, database: u32) -> Option<IdleWorker> {
        let is_here = || self.database.load(Ordering::SeqCst) == database;
        let pid = is_here().then(|| self.pid.load(Ordering::SeqCst))?;
        let since = self.since.load(Ordering::SeqCst);
        let length = self.length.load(Ordering::SeqCst) as usize;
        let name = (length <= NAME).then(|| {
            let bytes = self.name.iter().flat_map(|part| part.load(Ordering::SeqCst).to_ne_bytes());
            bytes.take(length).collect()
        });
        // Otherwise the read may have mixed two versions of the entry.
        let is_same =
            is_here() && self.pid.load(Ordering::SeqCst) == pid && self.since.load(Ordering::SeqCst) == since;
        is_same.then_some(IdleWorker { pid, name, since })
    }
}
