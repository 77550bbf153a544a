//! Every setting, alphabetically, with its default, unit and bounds.
//!
//! SQL functions read the same settings with `queue_internal.setting()`, whose callers repeat the defaults for sessions
//! in which this library is not loaded.

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use std::time::Duration;

const DAY_IN_MINUTES: i32 = 24 * 60;

static DEAD_LETTER_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(30 * DAY_IN_MINUTES);
static DURABLE_LEASES: GucSetting<DurableLeases> = GucSetting::<DurableLeases>::new(DurableLeases::Auto);
static EVENT_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(7 * DAY_IN_MINUTES);
static FAST_PATH: GucSetting<bool> = GucSetting::<bool>::new(true);
static HISTORY_AHEAD: GucSetting<i32> = GucSetting::<i32>::new(3);
static HISTORY_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(7 * DAY_IN_MINUTES);
static LANES: GucSetting<i32> = GucSetting::<i32>::new(64);
static MAX_LEASE: GucSetting<i32> = GucSetting::<i32>::new(7 * DAY_IN_MINUTES);
static NOTIFY_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(100);
static SWEEP_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(10);
static WORKER_ENABLED: GucSetting<bool> = GucSetting::<bool>::new(true);

/// Whether a lease has to survive a crash.
#[derive(Clone, Copy, PostgresGucEnum)]
pub enum DurableLeases {
    #[name = c"on"]
    On,
    #[name = c"off"]
    Off,
    /// Only those of tasks that were tried before, are from before the last start of the server, or have a start deadline.
    #[name = c"auto"]
    Auto,
}

impl DurableLeases {
    /// By its name, as an option of a queue.
    pub fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"on" => Some(Self::On),
            b"off" => Some(Self::Off),
            b"auto" => Some(Self::Auto),
            _ => None,
        }
    }
}

/// Whether the leases of this session have to survive a crash, in queues that do not say.
pub fn durable_leases() -> DurableLeases {
    DURABLE_LEASES.get()
}

/// The shortest time between two notifications for one queue.
pub fn notify_interval() -> Duration {
    Duration::from_millis(NOTIFY_INTERVAL.get().unsigned_abs().into())
}

/// The longest sleep of the worker, which bounds how late an unannounced change is noticed.
pub fn sweep_interval() -> Duration {
    Duration::from_secs(SWEEP_INTERVAL.get().unsigned_abs().into())
}

/// Whether calls use the native fast path if they can.
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

/// Whether background workers run.
pub fn worker_enabled() -> bool {
    WORKER_ENABLED.get()
}

/// Defines the settings that apply only when the server starts.
pub fn define_for_preload() {
    GucRegistry::define_int_guc(
        c"queue.lanes",
        c"How many queues of the whole server have their next tasks cached in shared memory.",
        c"Further queues use the SQL implementation, which is slower. Each lane takes about 85 kB.",
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
    GucRegistry::define_enum_guc(
        c"queue.durable_leases",
        c"Whether a lease has to survive a crash, so that the commit of a claim waits for the disk.",
        c"With auto, only those of tasks that were tried before, are from before the last start, or have a start deadline.",
        &DURABLE_LEASES,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"queue.event_retention",
        c"How long an emitted event is kept.",
        c"An event that a task waits for is kept longer. -1 keeps events for ever.",
        &EVENT_RETENTION,
        -1,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_MIN,
    );
    GucRegistry::define_bool_guc(
        c"queue.fast_path",
        c"Whether push, claim, complete and extend use the native fast path where they can.",
        c"If off, all calls use the SQL implementation, which does the same but is slower.",
        &FAST_PATH,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"queue.history_ahead",
        c"How many days in advance the partitions of queue.history are created.",
        c"Raise it if the background worker may be stopped for longer than that.",
        &HISTORY_AHEAD,
        1,
        365,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"queue.history_retention",
        c"How long completed and cancelled tasks are kept in queue.history.",
        c"Whole days are dropped, so tasks are kept up to a day longer. -1 keeps them for ever.",
        &HISTORY_RETENTION,
        -1,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_MIN,
    );
    GucRegistry::define_int_guc(
        c"queue.max_lease",
        c"The longest lease that a worker may ask for.",
        c"If a worker dies, its task is not claimed again before the lease expires.",
        &MAX_LEASE,
        1,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_MIN,
    );
    GucRegistry::define_int_guc(
        c"queue.notify_interval",
        c"The shortest time between two notifications for one queue.",
        c"One NOTIFY stands for all pushes in between. Lower it for latency, raise it to reduce load.",
        &NOTIFY_INTERVAL,
        1,
        60_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"queue.sweep_interval",
        c"The longest time after which the background worker checks for due tasks by itself.",
        c"Upper bound on how late an unannounced change is noticed, such as a COMMIT PREPARED.",
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
