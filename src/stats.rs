//! `queue.engine_stats()`: the internal statistics of the library for this database.

use crate::clock::now;
use crate::counting;
use crate::fallback::Reason;
use crate::lanes::{self, Activity};
use crate::settings;
use crate::shared::{self, Database, Shared};
use pgrx::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::atomic::Ordering;

#[derive(Serialize)]
struct EngineStats {
    /// Of the library.
    version: &'static str,
    /// Whether the library was preloaded. Otherwise there is no worker and no lane.
    loaded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    launcher_pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<WorkerStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verbs: Option<VerbStats>,
    /// The processes of handlers, if there are or should be any.
    #[serde(skip_serializing_if = "Option::is_none")]
    handlers: Option<HandlerStats>,
    /// How many lanes the server has.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_lanes: Option<usize>,
}

#[derive(Serialize)]
struct WorkerStats {
    pid: i32,
    /// Milliseconds until the worker wakes by itself; 0 while it runs a step.
    sleeps_for_ms: i64,
    rounds: u64,
    leases_reaped: u64,
    notifications: u64,
}

/// How many calls used the native fast path.
#[derive(Serialize)]
struct VerbStats {
    served: u64,
    /// Those that fell back to SQL, by reason.
    fallbacks: BTreeMap<Reason, u64>,
}

#[derive(Serialize)]
struct HandlerStats {
    /// Processes that run.
    processes: usize,
    /// Processes that could not be started, for lack of max_worker_processes.
    unstarted: u32,
    /// Queues whose processes keep exiting.
    failing: u32,
}

#[derive(Serialize)]
struct LaneStats {
    /// Tasks in the ready buffer.
    ready: usize,
    /// Scheduled tasks that it knows.
    scheduled: usize,
    /// Whether it knows all claimable and all scheduled tasks.
    complete: bool,
    waiters: usize,
    #[serde(flatten)]
    activity: Activity,
}

declare_symbol!(pg_finfo_engine_stats_wrapper);

/// The function as engine.sql declares it.
#[unsafe(no_mangle)]
#[pg_guard]
unsafe extern "C-unwind" fn engine_stats_wrapper(_fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: a zero-terminated string, which is read before it is gone.
    unsafe {
        let json = CString::new(engine_stats()).unwrap_or_default();
        let text = pg_sys::Datum::from(json.as_ptr());
        pgrx::direct_function_call_as_datum(pg_sys::jsonb_in, &[Some(text)])
            .unwrap_or_else(|| error!("jsonb_in returned null"))
    }
}

/// As JSON in the encoding of the database, of which only the names of queues are not ASCII.
fn engine_stats() -> Vec<u8> {
    let shared = shared::get();
    // SAFETY: a plain read of a constant of the process.
    let database = shared.and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }));
    let stats = EngineStats {
        version: env!("CARGO_PKG_VERSION"),
        loaded: shared.is_some(),
        launcher_pid: shared.map(|shared| shared.launcher.pid()).filter(|pid| *pid != 0),
        worker: database.filter(|database| database.worker.pid() != 0).map(worker_stats),
        verbs: database.map(verb_stats),
        handlers: database.and_then(|database| handler_stats(shared?, database)),
        max_lanes: lanes::available().then(settings::lanes),
    };
    let mut json = to_json(&stats);
    let lanes: BTreeMap<_, _> = lanes::each(|slot| {
        let (ready, scheduled, complete) = slot.lane.sizes();
        LaneStats { ready, scheduled, complete, waiters: slot.waiters.len(), activity: slot.activity }
    })
    .into_iter()
    // SAFETY: in a transaction.
    .filter(|(name, _)| unsafe { counting::may_know_of_queue(name) })
    .collect();
    if !lanes.is_empty() {
        json.pop();
        let mut before = &b",\"lanes\":{"[..];
        for (name, lane) in &lanes {
            json.extend_from_slice(before);
            push_string(&mut json, name);
            json.push(b':');
            json.extend(to_json(lane));
            before = b",";
        }
        json.extend_from_slice(b"}}");
    }
    json
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_else(|error| error!("no JSON can be made of the statistics: {error}"))
}

/// Adds a string in the encoding of a database, in all of which bytes below 128 are ASCII.
fn push_string(json: &mut Vec<u8>, string: &[u8]) {
    json.push(b'"');
    for byte in string {
        match byte {
            b'"' | b'\\' => json.extend([b'\\', *byte]),
            0..32 => json.extend(format!("\\u{byte:04x}").bytes()),
            _ => json.push(*byte),
        }
    }
    json.push(b'"');
}

fn worker_stats(database: &Database) -> WorkerStats {
    WorkerStats {
        pid: database.worker.pid(),
        sleeps_for_ms: (database.worker.wakes_at() - now()).max(0) / 1000,
        rounds: database.counters.rounds.load(Ordering::Relaxed),
        leases_reaped: database.counters.leases_reaped.load(Ordering::Relaxed),
        notifications: database.counters.notifications.load(Ordering::Relaxed),
    }
}

fn handler_stats(shared: &Shared, database: &Database) -> Option<HandlerStats> {
    // SAFETY: a plain read of a constant of the process.
    let oid = unsafe { pg_sys::MyDatabaseId };
    let processes = shared.handlers.of(oid).filter(|handler| handler.process.pid() != 0).count();
    let unstarted = database.handlers_unstarted.load(Ordering::SeqCst);
    let failing = database.handlers_failing.load(Ordering::SeqCst);
    (processes > 0 || unstarted > 0 || failing > 0).then_some(HandlerStats { processes, unstarted, failing })
}

fn verb_stats(database: &Database) -> VerbStats {
    let count = |reason: &Reason| database.counters.fallbacks[*reason as usize].load(Ordering::Relaxed);
    let fallbacks = Reason::ALL.iter().map(|reason| (*reason, count(reason)));
    VerbStats {
        served: database.counters.served.load(Ordering::Relaxed),
        fallbacks: fallbacks.filter(|(_, count)| *count > 0).collect(),
    }
}
