//! The small worlds that are searched to the end.

use super::scenario::Initial::{Absent, Admitted, Blocked, Callback, Dead, Member, Queued, Waiting};
use super::scenario::Statement::{
    Await, Cancel, Claim, Complete, Discard, Emit, Look, NativeClaim, Purge, Push, PushInto, Release,
    ReleaseSavepoint, Retry, RollBackTo, Save, Seal,
};
use super::scenario::{Scenario, Script, asynchronous, committed, repeatable};
use super::world::Faults;

const NONE: Faults = Scenario::PLAIN.faults;
const CLAIM: Script = committed(&[Claim]);
const NATIVE: Script = committed(&[NativeClaim]);
const COMPLETE: Script = committed(&[Complete]);
const AWAIT: Script = committed(&[Await]);
const SEAL: Script = committed(&[Seal]);
const EMIT: Script = committed(&[Emit]);
const WAIT_FOR_EVENT: &[Script] = &[CLAIM, AWAIT, COMPLETE, CLAIM, AWAIT, COMPLETE];
const WORK: &[Script] = &[CLAIM, COMPLETE];
const NATIVE_WORK: &[Script] = &[NATIVE, COMPLETE];

/// One task, two workers, leases that end, and a crash that may lose the last commits.
pub const LEASES: Scenario = Scenario {
    name: "leases",
    tasks: &[Queued],
    clients: &[NATIVE_WORK, NATIVE_WORK],
    lane: 1,
    faults: Faults { expiries: 1, crashes: 1, ..NONE },
    ..Scenario::PLAIN
};

/// The same in SQL, where every claim is durable and there is no base for tokens.
pub const DURABLE_LEASES: Scenario =
    Scenario { name: "durable leases", clients: &[WORK, WORK], lane: 0, durable_claims: true, ..LEASES };

/// A session that commits asynchronously, so that a crash may undo a completion that was acknowledged.
pub const LOST_ENDS: Scenario = Scenario {
    name: "leases, asynchronous commits",
    clients: &[&[asynchronous(&[NativeClaim]), asynchronous(&[Complete])], NATIVE_WORK],
    ..LEASES
};

/// Two tasks that come in while two workers claim, and a lane with room for one; transactions that roll back.
pub const LANE: Scenario = Scenario {
    name: "lane",
    tasks: &[Queued, Absent],
    clients: &[&[committed(&[Push(1, &[])])], NATIVE_WORK, &[NATIVE]],
    lane: 1,
    faults: Faults { rollbacks: 1, crashes: 1, ..NONE },
    ..Scenario::PLAIN
};

/// One task at REPEATABLE READ and one at READ COMMITTED.
pub const LANE_REPEATABLE: Scenario = Scenario {
    name: "lane, REPEATABLE READ",
    tasks: &[Queued, Absent],
    clients: &[&[committed(&[Push(1, &[])])], &[repeatable(&[Look, NativeClaim]), COMPLETE], NATIVE_WORK],
    lane: 2,
    ..Scenario::PLAIN
};

/// Claims on the native fast path and in SQL, side by side.
pub const MIXED: Scenario = Scenario {
    name: "native beside SQL",
    tasks: &[Queued, Queued],
    clients: &[&[NATIVE, COMPLETE, NATIVE], WORK, WORK],
    lane: 1,
    faults: Faults { rollbacks: 1, ..NONE },
    ..Scenario::PLAIN
};

/// A transaction that cancels a task, refills the lane and rolls back.
pub const UNDONE: Scenario = Scenario {
    name: "undone refill",
    tasks: &[Queued, Queued],
    clients: &[&[committed(&[Cancel(0), NativeClaim])], NATIVE_WORK],
    lane: 2,
    faults: Faults { rollbacks: 1, ..NONE },
    ..Scenario::PLAIN
};

/// Claims that are rolled back to a savepoint, beside those of others.
pub const SAVEPOINT: Scenario = Scenario {
    name: "savepoint",
    tasks: &[Queued, Queued],
    clients: &[&[committed(&[Cancel(0), Save, NativeClaim, RollBackTo(0), NativeClaim])], NATIVE_WORK],
    lane: 2,
    faults: Faults { rollbacks: 1, ..NONE },
    ..Scenario::PLAIN
};

