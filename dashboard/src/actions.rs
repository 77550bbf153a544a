//! The actions of the dashboard. Each calls one function of the extension.

use serde_json::{Value, json};
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::problem::Problem;

/// The name, the statement, and the kind of its target.
const ACTIONS: &[(&str, &str, About)] = &[
    ("pause", "SELECT 'paused' FROM queue.pause($1)", About::Name),
    ("resume", "SELECT 'resumed' FROM queue.resume($1)", About::Name),
    ("redrive", "SELECT queue.redrive($1, $2)::text", About::Some),
    ("cancel", "SELECT queue.cancel($1)", About::Id),
    ("retry", "SELECT queue.retry($1)", About::Id),
    ("run_schedule", "SELECT queue.run_schedule($1)::text", About::Name),
    ("pause_schedule", "SELECT 'paused' FROM queue.pause_schedule($1)", About::Name),
    ("resume_schedule", "SELECT 'resumed' FROM queue.resume_schedule($1)", About::Name),
];

enum About {
    /// A queue or a schedule.
    Name,
    /// A number of tasks of a queue.
    Some,
    /// A task.
    Id,
}

/// Runs an action, given as {"action", "target", "tasks"}, and logs who ran it, without payloads.
pub async fn act(database: &Database, wish: &Value, visitor: &str) -> Result<Value, Problem> {
    let name = wish["action"].as_str().unwrap_or_default();
    let target = wish["target"].as_str().ok_or(Problem::bad("an action needs a target"))?;
    let (_, statement, about) =
        ACTIONS.iter().find(|(known, ..)| *known == name).ok_or(Problem::bad("there is no such action"))?;
    let (role, result) = match about {
        About::Name => database.act(statement, &[(&target, Type::TEXT)]).await,
        About::Some => {
            let tasks = wish["tasks"].as_i64().and_then(|tasks| i32::try_from(tasks).ok());
            let tasks = tasks.ok_or(Problem::bad("the number of tasks is missing"))?;
            database.act(statement, &[(&target, Type::TEXT), (&tasks, Type::INT4)]).await
        }
        About::Id => {
            let id: i64 = target.parse().map_err(|_| Problem::bad("the id of a task is a number"))?;
            database.act(statement, &[(&id, Type::INT8)]).await
        }
    };
    let outcome = match &result {
        Ok(said) => format!("result={said:?}"),
        Err(problem) => format!("refused={:?}", problem.line()),
    };
    let when = httpdate::fmt_http_date(std::time::SystemTime::now());
    eprintln!("{when} action={name} target={target:?} role={role:?} from={visitor} {outcome}");
    result.map(|said| json!({"result": said}))
}
