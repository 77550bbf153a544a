//! A web dashboard for operators: the tasks in each queue, and the events of each task.
//!
//! `queue dashboard` runs it, and opens its connections. It has the rights of their role, and uses only the public
//! functions and views of the extension. By default it is read-only and listens only on the loopback interface. See
//! docs/dashboard.md.

mod actions;
mod activity;
mod assets;
mod bulk;
mod database;
mod failures;
mod filter;
mod guard;
mod journal;
mod message;
mod options;
mod problem;
mod push;
mod schedules;
mod search;
mod server;
mod task;
mod tls;
mod watch;
mod wish;
mod workers;

use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;

use options::{Options, Wish};

/// Opens a connection to Postgres. The error is a sentence.
pub type Connect = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<tokio_postgres::Client, String>>>>>;

/// Runs the dashboard with the arguments of the command line, until the process is stopped.
pub fn main(arguments: Vec<String>, connect: Connect) -> ExitCode {
    let options = match Options::read(arguments) {
        Ok(Wish::Serve(options)) => *options,
        Ok(Wish::Help) => {
            print!("{}", options::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(complaint) => {
            eprintln!("queue dashboard: {complaint}");
            return ExitCode::from(2);
        }
    };
    // One thread is enough, because Postgres does the work.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| tokio::task::LocalSet::new().block_on(&runtime, run(options, connect)));
    if let Err(complaint) = outcome {
        eprintln!("queue dashboard: {complaint}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn run(options: Options, connect: Connect) -> Result<(), String> {
    let guard = guard::Guard::new(options.token.clone(), options.hosts.clone(), options.user_header.clone())?;
    let database = Rc::new(database::Database::new(connect));
    let watch = watch::Watch::start(Rc::clone(&database));
    server::serve(server::App { guard, database, watch, options }).await
}
