//! The editions and ways to install them: the extension with its fast path, without it, and without preloading, and
//! the SQL-only edition, also in the form for YugabyteDB. The same suites run on each and record the results
//! (`pgrx-tests/summary`).

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cluster::{Cluster, Settings, major_version};
use crate::{brief, run};

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Edition {
    /// The extension as it is meant to be.
    FastPath,
    /// The extension with `queue.fast_path = off`.
    Core,
    /// The extension without its library in `shared_preload_libraries`.
    NoPreload,
    /// The output of `make portable`.
    SqlOnly,
    /// The output of `make yugabyte`.
    Yugabyte,
}

/// Whether the extension's worker may run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Worker {
    /// It may.
    On,
    /// For tests that inspect rows which maintenance would delete.
    Off,
}

/// A role without any attribute, which owns the databases that have the SQL-only edition.
pub const OWNER: &str = "keeper";

impl Edition {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::FastPath, Self::Core, Self::NoPreload, Self::SqlOnly, Self::Yugabyte];

    /// Those whose implementations differ; one of them if only the brief form of tests is to run.
    pub fn different() -> &'static [Self] {
        if brief() { &[Self::FastPath] } else { &[Self::FastPath, Self::Core, Self::SqlOnly] }
    }

    /// Its name in the table of results, and in the names of folders.
    pub fn name(self) -> &'static str {
        match self {
            Self::FastPath => "fast-path",
            Self::Core => "core",
            Self::NoPreload => "no-preload",
            Self::SqlOnly => "sql-only",
            Self::Yugabyte => "yugabyte",
        }
    }

    /// A fresh, running server for it, with nothing installed in its databases.
    pub fn cluster(self, name: &str, worker: Worker) -> Cluster {
        let extra = match (self, worker) {
            (Self::FastPath, Worker::On) | (Self::NoPreload | Self::SqlOnly | Self::Yugabyte, _) => "",
            (Self::FastPath, Worker::Off) => "queue.worker_enabled = off",
            (Self::Core, Worker::On) => "queue.fast_path = off",
            (Self::Core, Worker::Off) => "queue.worker_enabled = off\nqueue.fast_path = off",
        };
        let preload = matches!(self, Self::FastPath | Self::Core);
        Cluster::start_with(&format!("{name}-{}", self.name()), &Settings { preload, extra })
    }

    /// A server with it, whose background worker sweeps so often. Without a worker, queue.maintain() does.
    pub fn sweeping_cluster(self, name: &str, worker: Worker, interval: Duration) -> Cluster {
        let cluster = self.cluster(name, worker);
        if self != Self::SqlOnly {
            let mut client = cluster.connect();
            run(&mut client, &format!("ALTER SYSTEM SET queue.sweep_interval = '{}s'", interval.as_secs()));
            run(&mut client, "SELECT pg_reload_conf()");
        }
        self.install(&cluster, "postgres");
        cluster
    }

    /// The file that installs it, where it is no extension.
    pub fn script(self) -> Option<PathBuf> {
        let name = match self {
            Self::FastPath | Self::Core | Self::NoPreload => return None,
            Self::SqlOnly => "portable",
            Self::Yugabyte => "yugabyte",
        };
        Some(target().join(format!("queue_ext-{name}--{}.sql", env!("CARGO_PKG_VERSION"))))
    }

    /// Installs it into a database.
    pub fn install(self, cluster: &Cluster, database: &str) {
        let mut client = cluster.connect_to(database);
        if let Some(script) = self.script() {
            let script =
                fs::read_to_string(script).expect("read the script that \"make portable yugabyte\" makes");
            let owned = format!(
                "DO $$ BEGIN CREATE ROLE {OWNER} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
                 ALTER DATABASE \"{database}\" OWNER TO {OWNER}"
            );
            client.batch_execute(&owned).expect("a plain role to own the database");
            client = cluster.config(database).user(OWNER).connect(postgres::NoTls).expect("connect");
            client.batch_execute(&script).expect("install the edition");
        } else {
            client.batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
        }
    }

    /// Gives all tasks one order, for scripts that show ids and the order of claims: on YugabyteDB the order holds
    /// only within a bucket, and each session takes a hundred ids at a time.
    pub fn keep_order(self, cluster: &Cluster, database: &str) {
        if self == Self::Yugabyte {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("regress/one-bucket.sql");
            let script = fs::read_to_string(path).expect("read one-bucket.sql");
            cluster.connect_to(database).batch_execute(&script).expect("one bucket");
        }
    }

    /// Notes that a suite runs on it; how it went is noted when the value goes.
    pub fn begin(self, suite: &'static str) -> Run {
        Run { suite, edition: self }
    }
}

/// A suite that runs on an edition.
pub struct Run {
    suite: &'static str,
    edition: Edition,
}

impl Drop for Run {
    fn drop(&mut self) {
        let outcome = if std::thread::panicking() { "failed" } else { "ok" };
        let line = format!("{}\t{}\t{}\t{outcome}\n", self.suite, self.edition.name(), major_version());
        let path = target().join(format!("results/{}.editions", major_version()));
        // The folder may be missing if cargo test is run directly.
        if let Ok(mut file) = fs::OpenOptions::new().create(true).append(true).open(path) {
            let _ = file.write_all(line.as_bytes());
        }
    }
}

/// The folder for the files that `make` writes.
pub fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target")
}
