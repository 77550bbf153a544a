//! What happened in a range of time, computed from the rows that the extension keeps. So the charts survive a restart of
//! the dashboard.
//!
//! The history has a BRIN index on the end of each task, and partitions by day. If the range has too many rows to read
//! them all, a sample of the pages of its partitions is read instead, which shows the whole range with less precision.

use serde_json::{Value, json};
use tokio_postgres::types::{ToSql, Type};

use crate::database::Database;
use crate::problem::Problem;

/// The name of a range, the seconds of one bucket, and the number of buckets.
const RANGES: &[(&str, f64, i32)] = &[
    ("hour", 60.0, 60),
    ("6hours", 300.0, 72),
    ("day", 1800.0, 48),
    ("week", 10_800.0, 56),
    ("month", 43_200.0, 60),
];

/// The largest number of finished tasks that are all read, and the number of pages in a sample of more.
const READ: i64 = 100_000;
const SAMPLE_PAGES: f64 = 3_000.0;

/// The start of the first bucket, and the pages of the partitions that can have rows of the range. Buckets begin at
/// multiples of their length, so that they stay the same when the page refreshes.
const EXTENT: &str = "
    SELECT jsonb_build_object('since', r.since, 'pages', (
        SELECT coalesce(sum(pg_relation_size(c.oid)), 0)::float8 / current_setting('block_size')::float8
        FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'queue.history'::regclass
          AND coalesce(substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO [(]''(.*)''[)]')::timestamptz, 'infinity')
              > to_timestamp(r.since)))
    FROM (SELECT (floor(date_part('epoch', now()) / $1) - $2 + 1) * $1 AS since) AS r";

/// The rows of the range, up to the limit.
const ROWS: &str = "
    SELECT to_jsonb(count(*)) FROM (SELECT FROM queue.history AS h WHERE h.finished_at >= to_timestamp($1) LIMIT $2 + 1) AS h";

/// A task of the history counts as pushed and as ended, one of the dead letters as pushed and as failed, a live task as
/// pushed. Live tasks are read from the newest, because ids follow the order of pushes.
const ACTIVITY: &str = "
    WITH ended AS MATERIALIZED (
        SELECT h.state, {pushed} AS pushed, {ended} AS bucket,
               CASE WHEN h.attempt = 1
                    THEN date_part('epoch', h.claimed_at - greatest(h.run_at, h.created_at)) END AS wait,
               CASE WHEN h.state = 'completed' THEN date_part('epoch', h.finished_at - h.claimed_at) END AS run
        FROM queue.history AS h {sample}
        WHERE h.finished_at >= to_timestamp($2) AND ($3 = '' OR h.queue = $3) AND ($4 = '' OR h.kind = $4)
    ), dead_read AS MATERIALIZED (
        SELECT d.* FROM queue.queues AS q CROSS JOIN LATERAL (
            SELECT i.queue, i.kind, i.created_at, i.failed_at FROM queue.dead_letters AS i
            WHERE i.queue = q.name AND i.failed_at >= to_timestamp($2)
            ORDER BY i.failed_at DESC LIMIT 20001) AS d
        WHERE $3 = '' OR q.name = $3
    ), dead AS (
        SELECT {pushed_dead} AS pushed, {failed} AS bucket FROM dead_read AS d WHERE $4 = '' OR d.kind = $4
    ), live_read AS MATERIALIZED (
        SELECT t.queue, t.kind, t.created_at FROM queue.tasks AS t ORDER BY t.id DESC LIMIT 100000
    ), live AS (
        SELECT {pushed_live} AS pushed FROM live_read AS t
        WHERE t.created_at >= to_timestamp($2) AND ($3 = '' OR t.queue = $3) AND ($4 = '' OR t.kind = $4)
    ), pushed AS (
        SELECT a.bucket, sum(a.weight) AS tasks FROM (
            SELECT e.pushed AS bucket, $5 AS weight FROM ended AS e
            UNION ALL SELECT d.pushed, 1 FROM dead AS d
            UNION ALL SELECT l.pushed, 1 FROM live AS l) AS a
        WHERE a.bucket >= 0 GROUP BY a.bucket
    ), times AS (
        SELECT e.bucket, count(*) FILTER (WHERE e.state = 'completed') AS completed,
               count(*) FILTER (WHERE e.state = 'cancelled') AS cancelled,
               percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY e.wait) AS wait,
               percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY e.run) AS run
        FROM ended AS e GROUP BY e.bucket
    )
    SELECT jsonb_build_object(
        'since', $2, 'step', $1,
        'now', date_part('epoch', now()), 'read', (SELECT count(*) FROM ended),
        'pushed', (SELECT coalesce(jsonb_agg(jsonb_build_array(p.bucket, round(p.tasks))), '[]') FROM pushed AS p),
        'ended', (SELECT coalesce(jsonb_agg(jsonb_build_object('bucket', t.bucket, 'completed', round(t.completed * $5),
                             'cancelled', round(t.cancelled * $5), 'wait', t.wait, 'run', t.run)), '[]')
                  FROM times AS t),
        'failed', (SELECT coalesce(jsonb_agg(jsonb_build_array(f.bucket, f.tasks)), '[]')
                   FROM (SELECT d.bucket, count(*) AS tasks FROM dead AS d GROUP BY d.bucket) AS f),
        'live_since', (SELECT CASE WHEN count(*) = 100000 AND min(l.created_at) > to_timestamp($2)
                                   THEN date_part('epoch', min(l.created_at)) END FROM live_read AS l),
        'unkept', (SELECT count(*) FROM queue.queues AS q WHERE NOT q.keep_history AND ($3 = '' OR q.name = $3)),
        'dead_cut', (SELECT coalesce(max(q.tasks), 0) > 20000
                     FROM (SELECT count(*) AS tasks FROM dead_read AS d GROUP BY d.queue) AS q))";

