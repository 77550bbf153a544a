//! `queue.engine_stats()`: what the native part sees of itself in this database.

use crate::clock::now;
use crate::shared;
use pgrx::JsonB;
use pgrx::prelude::*;
use serde::Serialize;
use std::sync::atomic::Ordering;

#[derive(Serialize)]
struct EngineStats {
    /// Whether the library was preloaded, without which there is no worker.
    loaded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    launcher_pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<WorkerStats>,
}

#[derive(Serialize)]
struct WorkerStats {
    pid: i32,
    /// Milliseconds until the worker means to wake by itself; 0 while it works.
    sleeps_for_ms: i64,
    rounds: u64,
    leases_reaped: u64,
    notifications: u64,
}

#[pg_extern(sql = false)]
fn engine_stats() -> JsonB {
    let shared = shared::get();
    // SAFETY: a plain read of a constant of the process.
    let database = shared.and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }));
    let stats = EngineStats {
        loaded: shared.is_some(),
        launcher_pid: shared.map(|shared| shared.launcher.pid()).filter(|pid| *pid != 0),
        worker: database.filter(|database| database.worker.pid() != 0).map(|database| WorkerStats {
            pid: database.worker.pid(),
            sleeps_for_ms: (database.worker.wakes_at() - now()).max(0) / 1000,
            rounds: database.counters.rounds.load(Ordering::Relaxed),
            leases_reaped: database.counters.leases_reaped.load(Ordering::Relaxed),
            notifications: database.counters.notifications.load(Ordering::Relaxed),
        }),
    };
    JsonB(serde_json::json!(stats))
}
