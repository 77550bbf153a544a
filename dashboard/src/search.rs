//! Lists of tasks. Every list scans an index, reads a bounded number of tasks, and returns how many it read and where
//! to continue. So no search reads more rows than that, even of millions.

use serde_json::{Value, json};
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::filter::Filter;
use crate::message::message;
use crate::problem::Problem;

/// How many tasks a list shows, and how many it reads: fewer if it has to read payloads.
const PAGE: usize = 50;
const READ: usize = 20_000;
const READ_WITH_PAYLOADS: usize = 5_000;

pub struct Search {
    pub filter: Filter,
    /// Where the previous list ended.
    pub after: String,
}

/// Which table and which index a list reads.
struct Walk {
    relation: &'static str,
    state: &'static str,
    /// When the task left the queue, and until when it is leased.
    ended: &'static str,
    lease: &'static str,
    /// The columns that are searched in addition to names and errors, unless payloads are hidden.
    documents: &'static str,
    order: &'static Order,
    /// The condition under which a task is in the index.
    on: &'static str,
}

struct Order {
    name: &'static str,
    by: &'static str,
    /// A task's position in the order as text, and the condition for tasks after a position.
    position: &'static str,
    after_position: &'static str,
}

static NEWEST: Order = Order {
    name: "newest first",
    by: "t.id DESC",
    position: "t.id::text",
    after_position: "t.id < $3::bigint",
};
static CLAIMS: Order = Order {
    name: "by priority, and then the longest due first",
    by: "t.priority, t.run_at, t.id",
    position: "concat_ws('|', t.priority, t.run_at, t.id)",
    after_position: "(t.priority, t.run_at, t.id) > (split_part($3, '|', 1)::integer, \
             split_part($3, '|', 2)::timestamptz, split_part($3, '|', 3)::bigint)",
};
static FAILED: Order = Order {
    name: "last failed first",
    by: "t.failed_at DESC, t.id DESC",
    position: "concat_ws('|', t.failed_at, t.id)",
    after_position: "(t.failed_at, t.id) < (split_part($3, '|', 1)::timestamptz, split_part($3, '|', 2)::bigint)",
};
static OPEN: Order = Order {
    name: "those that can run first, and then the oldest first",
    by: "t.admission, t.id",
    position: "concat_ws('|', t.admission, t.id)",
    after_position: "(t.admission, t.id) > (split_part($3, '|', 1)::smallint, split_part($3, '|', 2)::bigint)",
};
static LONGEST: Order = Order {
    name: "running longest first, among the first 1,000 tasks of each queue",
    by: "t.claimed_at, t.id",
    position: "concat_ws('|', t.claimed_at, t.id)",
    after_position: "(t.claimed_at, t.id) > (split_part($3, '|', 1)::timestamptz, split_part($3, '|', 2)::bigint)",
};

// By the clock and not by the start of the transaction: a task that was pushed meanwhile is due, not scheduled.
static LIVE: Walk = Walk {
    relation: "queue.tasks",
    state: "CASE WHEN t.state <> 'queued' THEN t.state WHEN t.admission = 2 THEN 'blocked' \
            WHEN t.run_at > clock_timestamp() THEN 'scheduled' ELSE 'queued' END",
    ended: "NULL::timestamptz",
    lease: "t.lease_until",
    documents: "t.headers, t.payload, t.progress",
    order: &NEWEST,
    on: "true",
};
/// The tasks of one queue in the order of claims.
static QUEUE: Walk = Walk { order: &CLAIMS, on: "t.queue = $1 AND t.admission < 2", ..LIVE };
/// The tasks of one group that have not ended.
static GROUP: Walk = Walk { order: &OPEN, on: "t.queue = $1 AND t.group_key = $15", ..LIVE };
/// The first tasks of each queue, which include the running ones, however many follow.
static HEADS: Walk = Walk {
    relation: "(SELECT h.* FROM queue.queues AS q CROSS JOIN LATERAL (
                   SELECT * FROM queue.tasks AS i WHERE i.queue = q.name AND i.admission < 2
                   ORDER BY i.priority, i.run_at, i.id LIMIT 1000) AS h WHERE h.state = 'running')",
    order: &LONGEST,
    ..LIVE
};
static DEAD: Walk = Walk {
    relation: "queue.dead_letters",
    state: "'failed'",
    ended: "t.failed_at",
    lease: "NULL::timestamptz",
    ..LIVE
};
static DEAD_OF_QUEUE: Walk = Walk { order: &FAILED, on: "t.queue = $1", ..DEAD };
static HISTORY: Walk = Walk {
    relation: "queue.history",
    state: "t.state",
    ended: "t.finished_at",
    documents: "t.headers, t.payload, t.progress, t.result",
    ..DEAD
};
static ANYWHERE: Walk = Walk {
    relation: "queue.all_tasks",
    state: "CASE WHEN t.state = 'queued' AND t.run_at > clock_timestamp() THEN 'scheduled' ELSE t.state END",
    lease: "t.lease_until",
    ..HISTORY
};

