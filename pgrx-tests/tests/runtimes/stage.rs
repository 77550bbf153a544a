//! A server, a queue for each runtime, and workers on it.

use std::cell::{Cell, Ref, RefCell};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use postgres::Client;
use queue_ext_tests::cluster::{bindir, signal};
use queue_ext_tests::languages::{self, Start};
use queue_ext_tests::{Cluster, Edition, Settings, built, eventually};

/// How long to wait for a worker on a busy machine.
const SOON: Duration = Duration::from_secs(120);

/// A client runtime, and its program.
struct Runtime {
    name: &'static str,
    start: fn(&Path) -> Option<Start>,
    program: &'static str,
    /// It gets this part of the tasks, where they are many: a process for each takes longer.
    part: usize,
}

const RUNTIMES: &[Runtime] = &[
    Runtime { name: "python", start: languages::python_client, program: "python_sync.py", part: 1 },
    Runtime { name: "asyncio", start: languages::python_client, program: "python_asyncio.py", part: 1 },
    Runtime { name: "typescript", start: languages::node_client, program: "typescript.mjs", part: 1 },
    Runtime { name: "queue work", start: queue_work, program: "queue_work.sh", part: 10 },
];

/// The script, which starts the program `queue` that was built beside this test.
fn queue_work(script: &Path) -> Option<Start> {
    let start = languages::bash(script)?;
    let program = built::program();
    let folder = program.parent().expect("its folder").display();
    let path = format!("{folder}:{}:{}", bindir().display(), std::env::var("PATH").expect("PATH"));
    Some(Box::new(move || {
        let mut command = start();
        command.env("PATH", &path);
        command
    }))
}

/// Plays one test with each runtime, one after the other, each on a queue of its own.
pub fn each(server: &str, settings: &Settings, play: impl Fn(&Stage)) {
    each_on(Cluster::start_with(server, settings), Edition::FastPath, play);
}

/// The same with the SQL-only edition.
pub fn each_sql_only(server: &str, play: impl Fn(&Stage)) {
    each_on(Edition::SqlOnly.cluster(server, queue_ext_tests::Worker::On), Edition::SqlOnly, play);
}

fn each_on(cluster: Cluster, edition: Edition, play: impl Fn(&Stage)) {
    edition.install(&cluster, "postgres");
    let effects = "CREATE TABLE effects (task bigint, token bigint, what text, at timestamptz DEFAULT clock_timestamp())";
    cluster.connect().batch_execute(effects).expect("a table for effects");
    let cluster = RefCell::new(cluster);
    // RUNTIME=typescript plays a test with one of them.
    let only = std::env::var("RUNTIME").ok();
    for runtime in RUNTIMES.iter().filter(|runtime| only.as_ref().is_none_or(|only| only == runtime.name)) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runtimes");
        let Some(start) = (runtime.start)(&folder.join(runtime.program)) else {
            println!("{} is skipped: its language is not installed", runtime.name);
            continue;
        };
        let client = RefCell::new(cluster.borrow().connect());
        let port = Cell::new(5432);
        let stage = Stage { name: runtime.name, part: runtime.part, start, port, client, cluster: &cluster };
        stage.execute("SELECT queue.create($1)");
        stage.configure(r#"{"max_attempts": 3, "lease": "10 seconds", "backoff": {"base": "0"}}"#);
        play(&stage);
        // While there is a trigger of the user, no lane shows who waits.
        stage
            .client
            .borrow_mut()
            .batch_execute("DROP FUNCTION IF EXISTS refuse() CASCADE")
            .expect("drop the trigger");
        println!("{}: as promised", runtime.name);
    }
}

/// How a program connects to the database.
pub fn url(cluster: &Cluster, port: u16) -> String {
    format!("postgresql://postgres@/postgres?host={}&port={port}", cluster.folder().display())
}

/// The queue of a runtime. `$1` in its statements is the name of the queue.
pub struct Stage<'a> {
    name: &'static str,
    part: usize,
    start: Start,
    port: Cell<u16>,
    client: RefCell<Client>,
    cluster: &'a RefCell<Cluster>,
}

