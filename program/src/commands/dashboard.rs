//! `queue dashboard`: the dashboard reads its own options, and gets its connections from here.

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use crate::connect::Server;
use crate::failure::Failure;

/// A browser waits for each answer.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

pub fn run(url: Option<&str>, mut arguments: Vec<String>) -> Result<ExitCode, Failure> {
    // After an option of the dashboard, --url is one of its arguments.
    let mut later = None;
    if let Some(place) = arguments.iter().position(|argument| argument == "--url") {
        later = arguments.drain(place..arguments.len().min(place + 2)).nth(1);
    }
    let server = Rc::new(Server::find(later.as_deref().or(url))?.within(CONNECT_LIMIT));
    let connect = move || -> std::pin::Pin<Box<dyn Future<Output = _>>> {
        let server = Rc::clone(&server);
        Box::pin(async move {
            let session = server.connect("queue-dashboard").await;
            session.map(|session| session.client).map_err(|failure| failure.message)
        })
    };
    Ok(queue_dashboard::main(arguments, Box::new(connect)))
}
