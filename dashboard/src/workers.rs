//! What each worker does now, and has done lately. The overview has the leases and the waits.

use serde_json::Value;
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::problem::Problem;

/// Running tasks are found among the first tasks of each queue. Completed tasks are counted among the newest of the
/// history by id, which an index finds however long the history is.
const WORKERS: &str = "
    SELECT jsonb_build_object(
        'minutes', 10, 'history', 5000,
        'tasks', (
            SELECT jsonb_agg(jsonb_build_object(
                'id', r.id::text, 'queue', r.queue, 'kind', r.kind, 'worker', r.worker,
                'claimed', extract(epoch FROM r.claimed_at)::float8,
                'beat', extract(epoch FROM r.updated_at)::float8,
                'lease', extract(epoch FROM r.lease_until)::float8,
                'progress', CASE WHEN NOT $1 THEN left(r.progress::text, 200) END) ORDER BY r.claimed_at, r.id)
            FROM (SELECT h.*
                  FROM queue.queues AS q CROSS JOIN LATERAL (
                      SELECT t.id, t.queue, t.kind, t.worker, t.claimed_at, t.updated_at, t.lease_until, t.progress, t.state
                      FROM queue.tasks AS t WHERE t.queue = q.name AND t.admission < 2
                      ORDER BY t.priority, t.run_at, t.id LIMIT 1000) AS h
                  WHERE h.state = 'running' ORDER BY h.claimed_at, h.id LIMIT 500) AS r),
        'done', (
            SELECT jsonb_agg(jsonb_build_object(
                'worker', d.worker, 'tasks', d.tasks, 'last', extract(epoch FROM d.last)::float8))
            FROM (SELECT f.worker, count(*) AS tasks, max(f.finished_at) AS last
                  FROM (SELECT h.worker, h.state, h.finished_at FROM queue.history AS h ORDER BY h.id DESC LIMIT 5000) AS f
                  WHERE f.state = 'completed' AND f.finished_at > clock_timestamp() - interval '10 minutes'
                  GROUP BY f.worker ORDER BY max(f.finished_at) DESC LIMIT 500) AS d))";

pub async fn workers(database: &Database, hide_payloads: bool) -> Result<Value, Problem> {
    database.read(WORKERS, &[(&hide_payloads, Type::BOOL)]).await
}