/// Savepoints within others: one is rolled back twice, one is released, and then the one around them is rolled back.
pub const NESTED: Scenario = Scenario {
    name: "nested savepoints",
    tasks: &[Queued, Queued],
    clients: &[
        &[committed(&[
            Save,
            NativeClaim,
            Save,
            NativeClaim,
            RollBackTo(1),
            NativeClaim,
            RollBackTo(1),
            ReleaseSavepoint(1),
            RollBackTo(0),
            NativeClaim,
        ])],
        NATIVE_WORK,
    ],
    lane: 2,
    faults: Faults { rollbacks: 1, ..NONE },
    ..Scenario::PLAIN
};

/// The same in a group, where a claim also admits tasks.
pub const GROUP_SAVEPOINT: Scenario = Scenario {
    name: "group, savepoint",
    tasks: &[Blocked, Blocked],
    clients: &[&[committed(&[Save, Claim, RollBackTo(0), Claim])], WORK],
    group: &[0, 1],
    ..Scenario::PLAIN
};

/// A task is pushed that waits for one which ends at the same time. The transaction that pushes also claims.
pub const PUSH_AND_END: Scenario = Scenario {
    name: "push against end",
    tasks: &[Queued, Absent],
    clients: &[WORK, &[committed(&[Push(1, &[0]), Claim])]],
    ..Scenario::PLAIN
};

/// The same in a queue without history. The end is at REPEATABLE READ, and may not see who waits for it.
pub const END_REPEATABLE: Scenario = Scenario {
    name: "push against end, REPEATABLE READ",
    clients: &[&[CLAIM, repeatable(&[Look, Complete])], &[committed(&[Push(1, &[0])])]],
    keep_history: false,
    sweep: true,
    ..PUSH_AND_END
};

/// The predecessor is cancelled in a queue without history.
pub const CANCEL: Scenario = Scenario {
    name: "cancel without history",
    tasks: &[Queued, Absent],
    clients: &[&[committed(&[Look, Cancel(0)])], &[committed(&[Push(1, &[0])]), CLAIM]],
    keep_history: false,
    ..Scenario::PLAIN
};

/// The predecessor is purged.
pub const PURGE: Scenario = Scenario {
    name: "purge",
    clients: &[&[committed(&[Purge])], &[committed(&[Push(1, &[0])]), CLAIM]],
    keep_history: true,
    ..CANCEL
};

/// A task is pushed while both of its predecessors end, in a queue without history.
pub const TWO: Scenario = Scenario {
    name: "two predecessors",
    tasks: &[Queued, Queued, Absent],
    clients: &[WORK, WORK, &[committed(&[Push(2, &[0, 1])])]],
    keep_history: false,
    ..Scenario::PLAIN
};

/// A chain: a task that waits for a cancelled one is cancelled, and so is the task that waits for that one.
pub const CHAIN: Scenario = Scenario {
    name: "chain",
    tasks: &[Queued, Waiting(&[0]), Waiting(&[1]), Waiting(&[0])],
    clients: &[&[committed(&[Cancel(0)])], WORK],
    keep_history: false,
    ..Scenario::PLAIN
};

/// The native fast path beside dependents; without a worker the next claim has to learn of the events.
pub const NATIVE_DEPENDENTS: Scenario = Scenario {
    name: "dependents, native, without a worker",
    tasks: &[Queued, Waiting(&[0])],
    clients: &[NATIVE_WORK, NATIVE_WORK],
    lane: 1,
    worker: false,
    ..Scenario::PLAIN
};

/// A task goes to the dead letters and comes back, while another one waits for it.
pub const DEAD: Scenario = Scenario {
    name: "dead and back",
    tasks: &[Queued, Waiting(&[0])],
    clients: &[&[CLAIM, committed(&[Discard])], &[committed(&[Retry(0)]), CLAIM, COMPLETE]],
    ..Scenario::PLAIN
};

/// A task whose outcome was kept comes back and completes without a trace. Then a task is pushed that waits for it.
pub const DEAD_AND_GONE: Scenario = Scenario {
    name: "dead, back, and gone",
    tasks: &[Queued, Absent],
    clients: &[
        &[CLAIM, repeatable(&[Look, Discard])],
        &[committed(&[Retry(0)]), CLAIM, COMPLETE, committed(&[Push(1, &[0])])],
    ],
    keep_history: false,
    sweep: true,
    ..Scenario::PLAIN
};