impl Stage<'_> {
    /// Starts a worker, with more variables for its program.
    pub fn start(&self, more: &[(&str, &str)]) -> Worker<'_> {
        Worker { stage: self, child: self.command(more).spawn().expect("start a worker") }
    }

    /// The same. What it logs is in `log`.
    pub fn start_logged(&self, more: &[(&str, &str)]) -> Worker<'_> {
        let file = File::create(self.log_file()).expect("a file for its log");
        Worker { stage: self, child: self.command(more).stderr(file).spawn().expect("start a worker") }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).expect("its log")
    }

    fn log_file(&self) -> PathBuf {
        self.cluster().folder().join(format!("{}.log", self.name))
    }

    fn command(&self, more: &[(&str, &str)]) -> Command {
        let mut command = (self.start)();
        command
            .env("DATABASE_URL", url(&self.cluster.borrow(), self.port.get()))
            .envs([("QUEUE", self.name), ("NAME", self.name), ("CONCURRENCY", "100")])
            .envs([("HEARTBEAT", "0.5"), ("SHUTDOWN", "10")])
            .envs(more.iter().copied())
            .stdin(Stdio::null());
        command
    }

    /// Workers from now on connect to this port.
    pub fn connect_through(&self, port: u16) {
        self.port.set(port);
    }

    pub fn cluster(&self) -> Ref<'_, Cluster> {
        self.cluster.borrow()
    }

    pub fn stop_server(&self) {
        self.cluster.borrow_mut().stop("fast");
    }

    pub fn crash_server(&self) {
        self.cluster.borrow_mut().kill_all();
    }

    pub fn start_server(&self) {
        let mut cluster = self.cluster.borrow_mut();
        cluster.launch();
        cluster.await_worker("postgres");
        *self.client.borrow_mut() = cluster.connect();
    }

    pub fn configure(&self, options: &str) {
        self.execute(&format!("SELECT queue.configure($1, '{options}')"));
    }

    pub fn push(&self, count: usize, kind: &str, payload: &str) {
        self.execute(&format!(
            "SELECT count(*) FROM queue.push_many($1, array_fill('{payload}'::jsonb, '{{{count}}}'), kind => '{kind}')"
        ));
    }

    /// Many tasks, or as many as the runtime can take.
    pub fn scaled(&self, count: usize) -> usize {
        count / self.part
    }

    pub fn execute(&self, statement: &str) {
        let done = self.client.borrow_mut().execute(statement, &[&self.name]);
        done.unwrap_or_else(|error| panic!("{}: {statement}: {error:?}", self.name));
    }

    /// The number that a query returns.
    pub fn ask(&self, query: &str) -> i64 {
        let query = format!("SELECT coalesce(({query})::bigint, 0)");
        let row = self.client.borrow_mut().query_one(&query, &[&self.name]);
        row.unwrap_or_else(|error| panic!("{}: {query}: {error:?}", self.name)).get(0)
    }

    /// How many effects of this kind there are.
    pub fn count(&self, what: &str) -> i64 {
        self.ask(&format!(
            "SELECT count(*) FROM effects AS e JOIN queue.all_tasks AS t ON t.id = e.task
             WHERE t.queue = $1 AND e.what = '{what}'"
        ))
    }

    /// Has a trigger of the user's raise an error with the payload in its message, when the members `at` and `code` of a payload
    /// are this event and a SQLSTATE.
    pub fn refuse(&self) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runtimes/refuse.sql");
        let statements = std::fs::read_to_string(file).expect("the trigger");
        self.client.borrow_mut().batch_execute(&statements).expect("create the trigger");
    }

    /// Makes the trigger raise no more errors.
    pub fn accept(&self) {
        let nothing = "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$";
        self.client.borrow_mut().batch_execute(nothing).expect("replace the function");
    }

    /// How many tasks have not ended.
    pub fn live(&self) -> i64 {
        self.ask("SELECT count(*) FROM queue.tasks WHERE queue = $1")
    }

    pub fn running(&self) -> i64 {
        self.ask("SELECT count(*) FROM queue.tasks WHERE queue = $1 AND state = 'running'")
    }

    /// How many tasks were completed.
    pub fn ended(&self) -> i64 {
        self.ask("SELECT count(*) FROM queue.history WHERE queue = $1 AND state = 'completed'")
    }

    /// How many workers wait for a task.
    pub fn waiting(&self) -> i64 {
        self.ask("SELECT sum(waiting) FROM queue.workers WHERE queue = $1")
    }

    pub fn eventually(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        eventually(&format!("{what} ({})", self.name), SOON, || condition(self));
    }

    /// Waits until no task is left, and checks that each was completed.
    pub fn drained(&self) {
        self.eventually("all have ended", |stage| stage.live() == 0);
        assert_eq!(self.ask("SELECT count(*) FROM queue.dead_letters WHERE queue = $1"), 0, "{}", self.name);
    }
}

/// A running worker, killed with this value.
pub struct Worker<'a> {
    stage: &'a Stage<'a>,
    child: Child,
}

impl Worker<'_> {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("it is gone");
    }

    /// Asks it to end, and waits until it has, without an error.
    pub fn stop(self) {
        signal(self.pid(), libc::SIGTERM);
        self.ended();
    }

    /// Waits until it has ended without an error.
    pub fn ended(self) {
        let status = self.exited();
        assert!(status.success(), "{status:?}");
    }

    /// Waits until it has killed itself.
    pub fn killed_itself(self) {
        assert_eq!(self.exited().signal(), Some(libc::SIGKILL));
    }

    fn exited(mut self) -> ExitStatus {
        let mut status = None;
        eventually(&format!("the worker ends ({})", self.stage.name), SOON, || {
            status = self.child.try_wait().expect("wait");
            status.is_some()
        });
        status.expect("its status")
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
