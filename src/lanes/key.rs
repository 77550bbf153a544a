//! The order of the tasks of a queue, and how many of them a lane knows.

/// How many tasks the ready buffer holds.
pub const READY: usize = 1024;
/// How many scheduled tasks a lane knows, and tasks that were locked and are tried again later.
pub const SCHEDULED: usize = 256;
/// How many running tasks a lane knows.
pub const LEASES: usize = 2048;

/// The position of a task in the order of its queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Smaller is earlier.
    pub priority: i32,
    /// Then by time, in microseconds since 2000.
    pub run_at: i64,
    /// Then by id.
    pub id: i64,
}

impl Key {
    /// Before every task.
    pub const FIRST: Self = Self { priority: i32::MIN, run_at: i64::MIN, id: i64::MIN };
    /// After every task.
    pub const LAST: Self = Self { priority: i32::MAX, run_at: i64::MAX, id: i64::MAX };
}

/// A task that becomes due at `at`, and is ready from then on.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scheduled {
    /// Its run_at; or later, if it was locked when a session tried to claim it.
    pub at: i64,
    /// Its position in the order.
    pub key: Key,
}