/// Three tasks of a group at limit 1.
pub const GROUP: Scenario = Scenario {
    name: "group",
    tasks: &[Blocked, Blocked, Absent],
    clients: &[WORK, &[CLAIM, committed(&[Release])], &[committed(&[Push(2, &[])])]],
    group: &[0, 1, 2],
    ..Scenario::PLAIN
};

/// A push and its claim while the only task of the group ends. Nothing sweeps.
pub const PUSH_INTO_GROUP: Scenario = Scenario {
    name: "push into a group",
    tasks: &[Blocked, Absent],
    clients: &[WORK, &[CLAIM], &[committed(&[Push(1, &[])])]],
    group: &[0, 1],
    ..Scenario::PLAIN
};

/// A claim at REPEATABLE READ, while an older task comes back that its snapshot does not have.
pub const GROUP_REPEATABLE: Scenario = Scenario {
    name: "group, REPEATABLE READ",
    tasks: &[Dead, Blocked],
    clients: &[&[committed(&[Retry(0)]), CLAIM], &[repeatable(&[Look, Claim])]],
    group: &[0, 1],
    ..Scenario::PLAIN
};

/// An older task comes back from the dead letters while a younger one is admitted.
pub const GROUP_RETRY: Scenario = Scenario {
    name: "retry into a group",
    tasks: &[Dead, Admitted, Blocked],
    clients: &[&[committed(&[Retry(0)])], WORK],
    group: &[0, 1, 2],
    ..Scenario::PLAIN
};

/// The same with a lane, to which the withdrawal may be published after the task was admitted again.
pub const GROUP_WITHDRAWN: Scenario = Scenario {
    name: "withdrawal published late",
    tasks: &[Queued, Dead, Admitted],
    clients: &[&[committed(&[Retry(1)])], &[NATIVE, CLAIM, committed(&[Release]), COMPLETE], &[CLAIM]],
    group: &[1, 2],
    lane: 3,
    ..Scenario::PLAIN
};

/// A transaction that withdraws an admission, refills the lane and rolls back.
pub const GROUP_UNDONE: Scenario = Scenario {
    name: "undone withdrawal",
    tasks: &[Dead, Admitted],
    clients: &[&[committed(&[Retry(0)])], &[committed(&[Claim, NativeClaim])], NATIVE_WORK],
    group: &[0, 1],
    lane: 2,
    faults: Faults { rollbacks: 1, ..NONE },
    ..Scenario::PLAIN
};

/// A task is in a group and waits for one outside it. A younger one of the group is behind it.
pub const GROUP_DEPENDENT: Scenario = Scenario {
    name: "dependent in a group",
    tasks: &[Queued, Waiting(&[0]), Blocked],
    clients: &[WORK, &[CLAIM]],
    group: &[1, 2],
    ..Scenario::PLAIN
};

/// A task is suspended until an event that is emitted before, during or after that. Its lease may end.
pub const SUSPENDED: Scenario = Scenario {
    name: "suspended until an event",
    tasks: &[Queued],
    clients: &[WAIT_FOR_EVENT, &[EMIT], WAIT_FOR_EVENT],
    faults: Faults { expiries: 1, rollbacks: 1, ..NONE },
    ..Scenario::PLAIN
};

/// The same with a lane, and all events may be lost.
pub const SUSPENDED_NATIVE: Scenario = Scenario {
    name: "suspended, native, lost events",
    clients: &[&[NATIVE, AWAIT, COMPLETE, NATIVE, AWAIT, COMPLETE], &[EMIT]],
    lane: 1,
    sweep: true,
    faults: Faults { losses: 1, rollbacks: 1, ..NONE },
    ..SUSPENDED
};

/// The emission is at REPEATABLE READ, and may not see who waits.
pub const EMISSION_REPEATABLE: Scenario = Scenario {
    name: "emission at REPEATABLE READ",
    clients: &[WAIT_FOR_EVENT, &[repeatable(&[Look, Emit])]],
    sweep: true,
    ..SUSPENDED
};

