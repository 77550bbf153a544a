//! Every setting, alphabetically: default, unit, bounds, and why one would change it.
//!
//! The SQL core reads the same names with `queue_internal.setting()`, which repeats the defaults
//! for sessions in which this library is not loaded.

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::time::Duration;

const DAY_IN_MINUTES: i32 = 24 * 60;

static DEAD_LETTER_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(30 * DAY_IN_MINUTES);
static FAST_PATH: GucSetting<bool> = GucSetting::<bool>::new(true);
static HISTORY_AHEAD: GucSetting<i32> = GucSetting::<i32>::new(3);
static HISTORY_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(7 * DAY_IN_MINUTES);
static LANES: GucSetting<i32> = GucSetting::<i32>::new(64);
static MAX_LEASE: GucSetting<i32> = GucSetting::<i32>::new(7 * DAY_IN_MINUTES);
static NOTIFY_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(100);
static SWEEP_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(10);
static WORKER_ENABLED: GucSetting<bool> = GucSetting::<bool>::new(true);

/// The least time between two notifications for one queue.
pub fn notify_interval() -> Duration {
    Duration::from_millis(NOTIFY_INTERVAL.get().unsigned_abs().into())
}

/// The longest the worker sleeps: the bound on finding what no session told it of.
pub fn sweep_interval() -> Duration {
    Duration::from_secs(SWEEP_INTERVAL.get().unsigned_abs().into())
}

/// Whether the native verbs serve what they can.
pub fn fast_path() -> bool {
    FAST_PATH.get()
}

/// How many queues of the whole server can have a lane.
pub fn lanes() -> usize {
    usize::try_from(LANES.get()).unwrap_or(0)
}

/// The longest lease, in microseconds.
pub fn max_lease() -> i64 {
    i64::from(MAX_LEASE.get()) * 60_000_000
}

/// Whether workers should run at all.
pub fn worker_enabled() -> bool {
    WORKER_ENABLED.get()
}

/// Defines what can only be set when the server starts.
pub fn define_for_preload() {
    GucRegistry::define_int_guc(
        c"queue.lanes",
        c"How many queues of the whole server have their next tasks at hand in shared memory.",
        c"Queues beyond that are served by the functions in SQL, slower. Each takes about 85 kB.",
        &LANES,
        0,
        65_536,
        GucContext::Postmaster,
        GucFlags::default(),
    );
}

/// Defines the settings and reserves the prefix `queue`.
pub fn define() {
    GucRegistry::define_int_guc(
        c"queue.dead_letter_retention",
        c"How long a task that failed for good is kept in queue.dead_letters.",
        c"-1 keeps dead letters until they are redriven or purged.",
        &DEAD_LETTER_RETENTION,
        -1,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_MIN,
    );
    GucRegistry::define_bool_guc(
        c"queue.fast_path",
        c"Whether push, claim, complete and extend are served natively where they can be.",
        c"Off sends everything to the functions in SQL, which do the same, slower.",
        &FAST_PATH,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"queue.history_ahead",
        c"How many days ahead of today the partitions of queue.history are made.",
        c"Raise it where the worker may be stopped for longer than that.",
        &HISTORY_AHEAD,
        1,
        366,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"queue.history_retention",
        c"How long completed and cancelled tasks are kept in queue.history.",
        c"Whole days are dropped, so up to a day more is kept. -1 keeps history for ever.",
        &HISTORY_RETENTION,
        -1,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_MIN,
    );
    GucRegistry::define_int_guc(
        c"queue.max_lease",
        c"The longest lease that a worker may ask for.",
        c"A task whose worker died silently stays out of reach for as long as its lease.",
        &MAX_LEASE,
        1,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_MIN,
    );
    GucRegistry::define_int_guc(
        c"queue.notify_interval",
        c"The least time between two notifications for one queue.",
        c"All pushes in between are told by one NOTIFY. Lower it for latency, raise it for load.",
        &NOTIFY_INTERVAL,
        1,
        60_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"queue.sweep_interval",
        c"The longest that the worker sleeps before it looks for due tasks by itself.",
        c"It bounds the delay of what no session could announce, such as COMMIT PREPARED.",
        &SWEEP_INTERVAL,
        1,
        3600,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_bool_guc(
        c"queue.worker_enabled",
        c"Whether the background worker runs in the databases that have the extension.",
        c"Turn it off on a logical subscriber, which must not process its publisher's tasks.",
        &WORKER_ENABLED,
        GucContext::Sighup,
        GucFlags::default(),
    );
    // SAFETY: a valid, static, zero-terminated name; called during library initialisation.
    unsafe {
        #[cfg(feature = "pg14")]
        pgrx::pg_sys::EmitWarningsOnPlaceholders(c"queue".as_ptr());
        #[cfg(not(feature = "pg14"))]
        pgrx::pg_sys::MarkGUCPrefixReserved(c"queue".as_ptr());
    }
}
