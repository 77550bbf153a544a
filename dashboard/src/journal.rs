//! The lines of the log: who changed what, and with which result. They never contain payloads.

use std::net::SocketAddr;
use std::time::SystemTime;

use hyper::StatusCode;

use crate::problem::Problem;

/// Who sent a request.
pub struct Visitor {
    pub address: SocketAddr,
    /// The user whom the proxy named, with `--user-header`.
    pub user: Option<String>,
}

/// Writes one line to the standard error.
pub fn record(action: &str, target: &str, role: &str, visitor: &Visitor, result: Result<&str, &Problem>) {
    let when = httpdate::fmt_http_date(SystemTime::now());
    let user = visitor.user.as_ref().map_or(String::new(), |user| format!(" user={user:?}"));
    let outcome = match result {
        Ok(said) => format!("result={said:?}"),
        // It may have taken effect.
        Err(problem) if problem.status == StatusCode::SERVICE_UNAVAILABLE => {
            format!("unknown={:?}", problem.line())
        }
        Err(problem) => format!("refused={:?}", problem.line()),
    };
    let from = visitor.address;
    eprintln!("{when} action={action} target={target:?} role={role:?}{user} from={from} {outcome}");
}
