//! `queue work`: claims tasks, and runs a command or sends a request for each of them.
//!
//! Everything runs in one thread, because the work is done by other processes and other machines. Three connections share
//! it: one claims and waits, one extends leases, one acknowledges.

mod acknowledge;
mod claim;
mod command;
mod guard;
mod heartbeat;
mod http;
mod lease;
mod link;
mod log;
mod outcome;
mod postponed;
mod report;
mod rights;
mod stop;
mod task;
mod worker;

use std::ffi::OsString;
use std::rc::Rc;
use std::time::Duration;

use crate::connect::Server;
use crate::failure::Failure;
pub use guard::Guard;
pub use http::Target;
pub use log::Format;
pub use worker::run;

/// What to do with what the handler returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Results {
    /// nothing: the output of the command goes to the output of queue
    None,
    /// the output, or the body of the response, is the result, as a string
    Text,
    /// the output, or the body of the response, is the result; it has to be JSON
    Json,
}

/// What is done for each task.
pub enum Handler {
    Command(Vec<OsString>),
    Http(Box<Target>),
}

/// The options, checked.
pub struct Options {
    pub queues: Vec<String>,
    pub name: String,
    pub concurrency: u32,
    pub lease: Option<Duration>,
    pub heartbeat: Duration,
    pub timeout: Option<Duration>,
    pub shutdown_timeout: Duration,
    pub kill_after: Duration,
    pub results: Results,
    pub discard_codes: Vec<i32>,
    pub discard_statuses: Vec<u16>,
    pub log: Format,
    pub verbose: bool,
    pub handler: Handler,
}

/// The largest result of a task.
pub const LARGEST_RESULT: usize = 1024 * 1024;

/// What all parts of the worker share.
pub struct Context {
    pub server: Rc<Server>,
    pub options: Options,
    pub log: log::Log,
    pub leases: lease::Leases,
    pub stop: stop::Phases,
    pub guard: Guard,
    pub outage: link::Outage,
}

/// The end of the worker.
pub type End = Result<(), Failure>;