/// A task of a group is suspended, and holds up the others.
pub const GROUP_SUSPENDED: Scenario = Scenario {
    name: "suspended in a group",
    tasks: &[Blocked, Blocked],
    clients: &[WAIT_FOR_EVENT, &[EMIT], WORK],
    group: &[0, 1],
    faults: NONE,
    ..SUSPENDED
};

/// The members of a batch end while it is sealed.
pub const BATCH: Scenario = Scenario {
    name: "batch",
    tasks: &[Callback, Member, Member],
    clients: &[WORK, WORK, &[SEAL]],
    batch: Some(0),
    ..Scenario::PLAIN
};

/// A batch grows while it is sealed and its first member ends. All events may be lost.
pub const GROWING_BATCH: Scenario = Scenario {
    name: "growing batch",
    tasks: &[Callback, Member, Absent],
    clients: &[WORK, &[committed(&[PushInto(2)])], &[SEAL]],
    sweep: true,
    faults: Faults { losses: 1, rollbacks: 1, ..NONE },
    ..BATCH
};

/// The callback is cancelled while a task is pushed into the batch and the batch is sealed.
pub const CANCELLED_BATCH: Scenario = Scenario {
    name: "cancelled batch",
    clients: &[&[committed(&[Cancel(0)])], &[committed(&[PushInto(2), Claim])], &[SEAL]],
    ..GROWING_BATCH
};

/// The callback is cancelled while a member ends.
pub const CANCELLED_CALLBACK: Scenario = Scenario {
    name: "cancelled callback",
    tasks: &[Callback, Member],
    clients: &[WORK, &[committed(&[Cancel(0)])], &[SEAL]],
    keep_history: false,
    ..BATCH
};

/// A start deadline passes while two workers claim, natively and in SQL.
pub const DEADLINE: Scenario = Scenario {
    name: "start deadline",
    tasks: &[Queued, Queued],
    clients: &[NATIVE_WORK, WORK],
    deadlines: &[0],
    lane: 1,
    faults: Faults { deadlines: 1, expiries: 1, rollbacks: 1, ..NONE },
    ..Scenario::PLAIN
};

/// The same in a queue with one slot.
pub const DEADLINE_AND_LIMIT: Scenario = Scenario {
    name: "start deadline and a limit",
    clients: &[WORK, WORK],
    lane: 0,
    max_running: 1,
    ..DEADLINE
};

/// The same for a task that waits, and one that is pushed after it.
pub const DEADLINE_OF_DEPENDENT: Scenario = Scenario {
    name: "start deadline of a dependent",
    tasks: &[Queued, Waiting(&[0]), Absent],
    clients: &[WORK, &[committed(&[Push(2, &[1])])]],
    deadlines: &[1],
    faults: Faults { deadlines: 1, ..NONE },
    ..Scenario::PLAIN
};

/// Two workers, three tasks, and one slot; leases that end.
pub const LIMIT: Scenario = Scenario {
    name: "limit",
    tasks: &[Queued, Queued, Queued],
    clients: &[WORK, WORK, WORK],
    max_running: 1,
    faults: Faults { expiries: 1, ..NONE },
    ..Scenario::PLAIN
};

/// All events are lost, at any moment; the sweep finds what waits.
pub const LOST_EVENTS: Scenario = Scenario {
    name: "lost events",
    tasks: &[Queued, Absent, Blocked, Blocked],
    clients: &[WORK, &[committed(&[Push(1, &[0])])]],
    group: &[2, 3],
    sweep: true,
    faults: Faults { losses: 1, ..NONE },
    ..Scenario::PLAIN
};

/// The same, of a group alone.
pub const LOST_GROUP_EVENTS: Scenario = Scenario {
    name: "lost events of a group",
    tasks: &[Blocked, Blocked],
    clients: &[WORK, &[CLAIM]],
    group: &[0, 1],
    ..LOST_EVENTS
};

/// A predecessor is deleted by hand, which leaves no event and no outcome.
pub const BY_HAND: Scenario = Scenario {
    name: "deleted by hand",
    tasks: &[Queued, Waiting(&[0]), Queued],
    clients: &[WORK],
    sweep: true,
    keep_history: false,
    faults: Faults { deletions: 1, sweeps: 1, ..NONE },
    ..Scenario::PLAIN
};

