//! Schedules: one for the form that changes it, its next runs before it is saved, and the saving.

use serde_json::{Map, Value, json};
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::problem::Problem;
use crate::wish;

/// Payload and headers are text, because a browser would round large numbers.
const SCHEDULE: &str = "
    SELECT jsonb_build_object(
        'name', s.name, 'cron', s.cron, 'timezone', s.timezone, 'queue', s.queue, 'missed_runs', s.missed_runs,
        'options', s.options - 'headers', 'headers', CASE WHEN NOT $2 THEN s.options ->> 'headers' END,
        'payload', CASE WHEN NOT $2 THEN jsonb_pretty(s.payload) END)
    FROM queue.schedules AS s WHERE s.name = $1";
const PREVIEW: &str = "
    SELECT coalesce(jsonb_agg(extract(epoch FROM p.run)::float8), '[]') FROM queue.schedule_preview($1, $2, 5) AS p (run)";

/// $6 are the options without the headers, which are $7.
const CREATE: &str = "
    SELECT coalesce(queue.schedule($1, $2, $3, coalesce($4::text::jsonb, '{}'), $5,
                                   $6 || CASE WHEN $7::text IS NULL THEN '{}'
                                              ELSE jsonb_build_object('headers', $7::text::jsonb) END)::text, 'paused')
    WHERE NOT EXISTS (SELECT FROM queue.schedules AS s WHERE s.name = $1)";
/// If payloads are hidden, $8, the payload and the headers stay.
const CHANGE: &str = "
    SELECT coalesce(queue.schedule(s.name, $2, $3, CASE WHEN $8 THEN s.payload ELSE coalesce($4::text::jsonb, '{}') END, $5,
                                   $6 || CASE WHEN $8 THEN jsonb_strip_nulls(jsonb_build_object('headers', s.options -> 'headers'))
                                              WHEN $7::text IS NULL THEN '{}'
                                              ELSE jsonb_build_object('headers', $7::text::jsonb) END)::text, 'paused')
    FROM queue.schedules AS s WHERE s.name = $1";

const TEXTS: &[&str] =
    &["missed_runs", "delay", "key", "on_duplicate", "group_key", "kind", "lease", "timeout", "ttl"];
const NUMBERS: &[&str] = &["priority", "max_attempts", "weight"];

pub async fn schedule(database: &Database, name: &str, hide_payloads: bool) -> Result<Value, Problem> {
    database.read(SCHEDULE, &[(&name, Type::TEXT), (&hide_payloads, Type::BOOL)]).await
}

/// The next five runs.
pub async fn preview(database: &Database, cron: &str, timezone: &str) -> Result<Value, Problem> {
    database.read(PREVIEW, &[(&cron, Type::TEXT), (&timezone, Type::TEXT)]).await
}

/// Creates a schedule, or changes one that exists; returns the role and the next run.
pub async fn save(
    database: &Database,
    name: &str,
    wish: &Value,
    create: bool,
    hide_payloads: bool,
) -> Result<(String, Result<String, Problem>), Problem> {
    let (cron, queue) = (wish::needed(wish, "cron")?, wish::needed(wish, "queue")?);
    let timezone = wish::text(wish, "timezone")?.unwrap_or("UTC".to_owned());
    let (payload, headers) = (wish::json(wish, "payload")?, wish::object(wish, "headers")?);
    let mut options = Map::new();
    for option in TEXTS {
        wish::text(wish, option)?.map(|text| options.insert((*option).to_owned(), json!(text)));
    }
    for option in NUMBERS {
        wish::whole(wish, option)?.map(|number| options.insert((*option).to_owned(), json!(number)));
    }
    let options = Value::Object(options);
    let arguments: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 8] = [
        (&name, Type::TEXT),
        (&cron, Type::TEXT),
        (&queue, Type::TEXT),
        (&payload, Type::TEXT),
        (&timezone, Type::TEXT),
        (&options, Type::JSONB),
        (&headers, Type::TEXT),
        (&hide_payloads, Type::BOOL),
    ];
    let (role, result) = database.act(if create { CREATE } else { CHANGE }, &arguments).await;
    let missing = || match create {
        true => Problem::bad(&format!("a schedule {name:?} exists"))
            .hint("Choose another name, or edit that schedule."),
        false => Problem::bad(&format!("the schedule {name:?} does not exist")),
    };
    Ok((role, result.and_then(|run| if run.is_empty() { Err(missing()) } else { Ok(run) })))
}
