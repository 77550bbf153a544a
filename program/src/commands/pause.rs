//! `queue pause QUEUE` and `queue resume QUEUE`

use std::process::ExitCode;

use serde_json::json;
use tokio_postgres::types::Type;

use crate::connect::Session;
use crate::failure::Failure;
use crate::output;

pub async fn run(session: &Session, queue: &str, pause: bool, as_json: bool) -> Result<ExitCode, Failure> {
    let call = if pause { "SELECT queue.pause($1)" } else { "SELECT queue.resume($1)" };
    session.rows(call, &[(&queue, Type::TEXT)]).await?;
    output::print(&if as_json {
        format!("{}\n", json!({"queue": queue, "paused": pause}))
    } else {
        format!("{queue} is {}\n", if pause { "paused" } else { "not paused" })
    })?;
    Ok(ExitCode::SUCCESS)
}
