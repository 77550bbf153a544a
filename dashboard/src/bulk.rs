//! Bulk actions. The page first has the matching tasks counted, by the procedure that would change them. Then it has
//! them changed batch by batch: each request changes one batch in a transaction of its own, and returns where the next
//! one starts. So the page shows the progress, and can stop.

use serde_json::{Value, json};
use tokio_postgres::types::{ToSql, Type};

use crate::database::Database;
use crate::filter::Filter;
use crate::journal::{self, Visitor};
use crate::problem::Problem;
use crate::wish;

/// How many tasks a batch changes, and how many it reads to find them.
const BATCH: usize = 1000;
const READ: usize = 5000;

struct Action {
    name: &'static str,
    /// The states of the lists on which it is offered: it changes all tasks of the list.
    states: &'static [&'static str],
    argument: Argument,
}

#[derive(Clone, Copy, PartialEq)]
enum Argument {
    None,
    Priority,
    /// Another queue; for some it can be missing.
    Queue {
        needed: bool,
    },
}

const ACTIONS: &[Action] = &[
    Action {
        name: "cancel_where",
        states: &["live", "queued", "scheduled", "waiting", "running"],
        argument: Argument::None,
    },
    Action { name: "run_now_where", states: &["scheduled"], argument: Argument::None },
    Action {
        name: "reprioritise_where",
        states: &["live", "queued", "scheduled", "waiting", "running"],
        argument: Argument::Priority,
    },
    Action {
        name: "move_where",
        states: &["queued", "scheduled", "waiting"],
        argument: Argument::Queue { needed: true },
    },
    Action { name: "redrive_where", states: &["failed"], argument: Argument::Queue { needed: false } },
    Action {
        name: "purge_where",
        states: &["queued", "scheduled", "waiting", "failed"],
        argument: Argument::None,
    },
];

/// The filter of the procedure: $1 without the payload, which is $2, and the times. The procedure compares ages with its
/// own clock, a moment later; with the ten milliseconds it never changes a task that is outside the times.
const FILTER: &str = "$1::jsonb
    || CASE WHEN $2::text IS NULL THEN '{}' ELSE jsonb_build_object('payload', $2::text::jsonb) END
    || jsonb_strip_nulls(jsonb_build_object(
           'newer_than', CASE WHEN $3::float8 IS NOT NULL THEN make_interval(
               secs => greatest(0, extract(epoch FROM clock_timestamp())::float8 - $3))::text END,
           'older_than', CASE WHEN $4::float8 IS NOT NULL THEN make_interval(
               secs => greatest(0, extract(epoch FROM clock_timestamp())::float8 - $4 + 0.01))::text END))";

/// What a request asks for.
struct Bulk {
    action: &'static Action,
    filter: Option<Filter>,
    /// The filter for the procedure, without the payload and the times.
    options: Value,
    /// Whether the tasks were selected as ones that have not ended: the procedure that deletes would take dead letters too.
    live: bool,
    priority: Option<i32>,
    to_queue: Option<String>,
}

/// Answers {"action", "filter" or "ids", "state", "priority" or "to_queue"} with "dry_run", or with what the dry
/// run returned, where the batch starts ("from") and how many tasks it may change ("at_most").
pub async fn act(
    database: &Database,
    wish: &Value,
    visitor: &Visitor,
    hide_payloads: bool,
) -> Result<Value, Problem> {
    let mut bulk = Bulk::read(wish, hide_payloads)?;
    if bulk.live {
        bulk.leave_out_ended(database).await?;
    }
    if wish["dry_run"] == true {
        let mut result = bulk.bounds(database).await?;
        result["tasks"] = json!(bulk.count(database).await?);
        return Ok(json!({"result": result, "refresh": false}));
    }
    let (ids, next) = bulk.batch(database, wish).await?;
    let Some(ids) = ids else {
        return Ok(json!({"result": {"tasks": 0, "next": next}, "refresh": next.is_none()}));
    };
    let mut options = bulk.options.clone();
    options["ids"] = ids;
    let (role, result) = bulk.change(database, &options).await;
    journal::record(bulk.action.name, &bulk.target(), &role, visitor, result.as_ref().map(String::as_str));
    let tasks: i64 = result?.parse().unwrap_or_default();
    Ok(json!({"result": {"tasks": tasks, "next": next}, "refresh": next.is_none()}))
}

