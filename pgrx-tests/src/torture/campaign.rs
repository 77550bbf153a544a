//! A campaign: rounds of load, faults, recovery, drain and checks, from a seed.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::campaigns::soak::Samples;
use super::checker::{self, Counts, Lease, Log, Violation};
use super::client::{Client, Target};
use super::load::{Load, SETUP};
use super::random::Random;
use super::scene::Scene;
use super::{account, batches, drain, observer, waiting};
use crate::cluster::{bindir, major_version, run_folder};
use crate::{Cluster, Settings};

/// How violations are shown at most.
const SHOWN: usize = 20;

/// The faults of a campaign, and its load.
#[derive(Clone)]
pub struct Campaign {
    pub name: &'static str,
    /// What the campaign breaks, for its report.
    pub covers: &'static str,
    /// Lines for postgresql.conf.
    pub settings: &'static str,
    /// Whether leases survive a crash.
    pub durable_leases: bool,
    /// More arguments for initdb.
    pub initdb: &'static [&'static str],
    pub load: Load,
    /// Milliseconds between faults, at least and at most.
    pub pause: (u64, u64),
    /// Something breaks. When this returns, the server is there again.
    pub fault: fn(&mut Scene),
    /// Called before the clients of a round start, and when they have to stop.
    pub before: fn(&mut Scene),
    pub after: fn(&mut Scene),
    /// Whether it is there to lose something.
    pub lossy: bool,
}

/// What all campaigns share.
pub const COMMON: &str = "
queue.sweep_interval = '1h'
queue.history_retention = -1
max_prepared_transactions = 200
deadlock_timeout = 100ms
restart_after_crash = on
log_line_prefix = '%m [%p] %b %e '
";

/// The result of a campaign.
pub struct Verdict {
    pub campaign: &'static str,
    pub seed: u64,
    pub rounds: u64,
    pub faults: BTreeMap<String, u64>,
    pub counts: Counts,
    pub looks: u64,
    pub recoveries: Vec<Duration>,
    pub drains: Vec<Duration>,
    pub remarks: Vec<String>,
    pub violations: Vec<Violation>,
}

/// How long, and how.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    pub length: Duration,
    /// How long the clients of one round work.
    pub round: Duration,
    pub fsync: bool,
    /// The folder of the server, below $QUEUE_EXT_HOME/run.
    pub folder: String,
    /// The program that runs a client in a process of its own: bin/torture.
    pub program: PathBuf,
    /// More lines for postgresql.conf.
    pub settings: String,
    /// SQL that is run after the queues were created: a mutant.
    pub mutant: String,
}

fn nothing(_: &mut Scene) {}

/// For initdb: databases in an encoding in which the names of queues, keys and groups are not UTF-8.
pub const LATIN1: &[&str] = &["-E", "LATIN1", "--locale=C"];

impl Campaign {
    /// The defaults of a campaign: nothing breaks.
    pub const PLAIN: Self = Self {
        name: "",
        covers: "",
        settings: "",
        durable_leases: false,
        initdb: &[],
        load: Load::MIXED,
        pause: (1000, 1000),
        fault: nothing,
        before: nothing,
        after: nothing,
        lossy: false,
    };

    /// Plays rounds until the time is over, or until something is broken.
    pub fn play(&self, options: &Options) -> Verdict {
        println!("campaign {} ({})", self.name, self.covers);
        println!("  {options:?}");
        println!("  {} pause={:?}", self.load, self.pause);
        println!("  {}", self.settings.split_whitespace().collect::<Vec<_>>().join(" "));
        let folder = run_folder(&options.folder);
        let mut scene = self.stage(options, &folder);
        let mut verdict = Verdict {
            campaign: self.name,
            seed: options.seed,
            rounds: 0,
            faults: BTreeMap::new(),
            counts: Counts::default(),
            looks: 0,
            recoveries: Vec::new(),
            drains: Vec::new(),
            remarks: Vec::new(),
            violations: Vec::new(),
        };
        let (started, mut log) = (Instant::now(), Log::default());
        let goes_on = |rounds| rounds == 0 || started.elapsed() < options.length && !interrupted();
        while verdict.violations.is_empty() && goes_on(verdict.rounds) {
            verdict.rounds += 1;
            scene.random = Random::new(options.seed, verdict.rounds);
            self.round(&mut scene, options, &mut verdict);
            let alarms = log.alarms(&scene.cluster).into_iter();
            let alarms = alarms.filter(|line| !scene.forgiven.iter().any(|sign| line.contains(sign)));
            verdict.violations.extend(alarms.map(|what| Violation { invariant: "I15", what }));
            let complaints = std::mem::take(&mut scene.complaints);
            verdict
                .violations
                .extend(complaints.into_iter().map(|what| Violation { invariant: "demand", what }));
        }
        verdict.faults = std::mem::take(&mut scene.faults);
        verdict.recoveries = std::mem::take(&mut scene.recoveries);
        verdict.remarks = std::mem::take(&mut scene.remarks);
        if !verdict.violations.is_empty() && options.mutant.is_empty() {
            scene.cluster.keep();
            let (server, journals) = (scene.cluster.folder().display(), scene.journals.display());
            println!("  the server and the journals stay in {server} and {journals}");
        }
        if verdict.violations.is_empty() {
            let _ = std::fs::remove_dir_all(&scene.journals);
        }
        println!("{verdict}");
        verdict
    }

