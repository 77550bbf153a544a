//! The log, on standard error, together with what commands write there.
//!
//! A thread of its own writes it. If whatever reads the log stops reading, leases are still extended.

use std::io::Write;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// a time, a level and a sentence
    Text,
    /// a JSON object in each line
    Json,
}

/// How many lines may wait to be written. Further lines of the log are dropped; commands wait.
const WAITING: usize = 1024;

pub struct Log {
    format: Format,
    verbose: bool,
    lines: mpsc::Sender<Vec<u8>>,
    writer: std::cell::Cell<Option<(JoinHandle<()>, std::sync::mpsc::Receiver<()>)>>,
}

impl Log {
    pub fn start(format: Format, verbose: bool) -> Self {
        let (lines, mut waiting) = mpsc::channel::<Vec<u8>>(WAITING);
        let (ended, end) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            while let Some(line) = waiting.blocking_recv() {
                // There is nowhere to report that standard error is closed.
                let _ = std::io::stderr().write_all(&line);
            }
            let _ = ended.send(());
        });
        Self { format, verbose, lines, writer: std::cell::Cell::new(Some((thread, end))) }
    }

    pub fn info(&self, message: &str, fields: Value) {
        self.write("info", message, fields);
    }

    pub fn warn(&self, message: &str, fields: Value) {
        self.write("warn", message, fields);
    }

    pub fn error(&self, message: &str, fields: Value) {
        self.write("error", message, fields);
    }

    /// Only with --verbose.
    pub fn debug(&self, message: &str, fields: Value) {
        if self.verbose {
            self.write("debug", message, fields);
        }
    }

    fn write(&self, level: &str, message: &str, fields: Value) {
        let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let line = match self.format {
            Format::Json => {
                let mut line = Map::new();
                line.insert("time".to_owned(), json!(now));
                line.insert("level".to_owned(), json!(level));
                line.insert("message".to_owned(), json!(message));
                if let Value::Object(fields) = fields {
                    line.extend(fields);
                }
                format!("{}\n", Value::Object(line))
            }
            Format::Text => {
                let mut line = format!("{now} {level:<5} {}", message.replace('\n', " "));
                // First which task it is about.
                let mut fields: Vec<_> = fields.as_object().into_iter().flatten().collect();
                fields.sort_by_key(|(name, _)| *name != "task");
                for (name, value) in fields {
                    let text =
                        value.as_str().map_or_else(|| value.to_string(), |text| text.replace('\n', " "));
                    line += &format!(" {name}={text}");
                }
                line + "\n"
            }
        };
        let _ = self.lines.try_send(line.into_bytes());
    }

    /// Passes on what a command wrote, and waits while it cannot be written.
    pub fn pass(&self) -> mpsc::Sender<Vec<u8>> {
        self.lines.clone()
    }

    /// Writes what is waiting. Gives up after a second, because a reader may have stopped reading.
    pub fn finish(self) {
        let Self { lines, writer, .. } = self;
        drop(lines);
        if let Some((thread, end)) = writer.take()
            && end.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout)
        {
            let _ = thread.join();
        }
    }
}
