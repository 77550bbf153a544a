//! `queue work`: checks the options and starts the worker.

use std::path::Path;
use std::process::ExitCode;

use super::block_on;
use crate::arguments::Work;
use crate::connect::Server;
use crate::failure::Failure;
use crate::work::{Guard, Handler, Options, Target};

/// The exit code for wrong use.
const WRONG_USE: u8 = 2;

pub fn run(url: Option<&str>, arguments: Work) -> Result<ExitCode, Failure> {
    let server = Server::find(url)?;
    if arguments.http.is_none() && !arguments.header.is_empty() {
        eprintln!("queue: --header is for --http");
        return Ok(ExitCode::from(WRONG_USE));
    }
    let handler = match &arguments.http {
        Some(address) => {
            Target::new(address, &arguments.header).map(|target| Handler::Http(Box::new(target)))
        }
        None if is_there(Path::new(&arguments.command[0])) => Ok(Handler::Command(arguments.command.clone())),
        None => Err(Failure::new(format!(
            "{}: there is no such command",
            Path::new(&arguments.command[0]).display()
        ))),
    };
    let handler = match handler {
        Ok(handler) => handler,
        Err(failure) => {
            eprintln!("queue: {failure}");
            return Ok(ExitCode::from(WRONG_USE));
        }
    };
    let guard = Guard::start()?;
    let options = Options {
        queues: arguments.queues,
        name: arguments.name.unwrap_or_else(|| format!("{}:{}", host(), std::process::id())),
        concurrency: arguments.concurrency,
        lease: arguments.lease,
        heartbeat: arguments.heartbeat,
        timeout: arguments.timeout,
        shutdown_timeout: arguments.shutdown_timeout,
        kill_after: arguments.kill_after,
        results: arguments.result,
        discard_codes: arguments.discard_code,
        discard_statuses: arguments.discard_status,
        log: arguments.log,
        verbose: arguments.verbose,
        handler,
    };
    // The log has the error already.
    let end = block_on(async { Ok(crate::work::run(server, options, guard).await) })?;
    Ok(if end.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a command can be found now, so that a wrong name is noticed before a task is claimed.
fn is_there(command: &Path) -> bool {
    if command.components().count() > 1 {
        return command.is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(command).is_file())
}

fn host() -> String {
    let mut name = [0_u8; 256];
    // SAFETY: the buffer has this length, and the last byte stays zero.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let name = std::ffi::CStr::from_bytes_until_nul(&name).unwrap_or_default();
    // The name of a worker has at most 128 bytes.
    name.to_string_lossy().chars().take(100).collect()
}
