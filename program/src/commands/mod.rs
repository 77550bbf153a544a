//! The commands, one in each file.

mod cancel;
mod dashboard;
mod get;
mod health;
mod pause;
mod push;
mod redrive;
mod tail;
mod top;
mod work;

use std::process::ExitCode;

use clap::CommandFactory;

use crate::arguments::{Arguments, Command};
use crate::connect::{Server, Session};
use crate::failure::Failure;

/// Runs a command, and reports its error.
pub fn run(arguments: Arguments) -> ExitCode {
    match dispatch(arguments) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("queue: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: Arguments) -> Result<ExitCode, Failure> {
    let url = arguments.url.as_deref();
    match arguments.command {
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "queue", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Command::Work(options) => work::run(url, *options),
        Command::Dashboard { arguments } => dashboard::run(url, arguments),
        Command::Push(options) => session(url, async |session| push::run(session, *options).await),
        Command::Get { id, output } => session(url, async |session| get::run(session, id, output.json).await),
        Command::Tail { queue, since, output } => {
            session(url, async |session| tail::run(session, queue, since, output.json).await)
        }
        Command::Top { interval, once, output } => {
            session(url, async |session| top::run(session, interval, once, output.json).await)
        }
        Command::Redrive { queue, max, output } => {
            session(url, async |session| redrive::run(session, &queue, max, output.json).await)
        }
        Command::Cancel { ids, output } => {
            session(url, async |session| cancel::run(session, &ids, output.json).await)
        }
        Command::Pause { queue, output } => {
            session(url, async |session| pause::run(session, &queue, true, output.json).await)
        }
        Command::Resume { queue, output } => {
            session(url, async |session| pause::run(session, &queue, false, output.json).await)
        }
        Command::Health { due_for, failed, output } => health::run(url, due_for, failed, output.json),
    }
}

/// Runs something asynchronous in this thread.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = tokio::task::LocalSet::new().block_on(&runtime, work);
    // A connection that is being closed is not waited for.
    runtime.shutdown_background();
    result
}

/// Runs something on a connection.
fn session<T>(
    url: Option<&str>,
    work: impl AsyncFnOnce(&Session) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let server = Server::find(url)?;
    block_on(async {
        let session = server.connect("queue").await?;
        work(&session).await
    })
}
