//! A temporary Postgres server: a copy of a data directory made by initdb, reached through a Unix socket, deleted at
//! the end.
//!
//! It runs the server of PG_CONFIG. Postgres refuses to run as root, so root starts it as `postgres`, or as `nobody`
//! if that user does not exist.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use postgres::{Client, NoTls};

use crate::clock::FakeClock;
use crate::stalls;
use crate::wait::{SOON, eventually};

/// How long a server may take to start, recovery included.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How a server is set up.
pub struct Settings {
    /// Whether the library is in shared_preload_libraries.
    pub preload: bool,
    /// More lines for postgresql.conf.
    pub extra: &'static str,
}

impl Default for Settings {
    fn default() -> Self {
        Self { preload: true, extra: "" }
    }
}

/// A server and its files.
pub struct Cluster {
    folder: PathBuf,
    /// Where the server's programs are.
    programs: PathBuf,
    postmaster: Option<Child>,
    keep: bool,
    clock: Option<FakeClock>,
    /// The folder, locked, so that another run of the tests does not take it.
    _lock: Option<fs::File>,
}

impl Cluster {
    /// A fresh, running server with the extension in the database `postgres`.
    pub fn start(name: &str) -> Self {
        let mut cluster = Self::installed(name, &Settings::default());
        cluster.await_worker("postgres");
        cluster
    }

    /// The same with these settings.
    pub fn installed(name: &str, settings: &Settings) -> Self {
        let mut cluster = Self::create_installed(&run_folder(name), settings);
        cluster.launch();
        cluster
    }

    /// As `create`, with the extension in the database `postgres`.
    pub fn create_installed(folder: &Path, settings: &Settings) -> Self {
        Self::copy_of(&Self::template_with_extension(), folder, &bindir(), settings)
    }

    /// A fresh, running server without the extension.
    pub fn start_with(name: &str, settings: &Settings) -> Self {
        let mut cluster = Self::create(&run_folder(name), settings);
        cluster.launch();
        cluster
    }

    /// A fresh server that is not running yet, in the folder given.
    pub fn create(folder: &Path, settings: &Settings) -> Self {
        Self::create_of(&bindir(), folder, settings, &[])
    }

    /// The same by other programs than those of PG_CONFIG, and with more arguments for initdb.
    pub fn create_of(programs: &Path, folder: &Path, settings: &Settings, more: &[&str]) -> Self {
        if more.is_empty() {
            return Self::copy_of(&Self::template(programs), folder, programs, settings);
        }
        let cluster = Self::in_place(folder, programs);
        cluster.initdb(more);
        cluster.configured(settings)
    }

    /// A server that is not running yet, on a copy of a data directory.
    fn copy_of(data: &Path, folder: &Path, programs: &Path, settings: &Settings) -> Self {
        let cluster = Self::in_place(folder, programs);
        cluster.run("/bin/cp", &["-a", data.to_str().expect("a plain path"), &cluster.data()]);
        cluster.configured(settings)
    }

    /// Writes its settings. Of those that the file has already, the last ones count.
    fn configured(self, settings: &Settings) -> Self {
        let preload = if settings.preload { "queue_ext" } else { "" };
        let lines = format!(
            "\nlisten_addresses = ''\nunix_socket_directories = '{}'\nshared_preload_libraries = '{preload}'\n\
             fsync = off\njit = off\n\
             dynamic_shared_memory_type = mmap\nmax_connections = 200\nlog_line_prefix = '%m [%p] %b '\n{}\n",
            self.folder.display(),
            settings.extra,
        );
        let path = self.folder.join("data/postgresql.conf");
        let conf = fs::read_to_string(&path).expect("read postgresql.conf");
        fs::write(&path, conf + &lines).expect("write postgresql.conf");
        self
    }

    fn initdb(&self, more: &[&str]) {
        let data = self.data();
        let usual = ["-D", &data, "-U", "postgres", "-A", "trust", "-E", "UTF8"];
        self.run("initdb", &[&usual[..], &["--locale=C.UTF-8", "--no-sync"], more].concat());
    }

    /// The data directory that servers of these programs are copied from, since initdb takes a processor longer than most
    /// tests do. The first test that needs it makes it.
    fn template(programs: &Path) -> PathBuf {
        // By where the programs really are: a test's copy of an installation is one of another version the next time.
        let initdb = fs::canonicalize(programs.join("initdb")).expect("initdb");
        let programs = initdb.parent().expect("a folder");
        let name = format!("template{}", programs.display().to_string().replace('/', "-"));
        Self::template_named(&name, |folder| {
            let fresh = Self::in_place(folder, programs);
            fresh.initdb(&[]);
            fresh
        })
    }