/// A sweep at any moment, beside a push, an end and a claim, with a lane.
pub const SWEEP: Scenario = Scenario {
    name: "sweep at any moment",
    tasks: &[Queued, Absent],
    clients: &[NATIVE_WORK, &[committed(&[Push(1, &[0])])]],
    lane: 1,
    eager: false,
    sweep: true,
    faults: Faults { sweeps: 1, rollbacks: 1, ..NONE },
    ..Scenario::PLAIN
};

/// A client completes a task and claims the next one in one transaction, which may be one that waited for it.
pub const COMPLETE_AND_CLAIM: Scenario = Scenario {
    name: "complete and claim",
    tasks: &[Queued, Waiting(&[0]), Waiting(&[0, 1])],
    clients: &[&[NATIVE, committed(&[Complete, NativeClaim]), COMPLETE], WORK],
    keep_history: false,
    lane: 1,
    sweep: true,
    faults: Faults { rollbacks: 1, expiries: 1, ..NONE },
    ..Scenario::PLAIN
};

/// Two clients each end a task and push one that waits for the other's: a deadlock, which the server ends.
pub const CROSSED: Scenario = Scenario {
    name: "crossed ends and pushes",
    tasks: &[Queued, Queued, Absent, Absent],
    clients: &[
        &[CLAIM, committed(&[Complete, Push(2, &[1])])],
        &[CLAIM, committed(&[Complete, Push(3, &[0])])],
    ],
    keep_history: false,
    ..Scenario::PLAIN
};

/// A chain that grows at one end while it is cancelled at the other. All events may be lost.
pub const GROWING_CHAIN: Scenario = Scenario {
    name: "growing chain",
    tasks: &[Queued, Waiting(&[0]), Absent],
    clients: &[&[committed(&[Cancel(0)])], &[committed(&[Push(2, &[1])])], &[committed(&[Cancel(1)])]],
    keep_history: false,
    sweep: true,
    faults: Faults { losses: 1, sweeps: 1, ..NONE },
    ..Scenario::PLAIN
};

/// A group at limit 2, leases that expire, and lost events.
pub const GROUP_OF_TWO: Scenario = Scenario {
    name: "group at limit 2",
    tasks: &[Blocked, Blocked, Blocked],
    clients: &[WORK, &[CLAIM]],
    group: &[0, 1, 2],
    group_limit: 2,
    sweep: true,
    faults: Faults { expiries: 1, losses: 1, ..NONE },
    ..Scenario::PLAIN
};

/// The same, and the first task of the group waits for another.
pub const WAITING_IN_GROUP: Scenario = Scenario {
    name: "a task waits in a group at limit 2",
    tasks: &[Queued, Waiting(&[0]), Blocked, Blocked],
    group: &[1, 2, 3],
    clients: &[&[CLAIM, COMPLETE, CLAIM, COMPLETE], &[CLAIM]],
    faults: Faults { losses: 1, ..NONE },
    ..GROUP_OF_TWO
};

/// A retry into a group beside claims and rollbacks.
pub const GROUP_ROLLBACKS: Scenario = Scenario {
    name: "retry into a group, rollbacks",
    clients: &[&[committed(&[Retry(0)])], WORK, &[CLAIM]],
    faults: Faults { rollbacks: 1, ..NONE },
    ..GROUP_RETRY
};

/// Two predecessors end at different isolation levels, with rollbacks and lost events.
pub const TWO_LEVELS: Scenario = Scenario {
    name: "two predecessors, two levels",
    tasks: &[Queued, Queued, Absent],
    clients: &[
        &[CLAIM, repeatable(&[Look, Complete])],
        &[committed(&[Look, Cancel(1)])],
        &[committed(&[Push(2, &[0, 1])])],
    ],
    keep_history: false,
    sweep: true,
    faults: Faults { losses: 1, rollbacks: 1, sweeps: 1, ..NONE },
    ..Scenario::PLAIN
};

/// A lane with dependents, crashes that lose the last commits, and leases that expire.
pub const CRASHES: Scenario = Scenario {
    name: "crashes",
    tasks: &[Queued, Waiting(&[0])],
    clients: &[NATIVE_WORK, NATIVE_WORK],
    lane: 1,
    sweep: true,
    faults: Faults { crashes: 2, expiries: 1, ..NONE },
    ..Scenario::PLAIN
};

