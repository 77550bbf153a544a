//! One task with all its events and what belongs to it, and one queue with its options.

use serde_json::Value;
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::problem::Problem;

/// How much of a JSON value, how many errors, and how much of each error is shown.
const TASK: &str = "
    SELECT jsonb_build_object(
        'id', g.id::text, 'queue', g.queue, 'priority', g.priority, 'token', g.token, 'attempt', g.attempt,
        'state', CASE WHEN g.state = 'queued' AND g.run_at > clock_timestamp() THEN 'scheduled' ELSE g.state END,
        'max_attempts', coalesce(g.max_attempts, (SELECT q.max_attempts FROM queue.queues AS q WHERE q.name = g.queue)),
        'worker', g.worker, 'kind', g.kind, 'key', g.key, 'group', g.group_key,
        'own_lease', g.lease::text, 'weight', g.weight,
        'timeout', coalesce(g.timeout, (SELECT q.timeout FROM queue.queues AS q WHERE q.name = g.queue))::text,
        'start_by', extract(epoch FROM g.start_by)::float8,
        'created', extract(epoch FROM g.created_at)::float8, 'run_at', extract(epoch FROM g.run_at)::float8,
        'claimed', extract(epoch FROM g.claimed_at)::float8, 'lease', extract(epoch FROM g.lease_until)::float8,
        'cancel_requested', extract(epoch FROM g.cancel_requested_at)::float8,
        'ended', extract(epoch FROM g.finished_at)::float8,
        'errors_in_all', CASE jsonb_typeof(g.errors) WHEN 'array' THEN jsonb_array_length(g.errors) ELSE 0 END,
        'errors', (SELECT jsonb_agg(jsonb_build_object('attempt', e.error -> 'attempt', 'at', e.error -> 'at',
                                                       'claimed', e.error -> 'claimed_at',
                                                       'worker', e.error -> 'worker',
                                                       'error', left(e.error ->> 'error', 20000)) ORDER BY e.n)
                   FROM (SELECT * FROM jsonb_array_elements(
                             CASE jsonb_typeof(g.errors) WHEN 'array' THEN g.errors END) WITH ORDINALITY AS e (error, n)
                         ORDER BY e.n DESC LIMIT 50) AS e),
        'documents', CASE WHEN NOT $2 THEN (
            SELECT jsonb_agg(jsonb_build_object('name', d.name, 'bytes', octet_length(d.value::text),
                                                'text', left(jsonb_pretty(d.value), 100000)) ORDER BY d.n)
            FROM (VALUES (1, 'payload', g.payload), (2, 'headers', g.headers), (3, 'progress', g.progress),
                         (4, 'result', g.result)) AS d (n, name, value)
            WHERE d.value IS NOT NULL) END)
    FROM queue.get($1) AS g";

/// The steps that the task has stored and what it waits for, the last of them; the batch of which it is the callback; and
/// the tasks before and after it, with those that have not ended first. Values of steps can hold payloads and are not read.
const CONTEXT: &str = "
    WITH steps AS MATERIALIZED (
        SELECT s.name, s.kind, s.stored_at, s.n FROM queue.steps($1) WITH ORDINALITY AS s (name, value, stored_at, kind, n)
    ), before AS MATERIALIZED (
        SELECT * FROM queue.dependencies AS d WHERE d.task_id = $1 ORDER BY d.outcome DESC NULLS FIRST, d.predecessor_id LIMIT 8
    ), after AS MATERIALIZED (
        SELECT * FROM queue.dependencies AS d WHERE d.predecessor_id = $1 ORDER BY d.task_id LIMIT 8
    ), states AS MATERIALIZED (
        SELECT t.id, CASE WHEN t.state = 'queued' AND t.run_at > clock_timestamp() THEN 'scheduled' ELSE t.state END AS state
        FROM queue.tasks AS t
        WHERE t.id = ANY (ARRAY(SELECT d.predecessor_id FROM before AS d UNION SELECT d.task_id FROM after AS d))
    )
    SELECT jsonb_build_object(
        'steps', (SELECT coalesce(jsonb_agg(jsonb_build_object('name', s.name, 'kind', s.kind,
                             'at', extract(epoch FROM s.stored_at)::float8) ORDER BY s.n), '[]')
                  FROM (SELECT * FROM steps AS s ORDER BY s.n DESC LIMIT 20) AS s),
        'steps_in_all', (SELECT count(*) FROM steps),
        'batch', (SELECT jsonb_build_object('sealed', b.sealed_at IS NOT NULL, 'unfinished', b.unfinished,
                             'completed', b.completed, 'failed', b.failed, 'cancelled', b.cancelled)
                  FROM queue.batches AS b WHERE b.batch = $1),
        'before', (SELECT coalesce(jsonb_agg(jsonb_build_object('id', d.predecessor_id::text, 'member', d.is_batch,
                              'state', coalesce(d.outcome, (SELECT s.state FROM states AS s WHERE s.id = d.predecessor_id)))), '[]')
                   FROM before AS d),
        'before_in_all', (SELECT count(*) FROM (SELECT FROM queue.dependencies AS d WHERE d.task_id = $1 LIMIT 10001) AS d),
        'after', (SELECT coalesce(jsonb_agg(jsonb_build_object('id', d.task_id::text, 'member', d.is_batch,
                             'state', (SELECT s.state FROM states AS s WHERE s.id = d.task_id))), '[]')
                  FROM after AS d),
        'after_in_all', (SELECT count(*) FROM (SELECT FROM queue.dependencies AS d WHERE d.predecessor_id = $1 LIMIT 10001) AS d))";

const QUEUE: &str = "SELECT to_jsonb(q) FROM queue.queues AS q WHERE q.name = $1";

pub async fn task(database: &Database, id: &str, hide_payloads: bool) -> Result<Value, Problem> {
    let id: i64 = id.parse().map_err(|_| Problem::bad("the id of a task is a number"))?;
    let mut task = database.read(TASK, &[(&id, Type::INT8), (&hide_payloads, Type::BOOL)]).await?;
    // A task that was purged in between has no context.
    task["context"] = database.read(CONTEXT, &[(&id, Type::INT8)]).await.unwrap_or_default();
    Ok(task)
}

pub async fn queue(database: &Database, name: &str) -> Result<Value, Problem> {
    database.read(QUEUE, &[(&name, Type::TEXT)]).await
}
