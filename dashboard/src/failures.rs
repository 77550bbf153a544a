//! The last failures, grouped by error: each task whose last attempt failed, under the first line of the message of
//! its last error, in which numbers and ids are replaced.
//!
//! Two windows are read, each along an index: the last dead letters of each queue, and the oldest live tasks, because a
//! task that is retried is older than most that have not been claimed.

use serde_json::Value;
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::message::message;
use crate::problem::Problem;

/// The number of groups, or of tasks of one group, that are shown.
const SHOWN: &str = "100";

const FAILURES: &str = r"
    WITH dead AS MATERIALIZED (
        SELECT d.*, count(*) OVER (PARTITION BY d.queue) = 1000 AS cut FROM queue.queues AS q CROSS JOIN LATERAL (
            SELECT i.id, i.queue, i.kind, i.failed_at AS at, left({message_of_dead}, 1000) AS error
            FROM queue.dead_letters AS i WHERE i.queue = q.name ORDER BY i.failed_at DESC, i.id DESC LIMIT 1000) AS d
        WHERE $1 = '' OR q.name = $1
        ORDER BY d.at DESC LIMIT 5000
    ), live AS MATERIALIZED (
        SELECT t.id, t.queue, t.kind, t.errors FROM queue.tasks AS t ORDER BY t.id LIMIT 20000
    ), tasks AS (
        SELECT d.id, d.queue, d.kind, d.at, d.error, true AS dead FROM dead AS d
        UNION ALL
        SELECT l.id, l.queue, l.kind, (l.errors -> -1 ->> 'at')::timestamptz, left({message_of_live}, 1000), false
        FROM live AS l WHERE jsonb_typeof(l.errors) = 'array' AND l.errors <> '[]' AND ($1 = '' OR l.queue = $1)
    ), failures AS (
        SELECT t.*, left(regexp_replace(regexp_replace(regexp_replace(
                   btrim(split_part(t.error, E'\n', 1)),
                   '\m[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\M', '#', 'gi'),
                   '\m(?=[a-f]*[0-9])(0x)?[0-9a-f]{8,}\M', '#', 'gi'),
                   '[0-9]+', '#', 'g'), 200) AS pattern
        FROM tasks AS t WHERE t.error IS NOT NULL AND ($2 = '' OR t.kind = $2)
    )
    SELECT jsonb_build_object(
        'groups', CASE WHEN $3 = '' THEN (
            SELECT coalesce(jsonb_agg(g.shown ORDER BY g.tasks DESC, g.pattern), '[]') FROM (
                SELECT f.pattern, count(*) AS tasks, jsonb_build_object(
                    'error', f.pattern, 'tasks', count(*), 'dead', count(*) FILTER (WHERE f.dead),
                    'queues', to_jsonb((array_agg(DISTINCT f.queue))[1:5]),
                    'kinds', to_jsonb((array_agg(DISTINCT f.kind) FILTER (WHERE f.kind IS NOT NULL))[1:5]),
                    'first', extract(epoch FROM min(f.at))::float8, 'last', extract(epoch FROM max(f.at))::float8,
                    'example', (array_agg(f.id ORDER BY f.at DESC))[1]::text) AS shown
                FROM failures AS f GROUP BY f.pattern ORDER BY 2 DESC, 1 LIMIT {shown}) AS g) END,
        'tasks', CASE WHEN $3 <> '' THEN (
            SELECT coalesce(jsonb_agg(jsonb_build_object(
                'id', f.id::text, 'queue', f.queue, 'kind', f.kind, 'dead', f.dead, 'error', f.error,
                'at', extract(epoch FROM f.at)::float8) ORDER BY f.at DESC, f.id DESC), '[]')
            FROM (SELECT * FROM failures AS f WHERE f.pattern = $3 ORDER BY f.at DESC, f.id DESC LIMIT {shown}) AS f) END,
        'found', (SELECT count(*) FROM failures AS f WHERE $3 IN ('', f.pattern)),
        'dead_read', (SELECT count(*) FROM dead), 'dead_cut', (SELECT count(*) = 5000 OR coalesce(bool_or(d.cut), false) FROM dead AS d),
        'live_read', (SELECT count(*) FROM live), 'live_cut', (SELECT count(*) = 20000 FROM live))";

/// The groups; or the tasks of one group, if `error` is its text.
pub async fn failures(database: &Database, queue: &str, kind: &str, error: &str) -> Result<Value, Problem> {
    let arguments = [queue, kind, error];
    let [queue, kind, error] = &arguments;
    let query = FAILURES
        .replace("{shown}", SHOWN)
        .replace("{message_of_dead}", &message("i.errors -> -1 ->> 'error'"))
        .replace("{message_of_live}", &message("l.errors -> -1 ->> 'error'"));
    database.read(&query, &[(queue, Type::TEXT), (kind, Type::TEXT), (error, Type::TEXT)]).await
}
