//! The load of a campaign, and its queues.

use std::fmt;

/// The queues: two without options, which the native fast path serves, and one for each option.
pub const QUEUES: [&str; 9] = ["plain", "hot", "grouped", "limited", "frail", "café", LINKED, TIMED, METERED];
/// The queue of tasks that wait for others, and have keys and groups as well.
pub const LINKED: &str = "reliés";
/// The queue whose attempts have a timeout, and that timeout in microseconds.
pub const TIMED: &str = "timed";
pub const TIMEOUT: i64 = 400_000;
/// The queue with rate limits, how many tasks of one of its groups may run, and how much weight of the queue and of a group
/// may start in a period, in microseconds.
pub const METERED: &str = "metered";
pub const MOST_OF_GROUP: i64 = 3;
pub const RATE: i64 = 15;
pub const GROUP_RATE: i64 = 10;
pub const PERIOD: i64 = 150_000;
/// How many of each of these may run.
pub const LIMITED: [&str; 2] = ["limited", METERED];
pub const MOST_RUNNING: i64 = 5;
/// The longest lease that a client asks for, and the longest delay of a task, in milliseconds.
pub const LONGEST_LEASE: u64 = 1500;
pub const LONGEST_DELAY: u64 = 800;

/// Makes the queues.
pub const SETUP: &str = r#"
SELECT queue.create('plain', '{"max_attempts": 1000, "backoff": {"base": "20 ms", "max": "100 ms"}}');
SELECT queue.create('hot', '{"max_attempts": 1000, "backoff": {"base": "0"}}');
SELECT queue.create('grouped', '{"max_attempts": 1000, "backoff": {"base": "20 ms", "max": "100 ms"}}');
SELECT queue.create('limited', '{"max_attempts": 1000, "max_running": 5, "backoff": {"base": "0"}}');
SELECT queue.create('frail', '{"max_attempts": 2, "backoff": {"base": "0"}}');
SELECT queue.create('café', '{"max_attempts": 1000, "on_expired": "cancel", "backoff": {"base": "20 ms", "max": "100 ms"}}');
SELECT queue.create('reliés', '{"max_attempts": 1000, "backoff": {"base": "20 ms", "max": "100 ms"}}');
SELECT queue.create('timed', '{"max_attempts": 1000, "timeout": "400 ms", "backoff": {"base": "20 ms", "max": "100 ms"}}');
SELECT queue.create('metered', '{"max_attempts": 1000, "max_running": 5, "max_running_per_group": 3, "backoff": {"base": "0"},
    "rate_limit": 15, "group_rate_limit": 10, "rate_period": "150 ms"}');
CREATE TABLE public.orders (id bigint GENERATED ALWAYS AS IDENTITY, task bigint);
CREATE INDEX ON public.orders (task);
"#;

/// The load of a campaign.
#[derive(Clone, Debug)]
pub struct Load {
    /// How many there are.
    pub clients: u64,
    /// How many of a hundred operations are transaction blocks of several calls; the others are single statements.
    pub blocks: u64,
    /// The maximum number of calls in a block.
    pub parts: u64,
    /// Of a hundred blocks, so many are rolled back on purpose.
    pub rollbacks: u64,
    /// Of a hundred parts of a block, so many are within a savepoint.
    pub savepoints: u64,
    /// Of a hundred blocks, so many end in two phases.
    pub two_phase: u64,
    /// Of a hundred blocks, so many are REPEATABLE READ or SERIALIZABLE.
    pub strict: u64,
    /// How many of a hundred operations have a statement_timeout or lock_timeout of 1 to 50 ms.
    pub timeouts: u64,
    /// How many of a hundred operations are batches over tasks of any client, in random order.
    pub batches: u64,
    /// How many of a hundred operations push tasks with weights into the queue with rate limits, or claim from it.
    pub metered: u64,
    /// Of a hundred parts of a block, so many push tasks with predecessors and claim from their queue.
    pub linked: u64,
    /// Of a hundred parts of a block, so many lock rows of tasks, as a user's own statements do.
    pub locks: u64,
    /// Whether a lock comes with a row of a table of the user's own, which may have a foreign key.
    pub references: bool,
    /// Of a hundred clients, so many have synchronous_commit = off.
    pub careless: u64,
    /// Of a hundred clients, so many have queue.fast_path = off.
    pub by_sql: u64,
    /// Whether clients only push.
    pub only_push: bool,
    /// SQLSTATEs that are expected besides those of refused calls and lost connections.
    pub tolerated: &'static [&'static str],
}

impl Load {
    /// Eight clients that do everything at READ COMMITTED.
    pub const MIXED: Self = Self {
        clients: 8,
        blocks: 30,
        parts: 3,
        rollbacks: 15,
        savepoints: 15,
        two_phase: 0,
        strict: 0,
        timeouts: 0,
        batches: 0,
        metered: 0,
        linked: 25,
        locks: 4,
        references: false,
        careless: 25,
        by_sql: 15,
        only_push: false,
        // Blocks take locks in any order, as users do.
        tolerated: &["40P01"],
    };

    /// Whether a client may meet this error. The others are: a stale token, a task that has finished, a
    /// duplicate, a batch that is over, a server that goes down or comes up.
    pub fn tolerates(&self, code: &str) -> bool {
        ["QX001", "QX003", "QX005", "QX007", "QX008", "57P01", "57P02", "57P03"].contains(&code)
            || self.tolerated.contains(&code)
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            clients,
            blocks,
            parts,
            rollbacks,
            savepoints,
            two_phase,
            strict,
            timeouts,
            batches,
            metered,
            ..
        } = self;
        let Self { linked, locks, references, careless, by_sql, .. } = self;
        write!(
            f,
            "clients={clients} blocks={blocks}% parts={parts} rollbacks={rollbacks}% savepoints={savepoints}% \
             two_phase={two_phase}% strict={strict}% timeouts={timeouts}% batches={batches}% metered={metered}% \
             linked={linked}% locks={locks}% references={references} careless={careless}% by_sql={by_sql}% \
             only_push={} tolerated={:?}",
            self.only_push, self.tolerated
        )
    }
}
