//! tokio-postgres, which needs no program of its own.

use serde_json::Value as Json;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, NoTls, Row, SimpleQueryMessage};

use super::calls::Value::{Array, Bigint, Integer, Text};
use super::*;

pub const NAME: &str = "tokio-postgres";
pub const MODES: &[Mode] = ALL;
pub const TYPES: [&str; 5] = ["i64", "Value", "SystemTime", "bool", "String"];

/// A value with the type of the statement's parameter: tokio-postgres converts nothing.
fn argument(value: &calls::Value, wanted: &Type) -> Box<dyn ToSql + Sync + Send> {
    let json = |text: &str| serde_json::from_str::<Json>(text).expect("valid JSON");
    match value {
        Integer(number) => Box::new(*number),
        Bigint(number) => Box::new(*number),
        Text(text) if *wanted == Type::JSONB => Box::new(json(text)),
        Text(text) => Box::new(text.clone()),
        Array(texts) => Box::new(texts.iter().map(|text| json(text)).collect::<Vec<_>>()),
    }
}

fn cell(row: &Row, index: usize) -> (String, String) {
    let (number, value) = match *row.columns()[index].type_() {
        Type::INT8 => (0, row.get::<_, i64>(index).to_string()),
        Type::JSONB => (1, row.get::<_, Json>(index).to_string()),
        Type::TIMESTAMPTZ => (2, format!("{:?}", row.get::<_, std::time::SystemTime>(index))),
        Type::BOOL => (3, row.get::<_, bool>(index).to_string()),
        _ => (4, row.get::<_, String>(index)),
    };
    (TYPES[number].to_owned(), value)
}

fn answer(outcome: Result<Vec<(String, String)>, Error>) -> Answer {
    match outcome {
        Ok(cells) => Answer::Rows(cells),
        Err(error) => Answer::Error(error.code().unwrap_or_else(|| panic!("{error}")).code().to_owned()),
    }
}

async fn call(client: &Client, mode: Mode, call: &Call) -> Result<Vec<(String, String)>, Error> {
    if mode == Simple {
        let messages = client.simple_query(&call.literal()).await?;
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let text =
            |row: &tokio_postgres::SimpleQueryRow, index| row.get(index).unwrap_or_default().to_owned();
        let cells =
            rows.flat_map(|row| (0..row.len()).map(move |index| text(&row, index)).collect::<Vec<_>>());
        return Ok(cells.map(|value| ("String".to_owned(), value)).collect());
    }
    let rows = if mode != Prepared {
        // Everything in one go, and no statement with a name.
        let wanted = |(index, value): (usize, &calls::Value)| match value {
            Integer(_) => Type::INT4,
            Bigint(_) => Type::INT8,
            Text(_) if call.statement.contains(&format!("${}::jsonb", index + 1)) => Type::JSONB,
            Text(_) => Type::TEXT,
            Array(_) => Type::JSONB_ARRAY,
        };
        let typed: Vec<_> = call
            .values
            .iter()
            .enumerate()
            .map(|(index, value)| {
                let wanted = wanted((index, value));
                (argument(value, &wanted), wanted)
            })
            .collect();
        let typed: Vec<_> = typed
            .iter()
            .map(|(value, wanted)| (value.as_ref() as &(dyn ToSql + Sync), wanted.clone()))
            .collect();
        client.query_typed(call.statement, &typed).await?
    } else {
        let prepared = client.prepare(call.statement).await?;
        let values: Vec<_> = call
            .values
            .iter()
            .zip(prepared.params())
            .map(|(value, wanted)| argument(value, wanted))
            .collect();
        let values: Vec<_> = values.iter().map(|value| value.as_ref() as &(dyn ToSql + Sync)).collect();
        client.query(&prepared, &values).await?
    };
    Ok(rows.iter().flat_map(|row| (0..row.len()).map(|index| cell(row, index))).collect())
}

fn say(runtime: &Runtime, client: &Client, mode: Mode, batch: &[Call]) -> Vec<Answer> {
    runtime.block_on(async {
        match batch {
            // Concurrent queries are sent in one pipeline.
            [first, second] if mode == Pipelined => {
                let (first, second) = tokio::join!(call(client, mode, first), call(client, mode, second));
                vec![answer(first), answer(second)]
            }
            _ => {
                let mut answers = Vec::new();
                for one in batch {
                    answers.push(answer(call(client, mode, one).await));
                }
                answers
            }
        }
    })
}

/// All modes.
pub fn hold_to_contract(host: &str) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    for mode in MODES {
        let port = if *mode == Pooled { pgbouncer::PORT } else { 5432 };
        let url = format!("{}{host}:{port}{}", URI.0, URI.1);
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connect");
            tokio::spawn(connection);
            client
        });
        let types = if *mode == Simple { ["String"; 5] } else { TYPES };
        contract::hold(&format!("{NAME}, {mode:?}"), &types, |batch| say(&runtime, &client, *mode, batch));
    }
}
