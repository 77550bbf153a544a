//! A page for whoever is on duty: what is in the queues, and what became of each task.
//!
//! One process, which asks Postgres with the rights of the role in DATABASE_URL, and serves a page that calls the
//! public functions and views of the extension, and nothing else. Unless told otherwise it changes nothing and
//! listens on the loopback interface only. docs/dashboard.md tells the rest.

mod actions;
mod assets;
mod database;
mod guard;
mod options;
mod problem;
mod search;
mod server;
mod task;
mod watch;

use std::process::ExitCode;
use std::rc::Rc;

use options::{Options, Wish};

fn main() -> ExitCode {
    let options = match Options::read() {
        Ok(Wish::Serve(options)) => *options,
        Ok(Wish::Help) => {
            print!("{}", options::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(complaint) => {
            eprintln!("queue-dashboard: {complaint}");
            return ExitCode::from(2);
        }
    };
    // One thread is plenty: Postgres does the work.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| tokio::task::LocalSet::new().block_on(&runtime, run(options)));
    if let Err(complaint) = outcome {
        eprintln!("queue-dashboard: {complaint}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn run(options: Options) -> Result<(), String> {
    let guard = guard::Guard::new(options.token.clone(), options.hosts.clone())?;
    let database = Rc::new(database::Database::new(options.database.clone()));
    let watch = watch::Watch::start(Rc::clone(&database));
    server::serve(server::App { guard, database, watch, options }).await
}
