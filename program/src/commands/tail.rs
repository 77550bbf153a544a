//! `queue tail`: what happens to tasks, a line for each event.
//!
//! The events are derived from the times in the tables, because PostgreSQL has no list of events. A task that was claimed
//! and has ended between two looks still yields both lines. Each look covers a few seconds before the last one again: a
//! transaction that commits late has earlier times.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_postgres::types::{ToSql, Type};

use crate::connect::Session;
use crate::failure::Failure;
use crate::output;

const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
/// The database is asked for at most this part of the time.
const SHARE: u32 = 10;
/// How much of what was seen before is looked at again, in seconds.
const OVERLAP: f64 = 5.0;

const QUERY: &str = "
    WITH changed AS (
        SELECT id, queue, kind, state, attempt, worker, created_at, claimed_at, run_at, updated_at AS ended_at, errors
        FROM queue.tasks WHERE updated_at > to_timestamp($1)
        UNION ALL
        SELECT id, queue, kind, state, attempt, worker, created_at, claimed_at, run_at, finished_at, errors
        FROM queue.history WHERE finished_at > to_timestamp($1)
        UNION ALL
        SELECT id, queue, kind, 'failed', attempt, worker, created_at, claimed_at, run_at, failed_at, errors
        FROM queue.dead_letters WHERE failed_at > to_timestamp($1)),
    events AS (
        SELECT c.id, c.queue, c.kind, e.event, e.at, e.attempt, e.worker, e.error, e.retry_at
        FROM changed AS c CROSS JOIN LATERAL (
            SELECT 'added', c.created_at, NULL::integer, NULL::text, NULL::text, NULL::timestamptz
            UNION ALL
            SELECT 'claimed', c.claimed_at, c.attempt, c.worker, NULL, NULL WHERE c.claimed_at IS NOT NULL
            UNION ALL
            SELECT c.state, CASE c.state WHEN 'failed' THEN coalesce((c.errors -> -1 ->> 'at')::timestamptz, c.ended_at) ELSE c.ended_at END,
                c.attempt, c.worker, left(c.errors -> -1 ->> 'error', 1000), NULL
            WHERE c.state IN ('completed', 'cancelled', 'failed')
            UNION ALL
            SELECT 'attempt failed', (r ->> 'at')::timestamptz, (r ->> 'attempt')::integer, r ->> 'worker', left(r ->> 'error', 1000),
                CASE WHEN (r ->> 'attempt')::integer = c.attempt AND c.state = 'queued' THEN c.run_at END
            FROM jsonb_array_elements(c.errors) AS r WHERE c.state <> 'failed' OR (r ->> 'attempt')::integer < c.attempt
        ) AS e (event, at, attempt, worker, error, retry_at)
        WHERE e.at > to_timestamp($1) AND ($2::text IS NULL OR c.queue = $2))
    SELECT jsonb_build_object('now', extract(epoch FROM clock_timestamp())::float8, 'events', coalesce((
        SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('at', e.at, 'epoch', extract(epoch FROM e.at)::float8, 'event', e.event,
            'id', e.id, 'queue', e.queue, 'kind', e.kind, 'attempt', e.attempt, 'worker', e.worker,
            'error', CASE WHEN e.event IN ('failed', 'attempt failed') THEN e.error END, 'retry_at', e.retry_at)) ORDER BY e.at, e.id,
            array_position(ARRAY['added', 'claimed', 'attempt failed'], e.event) NULLS LAST)
        FROM events AS e), '[]'))";

pub async fn run(
    session: &Session,
    queue: Option<String>,
    since: Duration,
    as_json: bool,
) -> Result<ExitCode, Failure> {
    if let Some(queue) = &queue {
        // Reports a wrong name, which would only show nothing.
        let rows = session.rows("SELECT 1 FROM queue.queues WHERE name = $1", &[(queue, Type::TEXT)]).await?;
        if rows.is_empty() {
            return Err(Failure::new(format!(
                "queue \"{queue}\" does not exist, or you have no right on it"
            )));
        }
    }
    let now = session.rows("SELECT extract(epoch FROM clock_timestamp())::float8", &[]).await?;
    let begin: f64 = now[0].get::<_, f64>(0) - since.as_secs_f64();
    let mut from: f64 = begin;
    // What was printed, with its time, for as long as a look can meet it again.
    let mut seen: BTreeMap<(i64, String, String), f64> = BTreeMap::new();
    loop {
        let asked = Instant::now();
        let arguments: [(&(dyn ToSql + Sync), Type); 2] = [(&from, Type::FLOAT8), (&queue, Type::TEXT)];
        let look = tokio::select! {
            look = session.json(QUERY, &arguments) => look?,
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        };
        for event in look["events"].as_array().into_iter().flatten() {
            // The last failure of a dead letter that was put back is the failure of an attempt.
            let name = output::plain(&event["event"]).replace("attempt failed", "failed");
            let key = (event["id"].as_i64().unwrap_or(0), name, output::plain(&event["at"]));
            if seen.insert(key, event["epoch"].as_f64().unwrap_or(0.0)).is_none() {
                output::print(&if as_json { as_object(event) } else { as_line(event) })?;
            }
        }
        from = (look["now"].as_f64().unwrap_or(from) - OVERLAP).max(begin);
        seen.retain(|_, at| *at > from);
        let pause = SHORTEST_PAUSE.max(asked.elapsed() * SHARE);
        tokio::select! {
            () = tokio::time::sleep(pause) => {
                if !output::has_reader() {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn as_object(event: &Value) -> String {
    let mut event = event.clone();
    event.as_object_mut().map(|fields| fields.remove("epoch"));
    format!("{event}\n")
}

fn as_line(event: &Value) -> String {
    let text = |name: &str| output::plain(&event[name]);
    let kind = if event["kind"].is_null() { String::new() } else { format!("/{}", text("kind")) };
    let mut line =
        format!("{}  {:>8}  {:<14}  {}{kind}", text("at"), text("id"), text("event"), text("queue"));
    if !event["attempt"].is_null() {
        line += &format!("  attempt {}", text("attempt"));
    }
    if event["event"] == json!("claimed") && !event["worker"].is_null() {
        line += &format!("  by {}", text("worker"));
    }
    if !event["retry_at"].is_null() {
        line += &format!("  next at {}", text("retry_at"));
    }
    if let Some(first) = event["error"].as_str().and_then(|error| error.lines().next()) {
        line += &format!("  {}", output::visible(first));
    }
    line + "\n"
}
