//! The dashboard itself, as a process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use queue_ext_tests::{Cluster, SOON, built, eventually};
use serde_json::Value;

use super::http::{self, Answer};

pub struct Dashboard {
    process: Child,
    said: Arc<Mutex<String>>,
    /// Where it listens.
    pub address: String,
}

fn program() -> Command {
    let mut command = Command::new(built::program());
    command.arg("dashboard");
    command.stdin(Stdio::null()).env_remove("QUEUE_DASHBOARD_TOKEN").env_remove("DATABASE_URL");
    command
}

/// Starts it with arguments that it refuses; returns its output.
pub fn refused(arguments: &[&str], database: Option<&str>) -> Output {
    let mut command = program();
    if let Some(database) = database {
        command.env("DATABASE_URL", database);
    }
    command.args(arguments).output().expect("run the dashboard")
}

impl Dashboard {
    /// For the database `postgres`, as this role, on a port of its own.
    pub fn start(cluster: &Cluster, role: &str, arguments: &[&str]) -> Self {
        Self::at(&format!("host={} dbname=postgres user={role}", cluster.folder().display()), arguments)
    }

    /// For the database of a connection string.
    pub fn at(url: &str, arguments: &[&str]) -> Self {
        let mut process = program()
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments)
            .env("DATABASE_URL", url)
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the dashboard");
        let said = Arc::new(Mutex::new(String::new()));
        let (lines, heard) = (BufReader::new(process.stderr.take().expect("its log")), Arc::clone(&said));
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                *heard.lock().expect("its log") += &(line + "\n");
            }
        });
        let mut address = String::new();
        eventually("the dashboard listens", SOON, || {
            let said = said.lock().expect("its log");
            let found = said.split_once("://").and_then(|(_, rest)| rest.split_whitespace().next());
            address = found.unwrap_or_default().to_owned();
            !address.is_empty()
        });
        Self { process, said, address }
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.said.lock().expect("its log").clone()
    }

    pub fn page(&self, path: &str) -> String {
        format!("http://{}/#/{path}", self.address)
    }

    pub fn get(&self, path: &str) -> Answer {
        http::send(&self.address, "GET", path, &[], "")
    }

    /// A list of tasks.
    pub fn tasks(&self, query: &str) -> Value {
        let answer = self.get(&format!("/api/tasks?{query}"));
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
        answer.json()
    }

    /// Asks for an action as the page does.
    pub fn act(&self, body: &str) -> Answer {
        let session = self.get("/api/session").json();
        let key = session["key"].as_str().expect("the key");
        let origin = format!("http://{}", self.address);
        let headers =
            [("Origin", origin.as_str()), ("Content-Type", "application/json"), ("X-Queue-Key", key)];
        http::send(&self.address, "POST", "/api/act", &headers, body)
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("the dashboard said:\n{}", self.log());
        }
    }
}
