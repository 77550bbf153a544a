//! Why a call falls back from the native fast path to the SQL implementation.

/// Why a call fell back to SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// `queue.fast_path` is off.
    Off,
    /// The library was not preloaded.
    NotLoaded,
    /// A table is missing.
    Absent,
    /// The tables keep changing, or another session takes long to refill the lane.
    Busy,
    /// Not READ COMMITTED, or read only, or in recovery, or replicating.
    Transaction,
    /// An argument that only SQL can check.
    Argument,
    /// A policy: a key, a group, a limit, a predecessor.
    Policy,
    /// The queue is unknown or paused.
    Queue,
    /// All lanes are taken.
    NoLane,
    /// Events have to be processed first.
    Events,
    /// This transaction has pushed or requeued tasks, or this statement has changed one.
    OwnTasks,
    /// A lease has expired.
    Expired,
    /// The task does not run with this token.
    Lease,
    /// A trigger, rule, constraint, column, index or argument that the library does not know, of a user or of another
    /// version.
    Altered,
    /// Row-level security holds for the user.
    RowSecurity,
    /// The caller does not have the right that the verb needs for the queue.
    Rights,
    /// The history has no partition for this time, or one that the native fast path cannot write to.
    Partition,
}

impl Reason {
    /// All of them, in order.
    pub const ALL: [Self; REASONS] = [
        Self::Off,
        Self::NotLoaded,
        Self::Absent,
        Self::Busy,
        Self::Transaction,
        Self::Argument,
        Self::Policy,
        Self::Queue,
        Self::NoLane,
        Self::Events,
        Self::OwnTasks,
        Self::Expired,
        Self::Lease,
        Self::Altered,
        Self::RowSecurity,
        Self::Rights,
        Self::Partition,
    ];
}

/// How many reasons there are.
pub const REASONS: usize = Reason::Partition as usize + 1;