/// Two slots, three workers, leases that expire, and rollbacks.
pub const LIMIT_OF_TWO: Scenario = Scenario {
    name: "limit of two",
    tasks: &[Queued, Queued, Queued],
    clients: &[WORK, &[CLAIM], &[CLAIM]],
    max_running: 2,
    faults: Faults { expiries: 1, rollbacks: 1, ..NONE },
    ..Scenario::PLAIN
};

/// Two tasks, two workers, and all that can go wrong with leases.
const MANY_LEASES: Scenario = Scenario {
    name: "deep: leases",
    tasks: &[Queued, Queued],
    clients: &[NATIVE_WORK, NATIVE_WORK],
    ..LEASES
};

/// Two pushes into a lane with room for one, two workers, and a rollback.
const BUSY_LANE: Scenario = Scenario {
    name: "deep: lane",
    tasks: &[Queued, Absent, Absent],
    clients: &[&[committed(&[Push(1, &[])])], &[committed(&[Push(2, &[])])], NATIVE_WORK, &[NATIVE]],
    faults: Faults { rollbacks: 1, ..NONE },
    ..LANE
};

/// A group, three workers, leases that expire, lost events, and a sweep at any moment.
const BUSY_GROUP: Scenario = Scenario {
    name: "deep: group",
    tasks: &[Blocked, Blocked, Dead],
    clients: &[WORK, &[CLAIM, committed(&[Release])], &[committed(&[Retry(2)])]],
    group: &[0, 1, 2],
    group_limit: 1,
    sweep: true,
    faults: Faults { expiries: 1, losses: 1, sweeps: 1, ..NONE },
    ..Scenario::PLAIN
};

/// Four tasks that depend on each other, a lane, two isolation levels, and lost events.
const BUSY_DEPENDENTS: Scenario = Scenario {
    name: "deep: dependents",
    tasks: &[Queued, Queued, Absent, Waiting(&[0])],
    clients: &[
        &[NATIVE, repeatable(&[Look, Complete])],
        &[NATIVE, COMPLETE],
        &[committed(&[Push(2, &[0, 1]), NativeClaim])],
    ],
    keep_history: false,
    lane: 1,
    sweep: true,
    faults: Faults { losses: 1, ..NONE },
    ..Scenario::PLAIN
};

/// What every run searches.
pub const STANDARD: &[Scenario] = &[
    LEASES,
    DURABLE_LEASES,
    LOST_ENDS,
    LANE,
    LANE_REPEATABLE,
    MIXED,
    UNDONE,
    SAVEPOINT,
    NESTED,
    GROUP_SAVEPOINT,
    PUSH_AND_END,
    END_REPEATABLE,
    CANCEL,
    PURGE,
    TWO,
    CHAIN,
    NATIVE_DEPENDENTS,
    DEAD,
    DEAD_AND_GONE,
    GROUP,
    PUSH_INTO_GROUP,
    GROUP_REPEATABLE,
    GROUP_RETRY,
    GROUP_WITHDRAWN,
    GROUP_UNDONE,
    GROUP_DEPENDENT,
    LIMIT,
    LOST_EVENTS,
    LOST_GROUP_EVENTS,
    BATCH,
    GROWING_BATCH,
    CANCELLED_BATCH,
    CANCELLED_CALLBACK,
    DEADLINE,
    DEADLINE_AND_LIMIT,
    DEADLINE_OF_DEPENDENT,
    SUSPENDED,
    SUSPENDED_NATIVE,
    EMISSION_REPEATABLE,
    GROUP_SUSPENDED,
    BY_HAND,
    SWEEP,
    COMPLETE_AND_CLAIM,
    CROSSED,
    GROWING_CHAIN,
    GROUP_OF_TWO,
    WAITING_IN_GROUP,
    GROUP_ROLLBACKS,
    TWO_LEVELS,
    CRASHES,
    LIMIT_OF_TWO,
];

/// What a deeper run searches as well.
pub const DEEP: &[Scenario] = &[MANY_LEASES, BUSY_LANE, BUSY_GROUP, BUSY_DEPENDENTS];