impl Search {
    fn walk(&self) -> Result<&'static Walk, Problem> {
        let Filter { state, queue, one_group, .. } = &self.filter;
        Ok(match (state.as_str(), queue.is_empty()) {
            ("", _) => &ANYWHERE,
            ("live" | "queued" | "scheduled" | "running" | "waiting" | "blocked", false)
                if !one_group.is_empty() =>
            {
                &GROUP
            }
            ("running", true) => &HEADS,
            ("live" | "waiting" | "blocked", _) | ("queued" | "scheduled", true) => &LIVE,
            ("queued" | "scheduled" | "running", false) => &QUEUE,
            ("failed", true) => &DEAD,
            ("failed", false) => &DEAD_OF_QUEUE,
            ("completed" | "cancelled", _) => &HISTORY,
            _ => return Err(Problem::bad("there is no such state")),
        })
    }

    /// A page of tasks, and where the next one starts.
    pub async fn run(&self, database: &Database, hide_payloads: bool) -> Result<Value, Problem> {
        let walk = self.walk()?;
        let limit = if self.filter.reads_documents() { READ_WITH_PAYLOADS } else { READ };
        let arguments = self.filter.arguments(&self.after);
        let mut tasks = database.read(&self.list(walk, limit, hide_payloads), &arguments).await?;
        let found = tasks.as_array_mut().ok_or(Problem::bad("no list"))?;
        let (next, looked) = if found.len() > PAGE {
            found.truncate(PAGE);
            (found[PAGE - 1]["position"].clone(), None)
        } else {
            let next = database.read(&self.end(walk, limit), &arguments).await?;
            let looked = next.is_string().then_some(limit);
            (next, looked)
        };
        let exact = match self.filter.text.parse::<i64>() {
            Ok(id) if id > 0 && self.after.is_empty() => {
                database.read(&exact(), &[(&id, Type::INT8)]).await?
            }
            _ => Value::Null,
        };
        Ok(json!({"tasks": tasks, "order": walk.order.name, "next": next, "looked": looked, "exact": exact}))
    }

    /// Tasks from where the previous list ended.
    fn window(&self, walk: &Walk, shown: &str, limit: &str) -> String {
        let Walk { relation, order, on, .. } = walk;
        let after_position = if self.after.is_empty() { "true" } else { order.after_position };
        format!(
            "SELECT {shown} FROM {relation} AS t WHERE {on} AND {after_position}{} ORDER BY {} {limit}",
            self.bounds(walk),
            order.by
        )
    }

    /// The part of the index to which the times of the filter limit a list.
    fn bounds(&self, walk: &Walk) -> String {
        let Filter { pushed, ended, .. } = &self.filter;
        let mut bounds = String::new();
        let mut add = |given: bool, bound: &str| {
            if given {
                bounds += " AND ";
                bounds += bound;
            }
        };
        match walk.order.by {
            by if by == NEWEST.by => {
                let near =
                    |sign, time: &str, hour| format!("t.id {sign} {}", near(walk.relation, time, hour));
                add(pushed.from.is_some(), &near(">", "$11", "-"));
                add(pushed.to.is_some(), &near("<=", "$12", "+"));
                // It was pushed before it ended.
                add(ended.to.is_some(), &near("<=", "$14", "+"));
            }
            by if by == FAILED.by => {
                add(ended.from.is_some(), "t.failed_at >= to_timestamp($13)");
                add(ended.to.is_some(), "t.failed_at < to_timestamp($14)");
            }
            _ => {}
        }
        bounds
    }

    fn list(&self, walk: &Walk, limit: usize, hide_payloads: bool) -> String {
        let Walk { state, ended, lease, order, .. } = walk;
        let documents = if hide_payloads { "" } else { walk.documents };
        let separator = if hide_payloads { "" } else { ", " };
        let window = self.window(
            walk,
            &format!("t.*, {state} AS shown, {ended} AS ended, {lease} AS leased_until"),
            &format!("LIMIT {limit}"),
        );
        format!(
            "SELECT coalesce(jsonb_agg(p.task), '[]') FROM (
                 SELECT {} || jsonb_build_object('position', {}) AS task FROM ({window}) AS t
                 WHERE {} AND ($4 = '' OR t.shown = $4)
                   AND ($13::float8 IS NULL OR t.ended >= to_timestamp($13))
                   AND ($14::float8 IS NULL OR t.ended < to_timestamp($14))
                   AND ($2 = '' OR strpos(lower(concat_ws(' ', t.kind, t.key, t.group_key, t.worker, t.errors{separator}{documents})),
                                          lower($2)) > 0)
                 ORDER BY {} LIMIT {}) AS p",
            shown(),
            order.position,
            self.filter.condition(),
            order.by,
            PAGE + 1,
        )
    }

    fn end(&self, walk: &Walk, limit: usize) -> String {
        format!(
            "SELECT to_jsonb(({}))",
            self.window(walk, walk.order.position, &format!("OFFSET {} LIMIT 1", limit - 1))
        )
    }
}