/// Whether this module knows the action.
pub fn knows(action: &str) -> bool {
    ACTIONS.iter().any(|known| known.name == action)
}

impl Bulk {
    fn read(wish: &Value, hide_payloads: bool) -> Result<Self, Problem> {
        let name = wish["action"].as_str().unwrap_or_default();
        let action = ACTIONS.iter().find(|known| known.name == name);
        let action = action.ok_or(Problem::bad("there is no such action"))?;
        let priority = wish::whole(wish, "priority")?;
        let to_queue = wish::text(wish, "to_queue")?;
        match action.argument {
            Argument::Priority if priority.is_none() => return Err(Problem::bad("priority is missing")),
            Argument::Queue { needed: true } if to_queue.is_none() => {
                return Err(Problem::bad("to_queue is missing"));
            }
            _ => {}
        }
        if let Some(ids) = wish["ids"].as_array() {
            let ids: Option<Vec<i64>> = ids.iter().map(|id| id.as_str()?.parse().ok()).collect();
            let ids = ids.ok_or(Problem::bad("ids must be an array of ids, as strings"))?;
            if ids.is_empty() || ids.len() > BATCH {
                return Err(Problem::bad(&format!("ids must have from 1 to {BATCH} elements")));
            }
            let mut options = json!({"ids": ids});
            let state = wish::text(wish, "state")?;
            match state.as_deref() {
                None | Some("live") => {}
                Some("failed") if action.states.contains(&"failed") => options["state"] = json!("failed"),
                Some(_) => return Err(Problem::bad("state must be live or failed, as the action permits")),
            }
            let live = state.as_deref() == Some("live");
            return Ok(Self { action, filter: None, options, live, priority, to_queue });
        }
        let filter = Filter::from_json(&wish["filter"], hide_payloads)?;
        if !action.states.contains(&filter.state.as_str()) {
            return Err(Problem::bad(&format!(
                "state must be one of {} for {name}",
                action.states.join(", ")
            )));
        }
        let options = Value::Object(filter.options()?);
        Ok(Self { action, filter: Some(filter), options, live: false, priority, to_queue })
    }

    async fn leave_out_ended(&mut self, database: &Database) -> Result<(), Problem> {
        let live = "SELECT coalesce(jsonb_agg(t.id ORDER BY t.id), '[]') FROM queue.tasks AS t
                    WHERE t.id = ANY (ARRAY(SELECT i.id::bigint FROM jsonb_array_elements_text($1) AS i (id)))";
        self.options["ids"] = database.read(live, &[(&self.options["ids"], Type::JSONB)]).await?;
        Ok(())
    }

    fn dead(&self) -> bool {
        self.filter.as_ref().is_some_and(|filter| filter.state == "failed")
    }

