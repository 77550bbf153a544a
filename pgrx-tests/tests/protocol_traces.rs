//! Checks the code against the model of `protocol_model.rs`: the answers of real sessions, and their commits in the
//! write-ahead log, must be something that the model can produce.
//!
//! Many small cases run on a real server, several at the same time, each with tasks and a group of its own: three
//! clients run a few random transactions and then finish the remaining tasks. `trace.rs` is the recording of one case,
//! `record.rs` runs it, `wal.rs` reads the log, and `accept.rs` searches for the same in the model, with the model's own
//! steps. A brief run records a few thousand events; TRACES sets the number for a longer one.

#![allow(dead_code)]

#[path = "protocol_traces/accept.rs"]
mod accept;
#[path = "protocol_model/batch.rs"]
mod batch;
#[path = "protocol_traces/by_hand.rs"]
mod by_hand;
#[path = "protocol_model/claim.rs"]
mod claim;
#[path = "protocol_traces/compare.rs"]
mod compare;
#[path = "protocol_model/deadline.rs"]
mod deadline;
#[path = "protocol_model/events.rs"]
mod events;
#[path = "protocol_model/lane.rs"]
mod lane;
#[path = "protocol_model/memory.rs"]
mod memory;
#[path = "protocol_traces/moves.rs"]
mod moves;
#[path = "protocol_traces/mutants.rs"]
mod mutants;
#[path = "protocol_traces/openings.rs"]
mod openings;
#[path = "protocol_traces/player.rs"]
mod player;
#[path = "protocol_model/promises.rs"]
mod promises;
#[path = "protocol_model/protocol.rs"]
mod protocol;
#[path = "protocol_model/push.rs"]
mod push;
#[path = "protocol_traces/record.rs"]
mod record;
#[path = "protocol_traces/report.rs"]
mod report;
#[path = "protocol_model/rows.rs"]
mod rows;
#[path = "protocol_model/rules.rs"]
mod rules;
#[path = "protocol_model/scenario.rs"]
mod scenario;
#[path = "protocol_traces/script.rs"]
mod script;
#[path = "protocol_model/suspension.rs"]
mod suspension;
#[path = "protocol_model/sweep.rs"]
mod sweep;
#[path = "protocol_traces/talk.rs"]
mod talk;
#[path = "protocol_traces/trace.rs"]
mod trace;
#[path = "protocol_model/transaction.rs"]
mod transaction;
#[path = "protocol_traces/wal.rs"]
mod wal;
#[path = "protocol_model/worker.rs"]
mod worker;
#[path = "protocol_model/world.rs"]
mod world;

use accept::{THOROUGH, Verdict};
use queue_ext_tests::{Cluster, SOON, Settings, eventually};
use record::Options;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trace::{Crash, End, Trace};

/// How many worlds are played at the same time.
const STAGES: usize = 3;

const SETTINGS: &str = "
wal_level = logical
deadlock_timeout = 10ms
queue.sweep_interval = '1h'
# A crash loses only what sessions with synchronous_commit = off have committed.
queue.durable_leases = on
autovacuum = off
# Claims that do not wait for the disk stay in memory, until a commit that does.
wal_writer_delay = 10s
";

