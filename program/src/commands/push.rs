//! `queue push QUEUE`

use std::io::{BufRead, IsTerminal, Read};
use std::process::ExitCode;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::json;
use tokio_postgres::types::{ToSql, Type};

use crate::arguments::Push;
use crate::connect::Session;
use crate::failure::Failure;
use crate::output;

/// How many lines are added together, and how many bytes.
const LINES: usize = 1000;
const BYTES: usize = 8 * 1024 * 1024;

/// Arguments of queue.push that were given: the name, an expression for the parameter, and its text.
struct Given(Vec<(&'static str, &'static str, String)>);

impl Given {
    fn add(&mut self, name: &'static str, expression: &'static str, value: Option<impl ToString>) {
        self.0.extend(value.map(|value| (name, expression, value.to_string())));
    }

    fn interval(&mut self, name: &'static str, value: Option<Duration>) {
        self.add(name, "make_interval(secs => $::float8)", value.map(|value| value.as_secs_f64()));
    }

    fn of(options: &Push) -> Self {
        let mut given = Self(Vec::new());
        given.add("kind", "$", options.kind.as_ref());
        given.interval("delay", options.delay);
        given.add("run_at", "$::timestamptz", options.run_at.as_ref());
        given.add("priority", "$::integer", options.priority);
        given.add("key", "$", options.key.as_ref());
        given.add("on_duplicate", "$", options.on_duplicate.as_ref());
        given.interval("key_ttl", options.key_ttl);
        given.add("key_ttl_from", "$", options.key_ttl_from.as_ref());
        given.add("group_key", "$", options.group_key.as_ref());
        given.add("max_attempts", "$::integer", options.max_attempts);
        given.add("backoff", "$::jsonb", options.backoff.as_ref());
        given.add("headers", "$::jsonb", options.headers.as_ref());
        let after: Vec<String> = options.after.iter().map(ToString::to_string).collect();
        given.add(
            "after",
            "$::bigint[]",
            Some(after).filter(|ids| !ids.is_empty()).map(|ids| format!("{{{}}}", ids.join(","))),
        );
        given.add("on_predecessor_failure", "$", options.on_predecessor_failure.as_ref());
        given.interval("lease", options.lease);
        given.interval("timeout", options.timeout);
        given.add("start_by", "$::timestamptz", options.start_by.as_ref());
        given.interval("ttl", options.ttl);
        given.add("weight", "$::integer", options.weight);
        given.add("batch", "$::bigint", options.batch);
        given
    }

    /// The arguments in named notation; the parameters follow the first two.
    fn sql(&self) -> String {
        let argument = |(number, (name, expression, _)): (usize, &(&str, &str, String))| {
            format!(", {name} => {}", expression.replace('$', &format!("${}", number + 3)))
        };
        self.0.iter().enumerate().map(argument).collect()
    }

    fn values(&self) -> impl Iterator<Item = (&(dyn ToSql + Sync), Type)> {
        self.0.iter().map(|(_, _, value)| (value as &(dyn ToSql + Sync), Type::TEXT))
    }
}

pub async fn run(session: &Session, options: Push) -> Result<ExitCode, Failure> {
    let given = Given::of(&options);
    if options.lines {
        return lines(session, &options, &given).await;
    }
    let payload = if options.payload == "-" { read_all()? } else { options.payload.clone() };
    check(&payload).map_err(|why| Failure::new(format!("the payload is not JSON: {why}")))?;
    let query = format!("SELECT queue.push(queue => $1, payload => $2::jsonb{})", given.sql());
    let mut arguments: Vec<(&(dyn ToSql + Sync), Type)> =
        vec![(&options.queue, Type::TEXT), (&payload, Type::TEXT)];
    arguments.extend(given.values());
    let rows = session.rows(&query, &arguments).await?;
    let id: Option<i64> = rows[0].get(0);
    let id = id.ok_or_else(|| Failure::new("a trigger on queue.tasks has suppressed the task"))?;
    output::print(&if options.output.json { format!("{}\n", json!({"id": id})) } else { format!("{id}\n") })?;
    Ok(ExitCode::SUCCESS)
}

fn read_all() -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// The server would say the same, but not at which line and column.
fn check(payload: &str) -> Result<(), serde_json::Error> {
    serde_json::from_str::<IgnoredAny>(payload).map(drop)
}

/// What is in the database when a batch fails.
fn added(pushed: usize) -> String {
    format!("The {pushed} tasks of earlier batches have been added; the batch of this line has not.")
}

async fn lines(session: &Session, options: &Push, given: &Given) -> Result<ExitCode, Failure> {
    let query =
        format!("SELECT queue.push_many(queue => $1, payloads => $2::text[]::jsonb[]{})", given.sql());
    let shows_progress = std::io::stderr().is_terminal();
    let mut input = std::io::stdin().lock();
    let (mut pushed, mut number, mut ended) = (0_usize, 0_usize, false);
    while !ended {
        let (mut payloads, mut size, first) = (Vec::new(), 0, number + 1);
        while payloads.len() < LINES && size < BYTES {
            let mut line = String::new();
            number += 1;
            match input.read_line(&mut line) {
                Ok(0) => {
                    ended = true;
                    break;
                }
                Ok(_) => {}
                Err(why) => return Err(Failure::new(format!("line {number}: {why}")).hint(added(pushed))),
            }
            if line.trim().is_empty() {
                continue;
            }
            check(&line).map_err(|why| {
                Failure::new(format!("line {number} is not JSON: {why}")).hint(added(pushed))
            })?;
            size += line.len();
            payloads.push(line);
        }
        if payloads.is_empty() {
            continue;
        }
        let last = number - usize::from(ended);
        let mut arguments: Vec<(&(dyn ToSql + Sync), Type)> =
            vec![(&options.queue, Type::TEXT), (&payloads, Type::TEXT_ARRAY)];
        arguments.extend(given.values());
        let rows = session.rows(&query, &arguments).await.map_err(|failure| {
            let hints = [failure.hint.clone(), Some(added(pushed))];
            let message = format!("lines {first} to {last}: {}", failure.message);
            Failure {
                message,
                hint: Some(hints.into_iter().flatten().collect::<Vec<_>>().join("\n")),
                ..failure
            }
        })?;
        // A trigger can have suppressed some.
        pushed += rows.len();
        if shows_progress {
            eprint!("\r{pushed} tasks");
        }
    }
    if shows_progress {
        eprint!("\r\x1b[K");
    }
    output::print(&if options.output.json {
        format!("{}\n", json!({"tasks": pushed}))
    } else {
        format!("{pushed} tasks\n")
    })?;
    Ok(ExitCode::SUCCESS)
}
