//! `queue get ID`

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;

use serde_json::value::RawValue;
use tokio_postgres::types::Type;

use crate::connect::Session;
use crate::failure::Failure;
use crate::output;

/// The fields of an object. Their values stay as PostgreSQL wrote them: its JSON has numbers and depths that Rust has not.
type Fields = BTreeMap<String, Box<RawValue>>;

pub async fn run(session: &Session, id: i64, as_json: bool) -> Result<ExitCode, Failure> {
    let query = "SELECT to_jsonb(task)::text FROM queue.get($1) AS task";
    let task = session.first::<String>(query, &[(&id, Type::INT8)]).await?.unwrap_or_default();
    if as_json {
        output::print(&format!("{task}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let task: Fields = serde_json::from_str(&task).map_err(io::Error::from)?;
    let mut text = String::new();
    // First what people look for; then everything else that is set.
    let first =
        ["id", "queue", "kind", "state", "attempt", "max_attempts", "worker", "run_at", "payload", "result"];
    let rest = task.keys().map(String::as_str).filter(|name| !first.contains(name) && *name != "errors");
    for name in first.into_iter().chain(rest) {
        match task.get(name).filter(|value| value.get() != "null") {
            None => {}
            Some(value) => text += &format!("{name:<20} {}\n", output::visible(&string(value))),
        }
    }
    let errors = task.get("errors").map(|errors| serde_json::from_str::<Option<Vec<Fields>>>(errors.get()));
    for error in errors.transpose().map_err(io::Error::from)?.flatten().into_iter().flatten() {
        let field = |name: &str| error.get(name).map(|value| string(value)).unwrap_or_default();
        let shown = |name: &str| output::visible(&field(name));
        text += &format!(
            "\nerror of attempt {}, {}, worker {}:\n",
            shown("attempt"),
            shown("at"),
            shown("worker")
        );
        for line in field("error").lines() {
            text += &format!("    {}\n", output::visible(line));
        }
        if error.get("details").is_some_and(|details| details.get() != "null") {
            text += &format!("    details: {}\n", shown("details"));
        }
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// A string without quotes, nothing for null, and other JSON as it is.
fn string(value: &RawValue) -> String {
    match value.get() {
        "null" => String::new(),
        text => serde_json::from_str(text).unwrap_or_else(|_| text.to_owned()),
    }
}