    fn stage(&self, options: &Options, folder: &Path) -> Scene {
        let fsync = if options.fsync { "on" } else { "off" };
        let durable = if self.durable_leases { "on" } else { "auto" };
        let extra = format!(
            "{COMMON}fsync = {fsync}\nqueue.durable_leases = {durable}\n{}\n{}",
            self.settings, options.settings
        );
        // Settings are constants elsewhere; one string for each campaign may stay.
        let settings = Settings { preload: true, extra: extra.leak() };
        let mut cluster = if self.initdb.is_empty() {
            Cluster::create_installed(folder, &settings)
        } else {
            Cluster::create_of(&bindir(), folder, &settings, self.initdb)
        };
        if major_version() < 18 {
            cluster.run("pg_checksums", &["--enable", "--no-sync", "-D", &cluster.data()]);
        }
        cluster.launch();
        let mut client = cluster.connect();
        client.batch_execute("CREATE EXTENSION IF NOT EXISTS queue_ext").expect("CREATE EXTENSION");
        client.batch_execute(SETUP).expect("create the queues");
        client.batch_execute(&options.mutant).expect("break something");
        cluster.await_worker("postgres");
        let target = Target::new(cluster.config("postgres"));
        Scene {
            cluster,
            standby: None,
            operator: None,
            target,
            seed: options.seed,
            random: Random::new(options.seed, 0),
            program: options.program.clone(),
            processes: Vec::new(),
            processes_started: 0,
            faults: BTreeMap::new(),
            recoveries: Vec::new(),
            journals: folder.with_extension("journals"),
            disks: Vec::new(),
            samples: Samples::default(),
            clock: None,
            ahead: 0,
            furthest: 0,
            forgiven: &[],
            crashes: Vec::new(),
            complaints: Vec::new(),
            remarks: Vec::new(),
        }
    }

    fn round(&self, scene: &mut Scene, options: &Options, verdict: &mut Verdict) {
        let journals = scene.journals.clone();
        let _ = std::fs::remove_dir_all(&journals);
        std::fs::create_dir_all(&journals).expect("create the journals' folder");
        scene.target = Target::new(scene.cluster.config("postgres"));
        (self.before)(scene);
        let clients = self.clients(scene, options.seed, verdict.rounds);
        let observer = std::thread::spawn({
            let target = scene.target.clone();
            let strict = self.load.strict > 0;
            move || observer::observe(&target, strict)
        });
        // Other sessions may wait for prepared transactions, so they are ended all the time.
        let mut random = Random::new(options.seed, 3_000_000 + verdict.rounds);
        let target = scene.target.clone();
        let resolver = std::thread::spawn(move || drain::end_prepared(&target, &journals, &mut random));
        let started = Instant::now();
        loop {
            let pause = Duration::from_millis(scene.random.between(self.pause.0, self.pause.1));
            std::thread::sleep(pause.min(options.round.saturating_sub(started.elapsed())));
            if started.elapsed() >= options.round || interrupted() {
                break;
            }
            (self.fault)(scene);
        }
        scene.target.stop();
        // First the faults of clients end, because other sessions may wait for one of them.
        (self.after)(scene);
        clients.into_iter().for_each(|client| client.join().expect("a client"));
        scene.target.finish();
        resolver.join().expect("the resolver");
        let observed = observer.join().expect("the observer");
        verdict.violations.extend(observed.violations);
        verdict.looks += observed.looks;
        self.account(scene, verdict, &observed.leases);
    }

    fn clients(&self, scene: &Scene, seed: u64, round: u64) -> Vec<JoinHandle<()>> {
        (0..self.load.clients)
            .map(|number| {
                let random = Random::new(seed, round * 1000 + number + 1);
                let name = format!("r{round}ç{number}");
                let target = scene.target.clone();
                let mut client = Client::new(target, self.load.clone(), &scene.journals, &name, random);
                std::thread::spawn(move || client.run())
            })
            .collect()
    }