fn seed() -> u64 {
    std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// How many events are to be recorded.
fn wanted() -> usize {
    std::env::var("TRACES").ok().and_then(|text| text.parse().ok()).unwrap_or(4_000)
}

/// A server whose log is read.
struct Server {
    life: RwLock<Life>,
}

/// Until it is killed.
struct Life {
    cluster: Cluster,
    /// The smallest token.
    base: i64,
}

/// The results of several cases.
#[derive(Default)]
struct Came {
    worlds: u64,
    events: usize,
    states: usize,
    /// How long the model took.
    search: Duration,
    /// Those that took the model more states than it was allowed.
    undecided: Vec<String>,
    rejected: Vec<String>,
    /// How often the server was killed, and how many transactions that ended, or undid afterwards.
    kills: usize,
    ended: usize,
    undone: usize,
}

impl Server {
    fn start(name: &str, worker: bool) -> Self {
        let cluster = Cluster::start_with(name, &Settings { preload: true, extra: SETTINGS });
        let mut client = cluster.connect();
        if !worker {
            client.batch_execute("ALTER SYSTEM SET queue.worker_enabled = off").expect("ALTER SYSTEM");
            client.batch_execute("SELECT pg_reload_conf()").expect("reload");
            eventually("the setting counts", SOON, || {
                let row = cluster.connect().query_one("SHOW queue.worker_enabled", &[]);
                row.expect("SHOW").get::<_, &str>(0) == "off"
            });
        }
        let server = Self { life: RwLock::new(Life { cluster, base: 1 }) };
        for stage in 0..STAGES {
            client.batch_execute(&format!("CREATE DATABASE {}", database(stage))).expect("a database");
            let mut client = server.connect(stage);
            client.batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
            record::create_queues(&mut client);
            eventually("the base of tokens is published", SOON, || {
                let mark = "SELECT reached FROM queue_internal.token_mark";
                !worker || client.query_one(mark, &[]).expect("look").get::<_, i64>(0) > 0
            });
            let slot = "SELECT pg_create_logical_replication_slot(current_database(), 'test_decoding')";
            client.batch_execute(slot).expect("a place in the log");
        }
        server
    }

    /// Each stage has a database of its own, so that no sweep and no worker comes across the worlds of another one.
    fn connect(&self, stage: usize) -> postgres::Client {
        self.life.read().expect("nobody panics with the lock").cluster.connect_to(&database(stage))
    }

    /// Kills the server with all its processes, and starts it again.
    fn kill(&self, stage: usize) -> Crash {
        let mut life = self.life.write().expect("nobody panics with the lock");
        life.cluster.kill_all();
        life.cluster.launch();
        let mut client = life.cluster.connect_to(&database(stage));
        // Another task may get the id of one whose push the crash has undone, which the model does not know.
        let skip = "SELECT setval('queue.tasks_id_seq', nextval('queue.tasks_id_seq') + 100)";
        client.batch_execute(skip).expect("skip some ids");
        // Until the base of tokens is published, each claim computes another one.
        eventually("the base of tokens is published", SOON, || {
            let claim = "SELECT token, queue.complete(id, token) FROM queue.claim('1 hour', 'probe')";
            client.execute("SELECT queue.push('probe')", &[]).expect("push");
            let token = client.query_one(claim, &[]).expect("claim").get(0);
            std::mem::replace(&mut life.base, token) == token
        });
        let started = "SELECT pg_postmaster_start_time()::text";
        let at = wal::time(client.query_one(started, &[]).expect("look").get(0));
        let survived = wal::survivors(&mut client, &database(stage), &at);
        Crash { mark: 0, at, survived, base: life.base }
    }

    /// Plays so many worlds, and asks the model about each.
    fn round(&self, first: &mut u64, count: u64, options: &Options) -> Came {
        let (next, end) = (AtomicU64::new(*first), *first + count);
        *first = end;
        let stage = |stage: usize| self.stage(stage, &next, end, options);
        // Only one where the server is killed, because that ends all.
        let stages = if options.crash { 1 } else { STAGES };
        std::thread::scope(|scope| {
            let stages: Vec<_> = (0..stages).map(|number| scope.spawn(move || stage(number))).collect();
            let mut came = Came::default();
            stages.into_iter().for_each(|stage| came.add(stage.join().expect("a stage")));
            came
        })
    }

    /// Plays one world after the other, as long as nothing is left of them.
    fn stage(&self, stage: usize, next: &AtomicU64, end: u64, options: &Options) -> Came {
        let mut sessions: Vec<_> = (0..record::CLIENTS).map(|_| self.connect(stage)).collect();
        let mut traces: Vec<Trace> = Vec::new();
        let (connect, kill) = (|| self.connect(stage), || self.kill(stage));
        while traces.last().is_none_or(|trace| trace.drained) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= end {
                break;
            }
            let base = self.life.read().expect("nobody panics with the lock").base;
            traces.push(record::play(&mut sessions, (&connect, &kill), base, number, options));
        }
        wal::read(&mut self.connect(stage), &database(stage)).hand_out(&mut traces);
        if traces.iter().any(|trace| !trace.drained) {
            self.clean(stage);
        }
        let mut came = Came { worlds: traces.len() as u64, ..Came::default() };
        let started = Instant::now();
        for trace in &traces {
            came.events += trace.events();
            if let Some(crash) = &trace.crash {
                came.kills += 1;
                let before = || trace.clients.iter().flatten().filter(|played| !played.afterwards);
                came.ended += before().filter(|played| played.end == End::Crashed).count();
                let undone = |xid| !crash.survived.contains(&xid);
                let commits = before().filter(|played| played.end == End::Commit);
                came.undone += commits.filter(|played| played.xid.is_some_and(undone)).count();
            }
            match accept::accept(trace, options.phases) {
                Verdict::Accepted(count) => came.states += count,
                Verdict::Rejected(why) => came.rejected.push(why),
                Verdict::Undecided(why) => came.undecided.push(why),
            }
        }
        came.search = started.elapsed();
        came
    }

    /// Deletes what the cases left.
    fn clean(&self, stage: usize) {
        let mut client = self.connect(stage);
        let all = "DELETE FROM queue.tasks; DELETE FROM queue_internal.dependencies; DELETE FROM queue_internal.events; \
                   DELETE FROM queue_internal.outcomes; DELETE FROM queue.dead_letters";
        client.batch_execute(all).expect("a clean slate");
        wal::read(&mut client, &database(stage));
    }
}