    fn relation(&self) -> &'static str {
        if self.dead() { "queue.dead_letters" } else { "queue.tasks" }
    }

    /// The last task that exists now and the time, as text: tasks that are pushed later, and dead letters that failed
    /// later, are not changed.
    async fn bounds(&self, database: &Database) -> Result<Value, Problem> {
        let bounds = format!(
            "SELECT jsonb_build_object('until', coalesce(max(t.id), 0)::text, 'failed_until', clock_timestamp()::text)
             FROM {} AS t",
            self.relation()
        );
        database.read(&bounds, &[]).await
    }

    fn call(&self, dry_run: bool) -> String {
        let argument = match self.action.argument {
            Argument::None => "",
            Argument::Priority => "priority => $5::integer,",
            Argument::Queue { .. } => "to_queue => $5::text,",
        };
        format!("CALL queue.{}({FILTER}, {argument} dry_run => {dry_run})", self.action.name)
    }

    fn arguments<'a>(&'a self, options: &'a Value) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
        static NO_TEXT: Option<String> = None;
        static NO_TIME: Option<f64> = None;
        let filter = self.filter.as_ref();
        let mut arguments: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (options, Type::JSONB),
            (filter.map_or(&NO_TEXT, |filter| &filter.payload), Type::TEXT),
            (filter.map_or(&NO_TIME, |filter| &filter.pushed.from), Type::FLOAT8),
            (filter.map_or(&NO_TIME, |filter| &filter.pushed.to), Type::FLOAT8),
        ];
        match self.action.argument {
            Argument::None => {}
            Argument::Priority => arguments.push((&self.priority, Type::INT4)),
            Argument::Queue { .. } => arguments.push((&self.to_queue, Type::TEXT)),
        }
        arguments
    }

    async fn count(&self, database: &Database) -> Result<i64, Problem> {
        database.count(&self.call(true), &self.arguments(&self.options)).await
    }

    async fn change(&self, database: &Database, options: &Value) -> (String, Result<String, Problem>) {
        database.act(&self.call(false), &self.arguments(options)).await
    }

    /// The ids of the next batch, if there are any, and where the batch after it starts. The procedure checks the whole
    /// filter again, so a task that changes meanwhile is left alone.
    async fn batch(
        &self,
        database: &Database,
        wish: &Value,
    ) -> Result<(Option<Value>, Option<String>), Problem> {
        let Some(filter) = &self.filter else { return Ok((Some(self.options["ids"].clone()), None)) };
        let bound = |name: &str| {
            let id = wish::needed(wish, name)?.parse::<i64>();
            id.map_err(|_| Problem::bad(&format!("{name} must be an id")))
        };
        let (from, until) = (bound("from")?, bound("until")?);
        // Other tasks can match after the count: the batches change at most as many as were counted.
        let most = wish::whole(wish, "at_most")?.ok_or(Problem::bad("at_most is missing"))?;
        let most = usize::try_from(most).unwrap_or(0).min(BATCH);
        let failed_until = if self.dead() { Some(wish::needed(wish, "failed_until")?) } else { None };
        if most == 0 {
            return Ok((None, None));
        }
        let state = match filter.state.as_str() {
            "failed" => "t.failed_at <= $18::text::timestamptz",
            "live" => "true",
            _ => {
                "CASE WHEN t.state = 'queued' AND t.run_at > clock_timestamp() THEN 'scheduled' ELSE t.state END = $4"
            }
        };
        let read = format!(
            "SELECT jsonb_build_object('ids', coalesce(jsonb_agg(w.id ORDER BY w.id) FILTER (WHERE w.matches), '[]'),
                                       'last', CASE WHEN count(*) = {READ} THEN max(w.id) END)
             FROM (SELECT t.id, ({} AND {state}) AS matches FROM {} AS t
                   WHERE t.id > $16 AND t.id <= $17 ORDER BY t.id LIMIT {READ}) AS w",
            filter.condition(),
            self.relation(),
        );
        let nowhere = String::new();
        let mut arguments = filter.arguments(&nowhere).to_vec();
        arguments.extend([(&from as &(dyn ToSql + Sync), Type::INT8), (&until, Type::INT8)]);
        if let Some(time) = &failed_until {
            arguments.push((time, Type::TEXT));
        }
        let mut found = database.read(&read, &arguments).await?;
        let mut last = found["last"].as_i64();
        let ids = found["ids"].as_array_mut().ok_or(Problem::bad("no list"))?;
        if ids.len() > most {
            ids.truncate(most);
            last = ids[most - 1].as_i64();
        }
        let ids = (!ids.is_empty()).then(|| found["ids"].take());
        Ok((ids, last.map(|id| id.to_string())))
    }

    /// The filter for the log: without the payload.
    fn target(&self) -> String {
        let mut options = self.options.clone();
        if let Some(filter) = &self.filter {
            if filter.payload.is_some() {
                options["payload"] = json!("(not shown)");
            }
            for (name, time) in [("pushed_from", filter.pushed.from), ("pushed_to", filter.pushed.to)] {
                if let Some(time) = time {
                    options[name] = json!(time);
                }
            }
        }
        if let Some(priority) = self.priority {
            options["to_priority"] = json!(priority);
        }
        if let Some(queue) = &self.to_queue {
            options["to_queue"] = json!(queue);
        }
        options.to_string()
    }
}
