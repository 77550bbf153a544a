//! The objects of a fault: server and clients, and a count of the faults.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::campaigns::soak::Samples;
use super::campaigns::zombies::Process;
use super::client::Target;
use super::journal::now;
use super::random::Random;
use crate::clock::FakeClock;
use crate::cluster::signal;
use crate::disk::Disk;
use crate::{Cluster, eventually};

/// How long a server may take from its start to the first claim, beyond recovery itself.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// A server under torture.
pub struct Scene {
    pub cluster: Cluster,
    /// Its standby, in the campaigns that have one.
    pub standby: Option<Cluster>,
    /// A connection for faults that come fast.
    pub operator: Option<postgres::Client>,
    pub target: Arc<Target>,
    pub seed: u64,
    pub random: Random,
    /// The program that runs a client in a process of its own, and those that run.
    pub program: PathBuf,
    pub processes: Vec<Process>,
    pub processes_started: u64,
    /// How often each fault struck.
    pub faults: BTreeMap<String, u64>,
    /// How long it took from the fault until a claim was answered.
    pub recoveries: Vec<Duration>,
    pub journals: PathBuf,
    /// The disk that can be full, in the campaign that has one.
    pub disks: Vec<Disk>,
    pub samples: Samples,
    /// The clock of the server, in the campaign that sets it; how many seconds it is ahead, and was at most.
    pub clock: Option<FakeClock>,
    pub ahead: i64,
    pub furthest: i64,
    /// When the server crashed in this round, from and to, in microseconds since 1970.
    pub crashes: Vec<(i64, i64)>,
    /// Lines of the server's log with one of these are no surprise.
    pub forgiven: &'static [&'static str],
    /// Violations outside the checks.
    pub complaints: Vec<String>,
    /// Other measurements.
    pub remarks: Vec<String>,
}

impl Scene {
    /// Counts a fault.
    pub fn struck(&mut self, fault: &str) {
        *self.faults.entry(fault.to_owned()).or_default() += 1;
    }

    /// Loses everything that the server has not written.
    pub fn crash(&mut self, act: impl FnOnce(&mut Self)) {
        let from = now();
        act(self);
        self.crashes.push((from, now()));
    }

    /// Starts the server after a fault that took it down, and notes how long it took.
    pub fn back_up(&mut self, since: Instant) {
        self.cluster.launch();
        self.await_claim(since);
    }

    /// Waits for the first claim after a fault, and notes how long it took.
    pub fn await_claim(&mut self, since: Instant) {
        eventually("a claim is answered", BACK_WITHIN, || {
            let Some(mut client) = self.cluster.try_connect("postgres") else { return false };
            client.batch_execute("BEGIN; SELECT id FROM queue.claim('1 s', 'plain'); ROLLBACK").is_ok()
        });
        self.recoveries.push(since.elapsed());
    }

    /// The process of a random session of the clients.
    pub fn any_session(&mut self) -> Option<i32> {
        self.any_process("application_name LIKE 'torture %'")
    }

    /// The background worker.
    pub fn worker(&mut self) -> Option<i32> {
        self.any_process("backend_type = 'queue_ext worker' AND datname = 'postgres'")
    }

    fn any_process(&mut self, which: &str) -> Option<i32> {
        let query = format!("SELECT pid FROM pg_stat_activity WHERE {which}");
        let pids = self.cluster.try_connect("postgres")?.query(&query, &[]).ok()?;
        let count = pids.len() as u64;
        (count > 0).then(|| pids[self.random.roll(count) as usize].get(0))
    }

    /// kill -9 of one process of the server, which restarts all others.
    pub fn kill_one(&mut self, pid: i32) {
        let lines = || self.cluster.log().matches("all server processes terminated").count();
        let before = lines();
        let since = Instant::now();
        let from = now();
        signal(pid, libc::SIGKILL);
        eventually("the server restarts", BACK_WITHIN, || lines() > before);
        self.crashes.push((from, now()));
        self.await_claim(since);
    }
}
