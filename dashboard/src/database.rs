//! Access to Postgres: a small pool of connections, and one transaction for each request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_local;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::Connect;
use crate::problem::Problem;

/// The largest number of connections.
const CONNECTIONS: usize = 4;
/// The time for the network, in addition to the statement timeout.
const GRACE: Duration = Duration::from_secs(3);

/// Set in each transaction and not in the session, because a pooler may give each transaction another session. The
/// search_path of the role is not used.
const READING: &str = "BEGIN TRANSACTION ISOLATION LEVEL READ COMMITTED, READ ONLY; SET LOCAL statement_timeout = 5000; \
    SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL timezone = 'UTC'; SET LOCAL jit = off";
const ACTING: &str = "BEGIN TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; SET LOCAL statement_timeout = 60000; \
    SET LOCAL lock_timeout = 5000; SET LOCAL search_path = pg_catalog, pg_temp";
const READING_LIMIT: Duration = Duration::from_secs(5);
const ACTING_LIMIT: Duration = Duration::from_secs(60);

/// Arguments with their types, so that nothing is prepared in the server.
pub type Arguments<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

pub struct Database {
    connect: Connect,
    places: Arc<Semaphore>,
    idle: Idle,
}

type Idle = Rc<RefCell<Vec<Client>>>;

/// A connection with a transaction, and its place among the connections. Nobody waits for the rest of a request whose browser has
/// closed, but the server works on: the place is free when the server has ended the transaction, too.
struct Lent {
    client: Option<Client>,
    place: Option<OwnedSemaphorePermit>,
    idle: Idle,
    /// How long the server may need at most to end the transaction.
    limit: Duration,
}

impl Lent {
    fn client(&self) -> &Client {
        self.client.as_ref().expect("it is there until it is given back")
    }

    /// The transaction has ended.
    fn give_back(&mut self) {
        self.idle.borrow_mut().extend(self.client.take());
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let (place, idle, limit) = (self.place.take(), Rc::clone(&self.idle), self.limit);
        let Some(client) = self.client.take() else { return };
        spawn_local(async move {
            if let Ok(Ok(())) = timeout(limit, client.batch_execute("ROLLBACK")).await {
                idle.borrow_mut().push(client);
            }
            drop(place);
        });
    }
}

impl Database {
    pub fn new(connect: Connect) -> Self {
        Self { connect, places: Arc::new(Semaphore::new(CONNECTIONS)), idle: Idle::default() }
    }

    /// The first column of the only row of a query, in a read-only transaction.
    pub async fn read(&self, query: &str, arguments: Arguments<'_>) -> Result<Value, Problem> {
        self.timed(query, arguments).await.1
    }

    /// The same, and how long Postgres worked: without the connecting.
    pub async fn timed(&self, query: &str, arguments: Arguments<'_>) -> (Duration, Result<Value, Problem>) {
        let began = Cell::new(None);
        let answer = self.transaction(READING, READING_LIMIT, async |client| {
            began.set(Some(Instant::now()));
            let rows = client.query_typed(query, arguments).await?;
            Ok(rows.first().and_then(|row| row.get::<_, Option<Value>>(0)))
        });
        let answer = answer.await.map(|value| value.unwrap_or(Value::Null));
        (began.get().map_or(Duration::ZERO, |began| began.elapsed()), answer)
    }

    /// The number that a dry run returns, in a read-only transaction.
    pub async fn count(&self, call: &str, arguments: Arguments<'_>) -> Result<i64, Problem> {
        let answer = self.transaction(READING, READING_LIMIT, async |client| {
            let rows = client.query_typed(call, arguments).await?;
            Ok(rows.first().map_or(0, |row| row.get(0)))
        });
        answer.await
    }

    /// Runs a statement that changes something; returns the role that ran it, and the text or the number
    /// that it returned.
    pub async fn act(&self, statement: &str, arguments: Arguments<'_>) -> (String, Result<String, Problem>) {
        let mut role = String::new();
        let answer = self.transaction(ACTING, ACTING_LIMIT, async |client| {
            role = client
                .query_typed("SELECT current_user::text", &[])
                .await?
                .first()
                .map_or("", |row| row.get(0))
                .to_owned();
            let rows = client.query_typed(statement, arguments).await?;
            Ok(rows.first().and_then(|row| match row.columns()[0].type_() {
                &Type::INT8 => row.get::<_, Option<i64>>(0).map(|number| number.to_string()),
                _ => row.get(0),
            }))
        });
        let answer = answer.await;
        let unknown = |problem: Problem| match problem.status {
            StatusCode::SERVICE_UNAVAILABLE => {
                problem.hint("Whether it took effect is not known: look again.")
            }
            _ => problem,
        };
        (role, answer.map(Option::unwrap_or_default).map_err(unknown))
    }

    /// The limit is for the work. Connecting has its own for each host, so that a host that does not answer does not use
    /// up the time of the others.
    async fn transaction<T>(
        &self,
        begin: &str,
        limit: Duration,
        work: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Problem> {
        let place = async {
            let place = Arc::clone(&self.places).acquire_owned().await;
            place.map_err(|_| Problem::unreachable("shutting down"))
        };
        let place = within(limit + GRACE, place).await?;
        let client = Some(self.begin(begin).await?);
        let idle = Rc::clone(&self.idle);
        let mut lent = Lent { client, place: Some(place), idle, limit: limit + GRACE };
        let answer = async {
            let client = lent.client();
            let result = work(client).await;
            let end = client.batch_execute(if result.is_ok() { "COMMIT" } else { "ROLLBACK" }).await;
            if end.is_ok() {
                lent.give_back();
            }
            let value = result?;
            end?;
            Ok(value)
        };
        within(limit + GRACE, answer).await
    }

    /// A connection in a new transaction. Pooled connections may have broken meanwhile.
    async fn begin(&self, begin: &str) -> Result<Client, Problem> {
        loop {
            let Some(client) = self.idle.borrow_mut().pop() else { break };
            if within(GRACE, start(&client, begin)).await.is_ok() {
                return Ok(client);
            }
        }
        let client = (self.connect)().await.map_err(|why| Problem::unreachable(&why))?;
        within(GRACE, start(&client, begin)).await?;
        Ok(client)
    }
}

async fn start(client: &Client, begin: &str) -> Result<(), Problem> {
    Ok(client.batch_execute(begin).await?)
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    let late =
        |_| Problem::unreachable(&format!("Postgres did not answer within {} seconds", limit.as_secs()));
    tokio::time::timeout(limit, work).await.map_err(late)?
}