    /// The same with the extension that is installed now.
    fn template_with_extension() -> PathBuf {
        let script = format!("extension/queue_ext--{}.sql", env!("CARGO_PKG_VERSION"));
        let script =
            fs::read(Path::new(&pg_config("--sharedir")).join(script)).expect("read the extension's script");
        let mut hasher = DefaultHasher::new();
        script.hash(&mut hasher);
        Self::template_named(&format!("template-{:x}", hasher.finish()), |folder| {
            // Without the library, so that no worker changes anything.
            let settings = Settings { preload: false, extra: "" };
            let mut fresh = Self::create_of(&bindir(), folder, &settings, &[]);
            fresh.launch();
            fresh.connect().batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
            fresh.stop("fast");
            fresh
        })
    }

    fn template_named(name: &str, make: impl FnOnce(&Path) -> Self) -> PathBuf {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let folder = run_folder(name);
        let template = folder.join("data");
        if !template.exists() {
            let attempt = format!("{name}-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
            let mut fresh = make(&run_folder(attempt));
            // Only one can move it there; another one's is as good.
            fresh.keep = fs::rename(fresh.folder(), &folder).is_ok();
        }
        template
    }

    /// An empty folder for a server. One that was kept there, or left behind, is stopped first: it would
    /// later take away the socket of the new one.
    fn in_place(folder: &Path, programs: &Path) -> Self {
        stalls::watch();
        fs::create_dir_all(folder).expect("create the cluster's folder");
        let lock = fs::File::open(folder).expect("open the cluster's folder");
        // SAFETY: the file is open.
        let free = unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
        assert!(
            free,
            "another run of the tests uses {}: wait until it ends, or set QUEUE_EXT_HOME to another folder",
            folder.display()
        );
        let (folder, programs) = (folder.to_owned(), programs.to_owned());
        let cluster =
            Self { folder, programs, postmaster: None, keep: false, clock: None, _lock: Some(lock) };
        let folder = cluster.folder();
        cluster.stop_at_once();
        for entry in fs::read_dir(folder).expect("read the cluster's folder").flatten() {
            let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
        give_away(folder);
        cluster
    }

    /// A copy of this running server that follows it.
    pub fn standby(&self, name: &str) -> Self {
        let folder = run_folder(name);
        let mut standby = Self::in_place(&folder, &self.programs);
        let data = standby.data();
        let source = self.folder.to_str().expect("a plain path");
        standby
            .run("pg_basebackup", &["-h", source, "-U", "postgres", "-D", &data, "-c", "fast", "--no-sync"]);
        standby.follow(self);
        standby
    }

    /// Promotes this standby. Waits outside of the server, where recovery could cancel a statement that waits.
    pub fn promote(&self) {
        let mut client = self.connect();
        client.batch_execute("SELECT pg_promote(wait => false)").expect("promote");
        eventually("the standby is promoted", SOON, || {
            let recovers = client.query_one("SELECT pg_is_in_recovery()", &[]);
            recovers.is_ok_and(|row| !row.get::<_, bool>(0))
        });
    }

    /// This server was killed, and another one was promoted: rewinds it to the new timeline and makes it a standby of
    /// the other.
    pub fn rewind(&mut self, source: &Self) {
        // Before PostgreSQL 16 pg_rewind asks the control file which timeline the other one is on.
        source.connect().batch_execute("CHECKPOINT").expect("CHECKPOINT");
        let from = format!("host={} user=postgres dbname=postgres", source.folder.display());
        self.run("pg_rewind", &["-D", &self.data(), "--source-server", &from, "--no-sync"]);
        self.follow(source);
    }

    /// Starts a copy of another server as its standby. Settings made by ALTER SYSTEM are not copied.
    fn follow(&mut self, source: &Self) {
        let lines = format!(
            "unix_socket_directories = '{}'\nprimary_conninfo = 'host={} user=postgres'\n",
            self.folder.display(),
            source.folder.display(),
        );
        for (name, text) in [("postgresql.auto.conf", lines.as_str()), ("standby.signal", "")] {
            let path = self.folder.join("data").join(name);
            fs::write(&path, text).expect("write into the data directory");
            give_away(&path);
        }
        self.launch();
    }

    /// The cluster in a folder where [`Cluster::create`] made one before.
    pub fn existing(folder: &Path) -> Option<Self> {
        let there = folder.join("data/PG_VERSION").exists();
        there.then(|| Self {
            folder: folder.to_owned(),
            programs: bindir(),
            postmaster: None,
            keep: true,
            clock: None,
            _lock: None,
        })
    }

    /// Starts the server, and waits until it accepts connections. It has no controlling terminal, and may outlive
    /// this process.
    pub fn launch(&mut self) {
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.log_path()).expect("open the log");
        let mut started: Option<Child> = None;
        eventually("the server takes connections", START_LIMIT, || {
            // After kill -9 the old server's children may still be around for a moment, and a new
            // one refuses to start.
            let running = started.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
            if !running {
                let log = log.try_clone().expect("a file handle");
                let mut command = self.command("postgres");
                self.clock.iter().for_each(|clock| clock.wind(&mut command));
                let child = command
                    .args(["-D", &self.data()])
                    // Errors must be the same where an administrator has set this.
                    .env("RUST_BACKTRACE", "1")
                    .process_group(0)
                    .stdin(Stdio::null())
                    .stdout(log.try_clone().expect("a file handle"))
                    .stderr(log)
                    .spawn()
                    .expect("start postgres");
                started = Some(child);
            }
            self.try_connect("postgres").is_some()
        });
        self.postmaster = started;
    }

    /// From its next start on, the server uses a clock that can be set. Returns nothing if that is not possible.
    pub fn with_fake_clock(&mut self) -> FakeClock {
        self.clock.insert(FakeClock::new(&self.folder)).clone()
    }

    /// Whether the server takes connections; one that has ended is started first.
    pub fn is_up_or_launched(&mut self) -> bool {
        let ended = self.postmaster.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
        if ended {
            self.launch();
        }
        self.try_connect("postgres").is_some()
    }

    /// A connection to the database `postgres`.
    pub fn connect(&self) -> Client {
        self.connect_to("postgres")
    }

    /// A connection to a database.
    pub fn connect_to(&self, database: &str) -> Client {
        let mut refusal = None;
        let started = std::time::Instant::now();
        while stalls::since(started) < SOON {
            match self.config(database).connect(NoTls) {
                Ok(client) => return client,
                Err(error) => refusal = Some(error),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("no connection within {SOON:?}: {refusal:?}");
    }

    /// A connection, if one can be had now.
    pub fn try_connect(&self, database: &str) -> Option<Client> {
        self.config(database).connect(NoTls).ok()
    }

    /// How to connect to a database.
    pub fn config(&self, database: &str) -> postgres::Config {
        let mut config = postgres::Config::new();
        config.host_path(&self.folder).user("postgres").dbname(database);
        config
    }

    /// The folder of the server's socket and files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The server's log. Messages are in the encoding of their database.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    /// Waits until the worker of a database is there, and returns its process id.
    pub fn await_worker(&mut self, database: &str) -> i32 {
        let mut client = self.connect();
        let mut pid = 0;
        eventually("the worker is there", SOON, || {
            let query = "SELECT pid FROM pg_stat_activity \
                         WHERE backend_type = 'queue_ext worker' AND datname = $1 AND wait_event IS NOT NULL";
            pid = client.query_opt(query, &[&database]).ok().flatten().map_or(0, |row| row.get(0));
            pid != 0
        });
        pid
    }

    /// Stops the server in a mode of pg_ctl: "smart", "fast" or "immediate".
    pub fn stop(&mut self, mode: &str) {
        self.run("pg_ctl", &["-D", &self.data(), "-m", mode, "-w", "stop"]);
        if let Some(mut child) = self.postmaster.take() {
            let _ = child.wait();
        }
    }

    /// Stops the server of this folder, if one runs. After a crash postmaster.pid has the number of a process that has ended,
    /// and the system may have given the number to another server, which pg_ctl would stop. So this asks for the process in
    /// that folder.
    fn stop_at_once(&self) {
        let data = self.data();
        let file = fs::read_to_string(format!("{data}/postmaster.pid")).unwrap_or_default();
        let folder_of = |pid: &str| fs::read_link(format!("/proc/{pid}/cwd")).ok();
        if file.lines().next().is_some_and(|pid| folder_of(pid) == fs::canonicalize(&data).ok()) {
            let _ = self.command("pg_ctl").args(["-D", &data, "-m", "immediate", "stop"]).output();
        }
    }

    /// Asks the server to stop once all its clients have left, and does not wait for that.
    pub fn begin_smart_stop(&self) {
        if let Some(postmaster) = &self.postmaster {
            signal(postmaster.id() as i32, libc::SIGTERM);
        }
    }

    /// kill -9 for the postmaster alone; its children notice by themselves.
    pub fn kill_postmaster(&mut self) {
        if let Some(mut child) = self.postmaster.take() {
            child.kill().expect("kill the postmaster");
            let _ = child.wait();
        }
    }

    /// Sends kill -9 to the postmaster and all its children at once, as if the machine stopped, except that the
    /// kernel keeps what was written.
    pub fn kill_all(&mut self) {
        let Some(postmaster) = &self.postmaster else { return };
        // Stopped, so that it neither starts more of them nor does anything about those that die.
        signal(postmaster.id() as i32, libc::SIGSTOP);
        let parent = postmaster.id();
        // As long as one of them has the shared memory, no program touches the data. One that a list misses would wait for ever
        // for a lock of another that was killed.
        eventually("all of them are gone", START_LIMIT, || {
            let alive: Vec<i32> = children(parent).into_iter().filter(|child| !has_ended(*child)).collect();
            alive.iter().for_each(|child| signal(*child, libc::SIGKILL));
            alive.is_empty()
        });
        self.kill_postmaster();
    }

    /// Runs a program of the server's, as the user that owns its files.
    pub fn run(&self, program: &str, arguments: &[&str]) {
        let done =
            self.command(program).args(arguments).stdin(Stdio::null()).output().expect("run a program");
        assert!(
            done.status.success(),
            "{program} failed:\n{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr),
        );
    }

    /// Starts a program that is not the server's, as the user that owns the server's files.
    pub fn start_program(&self, program: &Path, arguments: &[&str]) -> Child {
        let mut command = self.command(program.to_str().expect("a plain path"));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("start a program")
    }

    /// Keeps the server and its files when this value is dropped.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir(&self.folder).env("HOME", &self.folder);
        if let Some((uid, gid)) = server_user() {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Where the server's programs are.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// The server's data directory.
    pub fn data(&self) -> String {
        self.folder.join("data").to_str().expect("a plain path").to_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().rev().take(30).collect();
            eprintln!("the end of {}, newest first:\n{}", self.log_path().display(), lines.join("\n"));
        }
        self.stop_at_once();
        if let Some(mut child) = self.postmaster.take() {
            let _ = child.wait();
        }
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Sends a signal to a process of a test's own, if it is still there.
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: touches no memory.
    unsafe { libc::kill(pid, signal) };
}

/// Whether a process is gone, or a zombie, which has nothing any more.
fn has_ended(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

/// The processes whose parent is this one.
fn children(parent: u32) -> Vec<i32> {
    let parent_of = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which may contain anything: the state, and the parent.
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let entries = fs::read_dir("/proc").expect("read /proc");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

/// A loopback address that no other test uses, for a server that is reached by TCP on the usual port.
pub fn own_address() -> String {
    static CALLS: AtomicU32 = AtomicU32::new(1);
    let (call, pid) = (CALLS.fetch_add(1, Ordering::Relaxed), std::process::id());
    assert!(call < 4, "three for each process");
    format!("127.{}.{}.{}", 64 * call + (pid >> 16) % 64, (pid >> 8) % 256, pid % 256)
}

/// Where servers and clusters are.
pub fn home() -> PathBuf {
    PathBuf::from(std::env::var("QUEUE_EXT_HOME").expect("QUEUE_EXT_HOME; start the tests with make test"))
}

/// The folder of this name for a server, or for other files of a test. Servers of several versions are tested at the same
/// time, so each version has folders of its own.
pub fn run_folder(name: impl AsRef<Path>) -> PathBuf {
    static MAJOR: OnceLock<String> = OnceLock::new();
    let run = std::env::var("QUEUE_EXT_RUN").map_or_else(|_| home().join("run"), PathBuf::from);
    run.join(MAJOR.get_or_init(|| major_version().to_string())).join(name)
}

/// The server's programs.
pub fn bindir() -> PathBuf {
    PathBuf::from(pg_config("--bindir"))
}

/// The driver program of a suite, such as `regress/pg_regress`.
pub fn driver(program: &str) -> PathBuf {
    PathBuf::from(std::env::var("DRIVERS").expect("DRIVERS; start the tests with make test")).join(program)
}

/// The output of PG_CONFIG.
pub fn pg_config(option: &str) -> String {
    let program = std::env::var("PG_CONFIG").expect("PG_CONFIG; start the tests with make test");
    let output = Command::new(program).arg(option).output().expect("run pg_config");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The major version of the server.
pub fn major_version() -> u32 {
    let version = pg_config("--version");
    let digits: String =
        version.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a version")
}

/// Whether the server brings this extension along.
pub fn has_extension(name: &str) -> bool {
    PathBuf::from(pg_config("--sharedir")).join(format!("extension/{name}.control")).exists()
}

/// The user that runs the server in root's stead; nothing if this is not root.
fn server_user() -> Option<(u32, u32)> {
    static USER: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *USER.get_or_init(|| {
        // SAFETY: called once, so getpwnam's result is not overwritten while it is read.
        unsafe {
            if libc::geteuid() != 0 {
                return None;
            }
            [c"postgres", c"nobody"].iter().find_map(|name| {
                let user = libc::getpwnam(name.as_ptr()).as_ref()?;
                Some((user.pw_uid, user.pw_gid))
            })
        }
    })
}

/// Makes a file or folder the server's user's.
pub fn give_away(path: &Path) {
    if let Some((uid, gid)) = server_user() {
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).expect("give it to the server's user");
    }
}
