//! The actions of the dashboard. Each calls one function of the extension.

use serde_json::{Value, json};
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::journal::{self, Visitor};
use crate::problem::Problem;
use crate::{bulk, push, schedules, wish};

/// The name, the statement, and the kind of its target.
const ACTIONS: &[(&str, &str, About)] = &[
    ("pause", "SELECT 'paused' FROM queue.pause($1)", About::Name),
    ("resume", "SELECT 'resumed' FROM queue.resume($1)", About::Name),
    ("redrive", "SELECT queue.redrive($1, $2)::text", About::Some),
    ("cancel", "SELECT queue.cancel($1)", About::Id),
    ("retry", "SELECT queue.retry($1)", About::Id),
    ("run_now", "CALL queue.run_now_where(jsonb_build_object('ids', jsonb_build_array($1)))", About::Id),
    (
        "reprioritise",
        "CALL queue.reprioritise_where(jsonb_build_object('ids', jsonb_build_array($1)), $2)",
        About::Priority,
    ),
    ("run_schedule", "SELECT queue.run_schedule($1)::text", About::Run),
    ("pause_schedule", "SELECT 'paused' FROM queue.pause_schedule($1)", About::Name),
    ("resume_schedule", "SELECT 'resumed' FROM queue.resume_schedule($1)", About::Name),
    ("unschedule", "SELECT 'deleted' FROM queue.unschedule($1)", About::Name),
    ("push", "", About::Push),
    ("create_schedule", "", About::Schedule { create: true }),
    ("change_schedule", "", About::Schedule { create: false }),
];

enum About {
    /// A queue or a schedule.
    Name,
    /// A schedule, whose task is pushed.
    Run,
    /// A number of tasks of a queue.
    Some,
    /// A task.
    Id,
    /// A task and its new priority.
    Priority,
    /// A queue and the fields of a task.
    Push,
    /// A schedule and its fields.
    Schedule { create: bool },
}

/// Runs an action, given as {"action", "target"} and its fields, and logs who ran it, without payloads.
pub async fn act(
    database: &Database,
    wish: &Value,
    visitor: &Visitor,
    hide_payloads: bool,
) -> Result<Value, Problem> {
    let name = wish["action"].as_str().unwrap_or_default();
    if bulk::knows(name) {
        return bulk::act(database, wish, visitor, hide_payloads).await;
    }
    let target = wish["target"].as_str().ok_or(Problem::bad("an action needs a target"))?;
    let (_, statement, about) =
        ACTIONS.iter().find(|(known, ..)| *known == name).ok_or(Problem::bad("there is no such action"))?;
    let id = || target.parse::<i64>().map_err(|_| Problem::bad("the id of a task is a number"));
    let (role, result) = match about {
        About::Name => database.act(statement, &[(&target, Type::TEXT)]).await,
        About::Run => {
            let (role, result) = database.act(statement, &[(&target, Type::TEXT)]).await;
            (role, result.and_then(push::pushed))
        }
        About::Some => {
            let tasks = wish["tasks"].as_i64().and_then(|tasks| i32::try_from(tasks).ok());
            let tasks = tasks.ok_or(Problem::bad("the number of tasks is missing"))?;
            database.act(statement, &[(&target, Type::TEXT), (&tasks, Type::INT4)]).await
        }
        About::Id => database.act(statement, &[(&id()?, Type::INT8)]).await,
        About::Priority => {
            let priority = wish::whole(wish, "priority")?.ok_or(Problem::bad("priority is missing"))?;
            database.act(statement, &[(&id()?, Type::INT8), (&priority, Type::INT4)]).await
        }
        About::Push => push::push(database, target, wish).await?,
        About::Schedule { create } => schedules::save(database, target, wish, *create, hide_payloads).await?,
    };
    journal::record(name, target, &role, visitor, result.as_ref().map(String::as_str));
    result.map(|said| json!({"result": said}))
}