/// The last task that was pushed before a time, found by halving the range of ids. Ids increase with the time of the
/// push, but not strictly: a task of another session can be a little older. So an hour is added to the time or taken
/// from it.
///
/// Under the policies of the tables, an index is followed only to a value that is computed without a division: hence the
/// OFFSET 0.
fn near(relation: &str, time: &str, hour: &str) -> String {
    let before = format!("p.created_at <= to_timestamp({time}) {hour} interval '1 hour'");
    format!(
        "(WITH RECURSIVE r (low, high) AS (
              SELECT 0::bigint, (SELECT i.id FROM {relation} AS i ORDER BY i.id DESC LIMIT 1)
              UNION ALL
              SELECT CASE WHEN {before} THEN p.id ELSE r.low END,
                     CASE WHEN {before} THEN r.high ELSE r.middle - 1 END
              FROM (SELECT r.low, r.high, (r.low + r.high + 1) / 2 AS middle FROM r WHERE r.low < r.high OFFSET 0) AS r
              CROSS JOIN LATERAL (SELECT i.id, i.created_at FROM {relation} AS i
                                  WHERE i.id >= r.middle ORDER BY i.id LIMIT 1) AS p)
          SELECT max(r.low) FROM r)"
    )
}

/// A task in a list. Ids are text, because not every JSON parser supports 64-bit numbers.
fn shown() -> String {
    SHOWN.replace("{message}", &message("t.errors -> -1 ->> 'error'"))
}

const SHOWN: &str = "jsonb_build_object(
    'id', t.id::text, 'queue', t.queue, 'state', t.shown, 'priority', t.priority, 'attempt', t.attempt,
    'max_attempts', coalesce(t.max_attempts, (SELECT q.max_attempts FROM queue.queues AS q WHERE q.name = t.queue)),
    'worker', t.worker, 'kind', t.kind, 'key', t.key, 'group', t.group_key,
    'created', extract(epoch FROM t.created_at)::float8, 'run_at', extract(epoch FROM t.run_at)::float8,
    'claimed', extract(epoch FROM t.claimed_at)::float8, 'lease', extract(epoch FROM t.leased_until)::float8,
    'ended', extract(epoch FROM t.ended)::float8, 'error', left({message}, 300))";

fn exact() -> String {
    let Walk { relation, state, ended, lease, .. } = &ANYWHERE;
    format!(
        "SELECT {} FROM (SELECT t.*, {state} AS shown, {ended} AS ended, {lease} AS leased_until
                              FROM {relation} AS t WHERE t.id = $1) AS t",
        shown(),
    )
}
