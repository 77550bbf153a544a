//! `queue health`

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tokio_postgres::types::Type;

use super::session;
use crate::failure::Failure;
use crate::output;

const QUERY: &str = "SELECT coalesce(jsonb_agg(to_jsonb(h)), '[]') \
    FROM queue.health(due_for => make_interval(secs => $1), failed => $2) AS h";
const CRITICAL: u8 = 2;

pub fn run(
    url: Option<&str>,
    due_for: Option<Duration>,
    failed: Option<i64>,
    as_json: bool,
) -> Result<ExitCode, Failure> {
    let due_for = due_for.map(|limit| limit.as_secs_f64());
    let checks = session(url, async |session| {
        session.json(QUERY, &[(&due_for, Type::FLOAT8), (&failed, Type::INT8)]).await
    });
    let checks = match checks {
        Ok(checks) => checks,
        // To a monitor, a database that cannot be asked is not a warning.
        Err(failure) => {
            eprintln!("queue: {failure}");
            return Ok(ExitCode::from(CRITICAL));
        }
    };
    let list: Vec<Value> = checks.as_array().cloned().unwrap_or_default();
    if as_json {
        output::print(&format!("{checks}\n"))?;
    } else {
        let row =
            |check: &Value| ["status", "name", "detail"].map(|name| output::plain(&check[name])).to_vec();
        let mut text =
            output::table(&["status", "check", "found"], &list.iter().map(row).collect::<Vec<_>>());
        for check in list.iter().filter(|check| check["status"] != "ok" && !check["hint"].is_null()) {
            text += &format!("\n{}: {}\n", output::plain(&check["name"]), output::plain(&check["hint"]));
        }
        output::print(&text)?;
    }
    let has = |status: &str| list.iter().any(|check| check["status"] == status);
    Ok(match (has("critical"), has("warning")) {
        (true, _) => ExitCode::from(CRITICAL),
        (_, true) => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}
