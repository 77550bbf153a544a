//! `queue get ID`

use std::process::ExitCode;

use serde_json::{Map, Value};
use tokio_postgres::types::Type;

use crate::connect::Session;
use crate::failure::Failure;
use crate::output;

pub async fn run(session: &Session, id: i64, as_json: bool) -> Result<ExitCode, Failure> {
    let task = session.json("SELECT to_jsonb(task) FROM queue.get($1) AS task", &[(&id, Type::INT8)]).await?;
    if as_json {
        output::print(&format!("{task}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let empty = Map::new();
    let task = task.as_object().unwrap_or(&empty);
    let mut text = String::new();
    // First what people look for; then everything else that is set.
    let first =
        ["id", "queue", "kind", "state", "attempt", "max_attempts", "worker", "run_at", "payload", "result"];
    let rest = task.keys().map(String::as_str).filter(|name| !first.contains(name) && *name != "errors");
    for name in first.into_iter().chain(rest) {
        match task.get(name) {
            None | Some(Value::Null) => {}
            Some(value) => text += &format!("{name:<20} {}\n", output::plain(value)),
        }
    }
    for error in task.get("errors").and_then(Value::as_array).into_iter().flatten() {
        let (attempt, at) = (output::plain(&error["attempt"]), output::plain(&error["at"]));
        text += &format!("\nerror of attempt {attempt}, {at}, worker {}:\n", output::plain(&error["worker"]));
        for line in error["error"].as_str().unwrap_or_default().lines() {
            text += &format!("    {}\n", output::visible(line));
        }
        if !error["details"].is_null() {
            text += &format!("    details: {}\n", output::plain(&error["details"]));
        }
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
