//! Pushes one task.

use serde_json::Value;
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::problem::Problem;
use crate::wish;

/// A key that is taken is an error: otherwise it would look as if a task had been pushed.
const PUSH: &str = "
    SELECT queue.push($1, payload => coalesce($2::text::jsonb, '{}'), kind => $3, key => $4,
                      on_duplicate => CASE WHEN $4::text IS NULL THEN 'skip' ELSE 'error' END, group_key => $5, priority => coalesce($6, 0), delay => $7::text::interval,
                      max_attempts => $8, headers => $9::text::jsonb)::text";

/// The role, and the id of the new task.
pub async fn push(
    database: &Database,
    queue: &str,
    wish: &Value,
) -> Result<(String, Result<String, Problem>), Problem> {
    let (payload, headers) = (wish::json(wish, "payload")?, wish::object(wish, "headers")?);
    let (kind, key, group) =
        (wish::text(wish, "kind")?, wish::text(wish, "key")?, wish::text(wish, "group_key")?);
    let (priority, attempts) = (wish::whole(wish, "priority")?, wish::whole(wish, "max_attempts")?);
    let delay = wish::text(wish, "delay")?;
    let (role, result) = database
        .act(
            PUSH,
            &[
                (&queue, Type::TEXT),
                (&payload, Type::TEXT),
                (&kind, Type::TEXT),
                (&key, Type::TEXT),
                (&group, Type::TEXT),
                (&priority, Type::INT4),
                (&delay, Type::TEXT),
                (&attempts, Type::INT4),
                (&headers, Type::TEXT),
            ],
        )
        .await;
    let interval = |problem: Problem| match problem.sqlstate() {
        Some("22007" | "22008" | "22015") => Problem::bad("delay must be an interval, such as 10 minutes"),
        _ => problem,
    };
    Ok((role, result.map_err(interval).and_then(pushed)))
}

/// The id of a pushed task, or the problem of an action that has pushed none.
pub fn pushed(id: String) -> Result<String, Problem> {
    match id.as_str() {
        "" => Err(Problem::bad("a trigger on queue.tasks has suppressed the task")),
        _ => Ok(id),
    }
}
