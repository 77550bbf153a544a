//! Why a call of a verb falls back from its native form to its SQL implementation.

/// Why a call fell back to SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// `queue.fast_path` is off.
    Off,
    /// The library was not preloaded.
    NotLoaded,
    /// The tables are not all there.
    Absent,
    /// The tables keep changing, or another session is long at refilling the lane.
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
    /// This transaction itself pushed or put back tasks, or this statement changed one.
    OwnTasks,
    /// A lease ran out.
    Expired,
    /// The task does not run with this token.
    Lease,
    /// A trigger, rule, constraint, column, index or argument that the library does not know: a user's, or
    /// another version's.
    Altered,
    /// Row-level security holds for the user.
    RowSecurity,
    /// The caller does not have the right that the verb needs for the queue.
    Rights,
    /// There is no partition of the history for this time, or none that native verbs can write to.
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
