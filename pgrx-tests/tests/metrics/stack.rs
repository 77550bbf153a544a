//! The real exporter and the real Prometheus over a throw-away server, with the files in `monitoring/`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use queue_ext_tests::Cluster;
use queue_ext_tests::cluster::home;
use serde_json::Value;

/// The programs that `servers.py metrics` downloaded.
pub fn fetched(path: &str) -> PathBuf {
    home().join("metrics").join(path)
}

/// A file in `monitoring/`.
pub fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../monitoring").join(name)
}

/// The text of a file in `monitoring/`.
pub fn text(name: &str) -> String {
    fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The contents of a YAML file in `monitoring/`.
pub fn yaml(name: &str) -> Value {
    let program = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";
    let mut command = Command::new("python3");
    command.args(["-c", program]).arg(file(name)).env("PYTHONPATH", fetched("python"));
    serde_json::from_str(&output(&mut command)).expect("JSON")
}

/// The output of a program that must succeed.
pub fn output(command: &mut Command) -> String {
    let done = command.stdin(Stdio::null()).output().expect("run a program");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{command:?} failed:\n{said}{}", String::from_utf8_lossy(&done.stderr));
    said
}

/// An exporter that reads a server, and a Prometheus that scrapes it and evaluates the alert rules.
pub struct Stack {
    exporter: Child,
    prometheus: Child,
    port: u16,
}

impl Stack {
    /// Starts both. Intervals of seconds or minutes are one second here, and alerts do not wait.
    pub fn start(cluster: &Cluster) -> Self {
        let folder = cluster.folder();
        let (exporter_port, port) = (free_port(), free_port());
        let url = format!("postgres://metrics@/postgres?host={}&sslmode=disable", folder.display());
        write(folder, "prometheus-sql-exporter.yml", |line| {
            if line.trim_start().starts_with("- postgres://") {
                return format!("  - {url}");
            }
            with_value(line, "interval", "1s")
        });
        write(folder, "alerts.yml", |line| with_value(line, "for", "1s").replace("> 120", "> 5"));
        write(folder, "prometheus.yml", |line| {
            let line = with_value(&with_value(line, "scrape_interval", "1s"), "evaluation_interval", "1s");
            line.replace("localhost:9237", &format!("127.0.0.1:{exporter_port}"))
        });
        let mut exporter = Command::new(fetched("usr/bin/prometheus-sql-exporter"));
        exporter.arg("-config.file").arg(folder.join("prometheus-sql-exporter.yml"));
        exporter.args(["-web.listen-address", &format!("127.0.0.1:{exporter_port}")]).env("LOGLEVEL", "WARN");
        let mut prometheus = Command::new(fetched("usr/bin/prometheus"));
        prometheus.arg("--config.file").arg(folder.join("prometheus.yml"));
        prometheus.arg("--storage.tsdb.path").arg(folder.join("prometheus"));
        prometheus.arg(format!("--web.listen-address=127.0.0.1:{port}")).arg("--log.level=warn");
        Self { exporter: start(exporter, folder), prometheus: start(prometheus, folder), port }
    }

    /// The address of Prometheus.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The `data` of a response of Prometheus's API; nothing if it does not answer.
    pub fn api(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(stream, "GET /api/v1/{path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let mut answer: Value = serde_json::from_str(body).ok()?;
        assert_ne!(answer["status"], "error", "{path}: {answer}");
        Some(answer["data"].take())
    }

    /// The series that an expression returns now.
    pub fn query(&self, expression: &str) -> Vec<Value> {
        let data = self.api(&format!("query?query={}", percent(expression)));
        data.and_then(|mut data| serde_json::from_value(data["result"].take()).ok()).unwrap_or_default()
    }

    /// The value of an expression that returns one series now.
    pub fn value(&self, expression: &str) -> Option<f64> {
        match self.query(expression).as_slice() {
            [one] => one["value"][1].as_str()?.parse().ok(),
            _ => None,
        }
    }

    /// Whether this alert fires now.
    pub fn fires(&self, alert: &str) -> bool {
        !self.query(&format!("ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"}}")).is_empty()
    }

    /// Ends the exporter.
    pub fn stop_exporter(&mut self) {
        self.exporter.kill().expect("kill the exporter");
        self.exporter.wait().expect("it is gone");
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        for child in [&mut self.exporter, &mut self.prometheus] {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn start(mut command: Command, folder: &Path) -> Child {
    let log = File::options().create(true).append(true).open(folder.join("metrics.log")).expect("a log");
    let other = log.try_clone().expect("a file handle");
    command.stdin(Stdio::null()).stdout(log).stderr(other).spawn().expect("start a program")
}

/// Writes a file of `monitoring/` with other lines.
fn write(folder: &Path, name: &str, change: impl Fn(&str) -> String) {
    let lines: Vec<String> = text(name).lines().map(change).collect();
    fs::write(folder.join(name), lines.join("\n") + "\n").expect("write a file");
}

/// The line with this value, if it is one of this key.
fn with_value(line: &str, key: &str, value: &str) -> String {
    match line.trim_start().strip_prefix(key) {
        Some(rest) if rest.starts_with(':') => {
            format!("{}{key}: {value}", &line[..line.len() - line.trim_start().len()])
        }
        _ => line.to_owned(),
    }
}

/// A port that is free at this moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