impl Came {
    fn add(&mut self, other: Self) {
        self.worlds += other.worlds;
        self.events += other.events;
        self.states += other.states;
        self.search += other.search;
        self.undecided.extend(other.undecided);
        self.rejected.extend(other.rejected);
        self.kills += other.kills;
        self.ended += other.ended;
        self.undone += other.undone;
    }

    /// Reports what came of them; nothing may be wrong.
    fn report(self, options: &Options, started: Instant) {
        let Self { worlds, events, states, search, undecided, rejected, kills, ended, undone } = self;
        println!(
            "{events} events of {worlds} worlds, seed {}, in {:.0} s; {states} states in {:.1} s; {} undecided",
            options.seed,
            started.elapsed().as_secs_f64(),
            search.as_secs_f64(),
            undecided.len(),
        );
        if kills > 0 {
            println!("{kills} kills ended {ended} transactions and undid {undone} that had committed");
        }
        for (verdict, traces) in [("rejected", &rejected), ("undecided", &undecided)] {
            traces.iter().for_each(|trace| println!("{verdict}: {trace}"));
        }
        // On a busy machine more happens at the same time, and now and then a trace has too many orders to try them all.
        let too_many = undecided.len() as u64 * 50 > worlds;
        assert!(
            rejected.is_empty() && !too_many,
            "{} rejected, {} undecided",
            rejected.len(),
            undecided.len()
        );
    }
}

fn database(stage: usize) -> String {
    format!("stage_{stage}")
}

/// Any worlds.
fn options() -> Options {
    Options {
        seed: seed(),
        native: 60,
        patience: SOON,
        phases: THOROUGH,
        shape: "",
        opening: "",
        worker: true,
        crash: false,
        kill_after: None,
        keeps_undone: false,
    }
}

#[test]
fn the_model_accepts_what_the_code_does() {
    is_accepted("traces", wanted(), &options());
}

#[test]
fn the_model_accepts_what_the_code_does_without_a_worker() {
    is_accepted("traces-alone", wanted() / 4, &Options { worker: false, ..options() });
}

fn is_accepted(name: &str, wanted: usize, options: &Options) {
    let server = Server::start(name, options.worker);
    let (mut first, mut total, started) = (0, Came::default(), Instant::now());
    while total.events < wanted && total.rejected.len() + total.undecided.len() < 10 {
        total.add(server.round(&mut first, 60, options));
    }
    total.report(options, started);
}

#[test]
fn the_model_accepts_what_kill_9_leaves() {
    let (server, wanted) = (Server::start("traces-killed", true), (wanted() / 400).clamp(10, 100));
    let options = Options { crash: true, ..options() };
    let (mut first, mut total, started) = (0, Came::default(), Instant::now());
    while total.kills < wanted && total.rejected.len() + total.undecided.len() < 10 {
        total.add(server.round(&mut first, 1, &options));
    }
    total.report(&options, started);
}

#[test]
fn an_acknowledged_end_that_kill_9_undoes_is_done_again() {
    let server = Server::start("traces-undone", true);
    let opening = openings::UNDONE_END.0;
    let kill_after = Some(openings::UNTIL_UNDONE);
    let options = Options { crash: true, opening, kill_after, shape: "plain", ..options() };
    let (mut first, mut total, started) = (0, Came::default(), Instant::now());
    // Now and then the server has written the commit nevertheless.
    while total.undone == 0 && total.kills < 10 && total.rejected.is_empty() {
        total.add(server.round(&mut first, 1, &options));
    }
    assert_ne!(total.undone, 0, "no end is undone in {} kills", total.kills);
    total.report(&options, started);
}
