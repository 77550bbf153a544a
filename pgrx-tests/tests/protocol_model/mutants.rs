//! Each rule switched off, in a world in which that shows; and the faults that were found, as they were.

use super::rules::Rule::{self, *};
use super::scenario::Scenario;
use super::worlds::*;

/// Rules that are off, and the promise that this breaks.
pub struct Mutant {
    pub name: &'static str,
    pub off: &'static [Rule],
    pub world: Scenario,
    pub breaks: &'static str,
}

const fn mutant(name: &'static str, off: &'static [Rule], world: Scenario, breaks: &'static str) -> Mutant {
    Mutant { name, off, world, breaks }
}

const OFFERED: &str = "whatever is due is offered";
const WAITS: &str = "nothing waits for what has ended";
const TOKEN: &str = "no token of a task is handed out twice";
const STALE: &str = "a stale token is refused";
const COMPLETED: &str = "one completion of a task is accepted";
const LEASED: &str = "a task has one lease at a time";
const MISTAKEN: &str = "a cancelled predecessor is not taken for a completed one";
const WRONGLY: &str = "a completed predecessor is not taken for a cancelled one";
const RUNNING: &str = "no more tasks run than max_running";
const GROUPED: &str = "no more tasks of a group run than its limit";
const BLOCKED: &str = "a group with room has no blocked task";
const EARLY: &str = "no task runs before its predecessors ended";
const LATE: &str = "no task starts after its start deadline";
const ORDER: &str = "a group at limit 1 runs in the order of ids";

/// Whether a mutant has this rule off, and no other.
pub fn cover(rule: u32) -> bool {
    MUTANTS.iter().any(|mutant| matches!(mutant.off, [off] if *off as u32 == rule))
}

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    mutant("a completion does not check the token", &[CompletionChecksToken], LEASES, STALE),
    mutant("tokens begin again after a crash", &[TokensHaveBase], LEASES, TOKEN),
    mutant("a token beyond the mark is lost", &[OtherClaimsAreDurable], CRASHES, TOKEN),
    mutant("the base is published before its mark is durable", &[MarkBeforeBase], CRASHES, TOKEN),
    mutant("a completion commits asynchronously", &[OnlyLeasesCommitAsynchronously], LEASES, COMPLETED),
    mutant("a claim trusts the lane", &[ClaimChecksRow], MIXED, LEASED),
    mutant("published before the commit is visible", &[PublishAfterCommit], LANE, OFFERED),
    mutant("a claim that rolls back keeps its candidates", &[RollbackReturnsCandidates], LANE, OFFERED),
    mutant("a full lane stays complete", &[FullLaneIsIncomplete], LANE, OFFERED),
    mutant("the native claim at REPEATABLE READ", &[NativeAtReadCommitted], LANE_REPEATABLE, OFFERED),
    mutant("a refill that is undone counts", &[UndoneRefillIsForgotten], UNDONE, OFFERED),
    mutant("a refill covers what it did not read", &[RefillNotesMissed], LANE, OFFERED),
    mutant("a late lease hides its task", &[LateLeaseLowersLane], LEASES, OFFERED),
    mutant(
        "a withdrawal removes its task from the lane",
        &[WithdrawnStaysCandidate],
        GROUP_WITHDRAWN,
        OFFERED,
    ),
    mutant("a lane stays complete in a crash", &[CrashClearsLane], LANE, OFFERED),
    mutant("a claim clears a hint that it has not followed", &[HintIsCompared], NATIVE_DEPENDENTS, WAITS),
    mutant("the end records no outcome", &[EndRecordsOutcome], TWO, WAITS),
    mutant("an end that sees no dependent keeps no outcome", &[EndKeepsOutcome], END_REPEATABLE, WRONGLY),
    mutant("an outcome is kept when its task comes back", &[RetryForgetsOutcome], DEAD_AND_GONE, WRONGLY),
    mutant("gone means completed", &[GoneIsNotCompleted], BY_HAND, MISTAKEN),
    mutant("no event for the group of an unblocked task", &[UnblockNotifiesGroup], GROUP_DEPENDENT, BLOCKED),
    mutant("the lock on a group ends with the statement", &[GroupLockedToCommit], GROUP, GROUPED),
    mutant("a group is counted before it is locked", &[CountAfterLock], GROUP, GROUPED),
    mutant("events at REPEATABLE READ", &[EventsAtReadCommitted], GROUP_REPEATABLE, GROUPED),
    mutant("a slot is taken without a look at its version", &[SlotVersionChecked], LIMIT, RUNNING),
    mutant("a slot is freed twice", &[SlotsFreeThemselves], LIMIT, RUNNING),
    mutant("no sweep: dependents", &[Sweep], LOST_EVENTS, WAITS),
    mutant("no sweep: groups", &[Sweep], LOST_GROUP_EVENTS, BLOCKED),
    mutant("a push into a batch does not lock it", &[PushLocksBatch], GROWING_BATCH, EARLY),
    mutant("an event of a batch counts without a lock", &[BatchEventIsLocked], BATCH, WAITS),
    mutant("no sweep: batches", &[Sweep], GROWING_BATCH, WAITS),
    mutant("the end of a member records no outcome", &[EndRecordsOutcome], BATCH, WAITS),
    mutant("the end of a member does not see the batch", &[EndSeesDependents], BATCH, WAITS),
    mutant(
        "a deadline passes while a claim takes a slot",
        &[DeadlineIsCheckedAgain],
        DEADLINE_AND_LIMIT,
        LATE,
    ),
    mutant("a claim starts a task after its deadline", &[ClaimChecksDeadline], DEADLINE, LATE),
    mutant("a task looks for the event without a lock", &[AwaitLocksEvent], SUSPENDED, WAITS),
    mutant("an emission looks before it has the lock", &[EmitLooksAfterLock], SUSPENDED, WAITS),
    mutant("no sweep: suspended tasks", &[Sweep], SUSPENDED_NATIVE, WAITS),
    mutant("no sweep: an emission at REPEATABLE READ", &[Sweep], EMISSION_REPEATABLE, WAITS),
    // Faults as they were. These worlds have no sweep, which would find what an event has missed.
    mutant(
        "fault: a claim deletes the event that its own transaction wrote",
        &[PushLocksPredecessors],
        PUSH_AND_END,
        WAITS,
    ),
    mutant("fault: the event is processed while the predecessor ends", &[EndWritesOwnEvent], TWO, WAITS),
    mutant("fault: an end does not see the dependents", &[EndSeesDependents], CHAIN, WAITS),
    mutant("fault: a token is repeated after an asynchronous commit", &[TokensHaveBase], LEASES, TOKEN),
    mutant("fault: an end at REPEATABLE READ does not see the dependency", &[Sweep], END_REPEATABLE, WAITS),
    mutant(
        "fault: a purged predecessor counts as completed",
        &[PushLocksPredecessors, GoneIsNotCompleted],
        PURGE,
        MISTAKEN,
    ),
    mutant(
        "fault: so does a cancelled one without history",
        &[PushLocksPredecessors, GoneIsNotCompleted],
        CANCEL,
        MISTAKEN,
    ),
    mutant(
        "fault: an end that finds no next task leaves its group unlocked",
        &[HandOverLocksFirst],
        PUSH_INTO_GROUP,
        BLOCKED,
    ),
    mutant(
        "fault: a retried task comes after a younger one",
        &[OlderTaskWithdrawsYounger],
        GROUP_RETRY,
        ORDER,
    ),
];
