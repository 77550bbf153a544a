//! `queue cancel ID...`

use std::process::ExitCode;

use serde_json::json;
use tokio_postgres::types::Type;

use crate::connect::Session;
use crate::failure::Failure;
use crate::output;

pub async fn run(session: &Session, ids: &[i64], as_json: bool) -> Result<ExitCode, Failure> {
    let mut code = ExitCode::SUCCESS;
    for id in ids {
        match session.rows("SELECT queue.cancel($1)", &[(id, Type::INT8)]).await {
            Ok(rows) => {
                let state: &str = rows[0].get(0);
                output::print(&match (as_json, state) {
                    (true, _) => format!("{}\n", json!({"id": id, "state": state})),
                    (false, "running") => format!("{id} is running: its worker has been asked to stop\n"),
                    (false, _) => format!("{id} {state}\n"),
                })?;
            }
            // The others are cancelled all the same.
            Err(failure) if failure.is("QX") => {
                eprintln!("queue: {id}: {failure}");
                code = ExitCode::FAILURE;
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(code)
}
