//! R33: a steady load, under which nothing may grow: the memory of the worker and of the sessions, and the tables
//! with live rows.

use std::collections::HashMap;

use crate::torture::campaign::Campaign;
use crate::torture::scene::Scene;

/// How much a process may grow, in kB. Its catalog and plan caches grow by less than 2 MB, on a busy machine long
/// after the warm-up. A leak of 100 bytes an operation exceeds this after 40,000 operations.
const GROWTH: i64 = 4096;
/// A session's caches fill until it was sampled so often, for three seconds.
const WARM: u32 = 12;

pub const CAMPAIGN: Campaign = Campaign {
    name: "soak",
    covers: "R33",
    settings: "autovacuum_naptime = 1",
    pause: (250, 250),
    fault: sample,
    after,
    ..Campaign::PLAIN
};

/// The measurements.
#[derive(Default)]
pub struct Samples {
    /// The worker's memory at the end of the first round, and its process id.
    worker: Option<(i32, i64)>,
    /// For each session of this round: number of samples, memory after the warm-up, and now.
    sessions: HashMap<i32, (u32, i64, i64)>,
    /// The size of the tables at the end of the first round.
    tables: Option<i64>,
    most: [i64; 3],
}

fn sample(scene: &mut Scene) {
    let query = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'torture %'";
    for row in scene.cluster.connect().query(query, &[]).expect("the sessions") {
        let pid = row.get(0);
        let Some(memory) = memory(pid) else { continue };
        let (looks, warm, last) = scene.samples.sessions.entry(pid).or_default();
        *looks += 1;
        *last = memory;
        if *looks <= WARM {
            *warm = memory;
        }
    }
}

/// The memory that is a process's own, in kB.
fn memory(pid: i32) -> Option<i64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn after(scene: &mut Scene) {
    let worker = scene.worker().and_then(|pid| Some((pid, memory(pid)?)));
    let sizes = "SELECT sum(pg_total_relation_size(oid))::bigint / 1024 FROM pg_class
                 WHERE relkind = 'r' AND oid IN ('queue.tasks'::regclass, 'queue_internal.events'::regclass)";
    let tables: i64 = scene.cluster.connect().query_one(sizes, &[]).expect("sizes").get(0);
    let samples = &mut scene.samples;
    let first = *samples.worker.get_or_insert(worker.expect("a worker"));
    let (pid, now) = worker.expect("a worker");
    if pid != first.0 {
        scene.complaints.push("the worker is another one".to_owned());
    }
    let sessions = samples.sessions.drain().map(|(_, (_, warm, last))| last - warm).max().unwrap_or(0);
    // As many tasks are live at the end of a round as at the end of the first one, give or take.
    let bound = 2 * *samples.tables.get_or_insert(tables) + GROWTH;
    for (what, grown, bound, most) in [
        ("kB by which the worker grew", now - first.1, GROWTH, 0),
        ("kB by which a session grew", sessions, GROWTH, 1),
        ("kB of tables and indexes", tables, bound, 2),
    ] {
        samples.most[most] = samples.most[most].max(grown);
        if grown > bound {
            scene.complaints.push(format!("{grown} {what}: more than {bound}"));
        }
    }
    let [worker, sessions, tables] = samples.most;
    scene.remarks = vec![format!(
        "grown by at most: the worker {worker} kB, a session {sessions} kB; tables and indexes {tables} kB at most"
    )];
}