    fn account(&self, scene: &mut Scene, verdict: &mut Verdict, leases: &HashSet<Lease>) {
        let mut client = scene.cluster.connect();
        let mut say = |invariant, what| verdict.violations.push(Violation { invariant, what });
        checker::wrong_stats(&mut client).into_iter().for_each(|what| say("I10", what));
        if let Err(error) =
            batches::seal_all(&mut client, &scene.journals, &format!("r{}seal", verdict.rounds))
        {
            say("I19", format!("a batch cannot be sealed: {error:?}"));
        }
        let strict = self.load.strict > 0;
        match waiting::unannounced(&mut client, strict) {
            Ok(found) => found.into_iter().for_each(|what| say("I17", what)),
            Err(error) => say("I17", format!("{error:?}")),
        }
        let name = format!("r{}", verdict.rounds);
        match drain::drain(&scene.target, &scene.journals, &name, strict) {
            Ok(drained) => {
                verdict.drains.push(drained.took);
                verdict.counts.left_to_the_sweep += drained.left_to_the_sweep;
            }
            Err(what) => say("I13", what),
        }
        waiting::left_behind(&mut client).into_iter().for_each(|what| say("I17", what));
        checker::wrong_stats(&mut client).into_iter().for_each(|what| say("I10", what));
        checker::corruption(&mut client).into_iter().for_each(|what| say("I14", what));
        checker::damaged_pages(&mut client).into_iter().for_each(|what| say("I14", what));
        let mut account = account::read(&scene.journals);
        account.lose(&std::mem::take(&mut scene.crashes), self.durable_leases);
        let (violations, counts) =
            checker::check(&account, &checker::found(&mut client), leases, scene.clock.is_none());
        let expected = |violation: &Violation| self.lossy && violation.invariant == "I1";
        verdict.violations.extend(violations.into_iter().filter(|violation| !expected(violation)));
        verdict.counts += counts;
        if verdict.violations.is_empty() {
            // A crash in the next round must not bring these back.
            client
                .batch_execute(
                    "SET LOCAL synchronous_commit = on; DELETE FROM queue.history; DELETE FROM queue.dead_letters; DELETE FROM queue_internal.keys; \
                     DELETE FROM queue_internal.outcomes; DELETE FROM queue_internal.steps; \
                     DELETE FROM queue_internal.awaits; DELETE FROM queue_internal.emitted; \
                     DELETE FROM public.orders",
                )
                .expect("a clean slate");
        }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.acknowledged += other.acknowledged;
        self.unknown += other.unknown;
        self.pushes += other.pushes;
        self.claims += other.claims;
        self.completions += other.completions;
        self.cut_short += other.cut_short;
        self.leases_seen += other.leases_seen;
        self.recovered += other.recovered;
        self.lost += other.lost;
        self.left_to_the_sweep += other.left_to_the_sweep;
        self.forgotten += other.forgotten;
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { campaign, seed, rounds, counts, .. } = self;
        let faults: u64 = self.faults.values().sum();
        writeln!(f, "{campaign}: {rounds} rounds, {faults} faults {:?}, seed {seed}", self.faults)?;
        writeln!(f, "  {counts:?} and {} looks", self.looks)?;
        for (what, times) in
            [("from the fault to a claim", &self.recoveries), ("drained after", &self.drains)]
        {
            let mut sorted = times.clone();
            sorted.sort();
            if let (Some(median), Some(most)) = (sorted.get(sorted.len() / 2), sorted.last()) {
                writeln!(f, "  {what}: median {median:.1?}, at most {most:.1?}")?;
            }
        }
        self.remarks.iter().try_for_each(|remark| writeln!(f, "  {remark}"))?;
        for violation in self.violations.iter().take(SHOWN) {
            writeln!(f, "  {violation}")?;
        }
        match (self.violations.len(), faults.max(*rounds)) {
            (0, cycles) => write!(
                f,
                "  no violation: with 95 % confidence fewer than one in {:.0} faults leads to one",
                cycles as f64 / 3.0
            ),
            (count, _) => write!(f, "  {count} VIOLATIONS; to repeat: TORTURE={campaign} SEED={seed}"),
        }
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on the first SIGINT or SIGTERM ends the load; what was done is checked, and the servers are stopped. The
/// second one ends the program.
pub fn end_gracefully() {
    extern "C" fn note(_signal: i32) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the handler only writes to an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
        for signal in [libc::SIGINT, libc::SIGTERM] {
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Whether it has to end.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// One client of a campaign in a process of its own, until that is killed.
pub fn run_client(campaign: &Campaign, server: &Path, journals: &Path, name: &str, [seed, stream]: [u64; 2]) {
    let mut config = postgres::Config::new();
    config.host_path(server).user("postgres").dbname("postgres");
    let random = Random::new(seed, stream);
    Client::new(Target::new(config), campaign.load.clone(), journals, name, random).run();
}
