//! `queue redrive QUEUE`

use std::process::ExitCode;

use serde_json::json;
use tokio_postgres::types::Type;

use crate::connect::Session;
use crate::failure::Failure;
use crate::output;

pub async fn run(
    session: &Session,
    queue: &str,
    max: Option<i32>,
    as_json: bool,
) -> Result<ExitCode, Failure> {
    let rows =
        session.rows("SELECT queue.redrive($1, $2)", &[(&queue, Type::TEXT), (&max, Type::INT4)]).await?;
    let tasks: i64 = rows[0].get(0);
    output::print(&if as_json {
        format!("{}\n", json!({"queue": queue, "tasks": tasks}))
    } else {
        format!("{tasks} put back into {queue}\n")
    })?;
    Ok(ExitCode::SUCCESS)
}
