//! The tasks as they were found in the end.

use crate::torture::load::QUEUES;

/// A task as it was found in the end.
#[derive(Clone, Debug)]
pub struct Found {
    pub id: i64,
    pub queue: String,
    pub state: String,
    pub value: String,
    pub token: i64,
    pub attempt: i32,
    pub key: Option<String>,
    pub group: Option<String>,
    /// In microseconds since 1970; a live task has none.
    pub finished: Option<i64>,
    /// Whether it was not started by its deadline.
    pub expired: bool,
    /// For the callback of a batch: how many tasks completed, failed and were cancelled.
    pub counts: Option<serde_json::Value>,
    /// Its steps, and the events that it awaited, by name.
    pub steps: serde_json::Value,
    /// The attempts that ended without their workers: the worker, when that was recorded, and the error.
    pub expiries: Vec<(Option<String>, i64, String)>,
}

/// Reads all tasks.
pub fn found(client: &mut postgres::Client) -> Vec<Found> {
    let query = "SELECT id, queue, state, payload->>'value', token, attempt, key, group_key, \
                 (extract(epoch FROM finished_at) * 1000000)::bigint, coalesce(errors->-1->>'error' = 'expired', false), \
                 headers->'batch', coalesce((SELECT jsonb_object_agg(s.name, coalesce(s.value, '\"timeout\"')) FROM queue_internal.steps AS s \
                                             WHERE s.task_id = a.id), '{}'), \
                 (SELECT jsonb_agg(jsonb_build_array(e.value->>'worker', \
                             (extract(epoch FROM (e.value->>'at')::timestamptz) * 1000000)::bigint, e.value->>'error')) \
                  FROM jsonb_array_elements(a.errors) AS e WHERE e.value->>'error' IN ('timed out', 'lease expired')) \
                 FROM queue.all_tasks AS a WHERE queue = ANY ($1)";
    let rows = client.query(query, &[&QUEUES.as_slice()]).expect("read all tasks");
    rows.iter()
        .map(|row| Found {
            id: row.get(0),
            queue: row.get(1),
            state: row.get(2),
            value: row.get(3),
            token: row.get(4),
            attempt: row.get(5),
            key: row.get(6),
            group: row.get(7),
            finished: row.get(8),
            expired: row.get(9),
            counts: row.get(10),
            steps: row.get(11),
            expiries: row
                .get::<_, Option<serde_json::Value>>(12)
                .map_or_else(Vec::new, |errors| serde_json::from_value(errors).expect("errors")),
        })
        .collect()
}
