//! The rules that the extension relies on. Each is a switch: the checker has to find what breaks when it is off.

/// One rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    /// A completion is accepted only with the token of the current lease.
    CompletionChecksToken,
    /// A claim hands out no token below the base, which is above all tokens that a lost claim can have handed out.
    TokensHaveBase,
    /// A claim is durable if its token is beyond what the mark covers, or if the base is not published yet.
    OtherClaimsAreDurable,
    /// The base is published after the mark that covers its tokens is durable.
    MarkBeforeBase,
    /// A transaction commits asynchronously only if it wrote nothing but leases.
    OnlyLeasesCommitAsynchronously,
    /// A claim treats a candidate as a hint and checks the row.
    ClaimChecksRow,
    /// A transaction publishes to the lane only after its rows are visible to others.
    PublishAfterCommit,
    /// A claim that rolls back returns its candidates to the lane.
    RollbackReturnsCandidates,
    /// A lane that has to drop a candidate is no longer complete.
    FullLaneIsIncomplete,
    /// The native fast path serves READ COMMITTED only.
    NativeAtReadCommitted,
    /// If a transaction removed tasks, refilled the lane, and rolls back, the lane forgets what it knows.
    UndoneRefillIsForgotten,
    /// A refill does not cover what was published while it read the table.
    RefillNotesMissed,
    /// If a lease has expired before it is published, the lane has to read the table again.
    LateLeaseLowersLane,
    /// Withdrawing the admission of a task does not remove it from the lane. The claim that meets it drops it.
    WithdrawnStaysCandidate,
    /// After a crash a lane knows nothing.
    CrashClearsLane,
    /// A claim clears the hint that there may be events only if no commit has renewed the hint meanwhile.
    HintIsCompared,
    /// A push locks its live predecessors FOR KEY SHARE, and looks again if one is gone.
    PushLocksPredecessors,
    /// The end of a task finds all tasks that wait for it.
    EndSeesDependents,
    /// The end of a task records its outcome on the dependency rows.
    EndRecordsOutcome,
    /// An end that may not see all dependents, or finds one locked, keeps its outcome for the sweep.
    EndKeepsOutcome,
    /// A task that comes back from the dead letters leaves no outcome behind.
    RetryForgetsOutcome,
    /// The end of a task writes an event of its own, even if the dependent already has one.
    EndWritesOwnEvent,
    /// A predecessor that left no trace does not count as completed.
    GoneIsNotCompleted,
    /// Unblocking a task of a group writes an event for the group.
    UnblockNotifiesGroup,
    /// A transaction that admits tasks of a group keeps the group locked until it commits.
    GroupLockedToCommit,
    /// The end of a task locks its group before it looks for the next task, and to its commit even if there is none.
    HandOverLocksFirst,
    /// The admitted tasks of a group are counted in a later statement than the one that locks the group.
    CountAfterLock,
    /// Events are processed at READ COMMITTED only.
    EventsAtReadCommitted,
    /// An older task that comes back to its group takes the place of an admitted younger one that does not run yet.
    OlderTaskWithdrawsYounger,
    /// A claim takes a slot only in the version that it found free.
    SlotVersionChecked,
    /// A slot is free once its task no longer runs with the slot's token. Nothing is written to free it.
    SlotsFreeThemselves,
    /// A push into a batch locks the batch against its sealing.
    PushLocksBatch,
    /// The end of a member writes no event of its own only if it has locked one that is there.
    BatchEventIsLocked,
    /// A claim does not start a task whose start deadline has passed.
    ClaimChecksDeadline,
    /// It looks at the deadline again when it has waited for a slot.
    DeadlineIsCheckedAgain,
    /// A task that begins to wait for an event locks the event's row until it commits, and looks after that.
    AwaitLocksEvent,
    /// An emission looks for the tasks that wait in a later statement than the one that locks the event's row.
    EmitLooksAfterLock,
    /// A sweep finds what no event reports.
    Sweep,
}

/// How many there are.
pub const COUNT: u32 = Rule::Sweep as u32 + 1;

/// Which rules are on.
#[derive(Clone, Copy, Debug)]
pub struct Rules(u64);

impl Rules {
    /// All of them.
    pub const ALL: Self = Self(u64::MAX);

    /// All but these.
    pub const fn without(rules: &[Rule]) -> Self {
        let (mut bits, mut next) = (u64::MAX, 0);
        while next < rules.len() {
            bits &= !(1 << rules[next] as u64);
            next += 1;
        }
        Self(bits)
    }

    /// Whether the rule is on.
    pub fn has(self, rule: Rule) -> bool {
        self.0 & 1 << rule as u64 != 0
    }
}