/// The data of the charts for the parameters of the address.
pub async fn activity(database: &Database, range: &str, queue: &str, kind: &str) -> Result<Value, Problem> {
    let range = if range.is_empty() { "day" } else { range };
    let (_, step, buckets) = RANGES
        .iter()
        .find(|(name, ..)| *name == range)
        .ok_or(Problem::bad("range is one of hour, 6hours, day, week and month"))?;
    let extent = database.read(EXTENT, &[(step, Type::FLOAT8), (buckets, Type::INT4)]).await?;
    let number = |name: &str| extent[name].as_f64().unwrap_or_default();
    let since = number("since");
    let percent = sample(database, since, number("pages")).await;
    let weight = percent.map_or(1.0, |percent| 100.0 / percent);
    let arguments: [(&(dyn ToSql + Sync), Type); 5] = [
        (step, Type::FLOAT8),
        (&since, Type::FLOAT8),
        (&queue, Type::TEXT),
        (&kind, Type::TEXT),
        (&weight, Type::FLOAT8),
    ];
    let mut seen = database.read(&query(percent), &arguments).await?;
    seen["buckets"] = json!(buckets);
    seen["sample"] = json!(percent);
    Ok(seen)
}

/// How many percent of the pages to read; none to read every row of the range, which the index finds.
async fn sample(database: &Database, since: f64, pages: f64) -> Option<f64> {
    let percent = 100.0 * SAMPLE_PAGES / pages;
    if percent >= 100.0 {
        return None;
    }
    let rows = database.read(ROWS, &[(&since, Type::FLOAT8), (&READ, Type::INT8)]).await;
    // If the time limit ended the count, because the role may read few of many rows, the sample is quicker.
    let few = rows.is_ok_and(|rows| rows.as_i64().is_some_and(|rows| rows <= READ));
    (!few).then_some(percent)
}

/// The sample is the same in each query, so that the charts do not tremble when the page refreshes.
fn query(percent: Option<f64>) -> String {
    let sample =
        percent.map_or(String::new(), |percent| format!("TABLESAMPLE SYSTEM ({percent}) REPEATABLE (1)"));
    let bucket = |column: &str| format!("floor((date_part('epoch', {column}) - $2) / $1)::integer");
    ACTIVITY
        .replace("{sample}", &sample)
        .replace("{pushed}", &bucket("h.created_at"))
        .replace("{ended}", &bucket("h.finished_at"))
        .replace("{pushed_dead}", &bucket("d.created_at"))
        .replace("{failed}", &bucket("d.failed_at"))
        .replace("{pushed_live}", &bucket("t.created_at"))
}
