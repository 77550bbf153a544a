//! The program as a process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use queue_ext_tests::{Cluster, SOON, built, cluster, eventually};
use serde_json::Value;

/// The program, with an environment that has nothing of this process about databases.
pub fn program() -> Command {
    let mut command = Command::new(built::program());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PG") || name == "DATABASE_URL") {
        command.env_remove(name);
    }
    command.env("HOME", "/nonexistent").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The program for a database.
pub fn program_for(cluster: &Cluster) -> Command {
    let mut command = program();
    command.env("PGHOST", cluster.folder()).env("PGUSER", "postgres").env("PGDATABASE", "postgres");
    command
}

/// How a call ended.
pub struct Answer {
    pub code: i32,
    pub output: String,
    pub errors: String,
}

impl Answer {
    /// The output of a call that must succeed.
    pub fn text(&self) -> &str {
        assert_eq!(self.code, 0, "{}{}", self.output, self.errors);
        self.output.trim_end()
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(self.text()).unwrap_or_else(|why| panic!("{why}: {}", self.output))
    }

    /// The error of a call that must fail.
    pub fn refusal(&self, code: i32, says: &str) {
        assert_eq!(self.code, code, "{}{}", self.output, self.errors);
        assert!(self.errors.contains(says), "{says} in {}", self.errors);
    }
}

/// Runs a command to its end.
pub fn answer(mut command: Command, input: &str) -> Answer {
    let mut child = command.stdin(Stdio::piped()).spawn().expect("start the program");
    let mut stdin = child.stdin.take().expect("its input");
    let input = input.to_owned();
    let writer = thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().expect("its output");
    writer.join().expect("its input is written");
    Answer {
        code: output.status.code().unwrap_or(-1),
        output: String::from_utf8_lossy(&output.stdout).into_owned(),
        errors: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs the program with these arguments.
pub fn call(cluster: &Cluster, arguments: &[&str]) -> Answer {
    let mut command = program_for(cluster);
    command.args(arguments);
    answer(command, "")
}

/// A worker.
pub struct Worker {
    process: Child,
    said: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts `queue work`, and waits until it has claimed for the first time.
    pub fn start(cluster: &Cluster, arguments: &[&str]) -> Self {
        Self::run(program_for(cluster), arguments)
    }

    pub fn run(mut command: Command, arguments: &[&str]) -> Self {
        command.arg("work").args(arguments).stdout(Stdio::null());
        let mut process = command.spawn().expect("start the worker");
        let said = Arc::new(Mutex::new(String::new()));
        let (log, heard) = (process.stderr.take().expect("its log"), Arc::clone(&said));
        let reader = thread::spawn(move || {
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                *heard.lock().expect("its log") += &(line + "\n");
            }
        });
        let worker = Self { process, said, reader: Some(reader) };
        eventually("the worker is ready", SOON, || worker.log().contains(" ready "));
        worker
    }

    pub fn log(&self) -> String {
        self.said.lock().expect("its log").clone()
    }

    pub fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        cluster::signal(self.pid(), signal);
    }

    /// Sends SIGTERM, and returns the exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.signal(libc::SIGTERM);
        self.await_end()
    }

    /// Waits until it has ended and its log is complete, and returns the exit code.
    pub fn await_end(&mut self) -> Option<i32> {
        let code = self.process.wait().expect("its end").code();
        self.reader.take().into_iter().for_each(|reader| reader.join().expect("its log"));
        code
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if thread::panicking() {
            eprintln!("the worker said:\n{}", self.log());
        }
    }
}

/// How many processes have this word among their arguments.
pub fn processes_with(word: &str) -> usize {
    let entries = std::fs::read_dir("/proc").expect("read /proc").flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())).count()
}

/// Kills a process if the test fails before it has ended the process itself.
pub struct KilledOnFailure(pub u32);

impl Drop for KilledOnFailure {
    fn drop(&mut self) {
        if thread::panicking() {
            cluster::signal(self.0 as i32, libc::SIGKILL);
        }
    }
}
