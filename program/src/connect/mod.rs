//! Connections to PostgreSQL. Where to connect is found as psql finds it: a URL or a connection string, then a service
//! file, then the PG* variables, then the defaults; and the password in the password file.

mod cancel;
mod parameters;
mod password;
mod service;
mod string;
mod tls;

use std::time::Duration;

use tokio::task::AbortHandle;
use tokio_postgres::types::{FromSqlOwned, ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row};

use crate::failure::Failure;
pub use parameters::Server;
use parameters::{Host, Location};

/// Arguments with their types, so that nothing is prepared in the server and a pooler in transaction mode can be between.
pub type Arguments<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// A connection.
pub struct Session {
    pub client: Client,
    connection: AbortHandle,
    tls: tls::Tls,
    location: Location,
}

impl Server {
    /// Waits for each host at most this long.
    pub fn within(mut self, limit: Duration) -> Self {
        let limit = self.config.get_connect_timeout().map_or(limit, |given| limit.min(*given));
        self.config.connect_timeout(limit);
        self
    }

    /// Connects to the first host that accepts.
    pub async fn connect(&self, application: &str) -> Result<Session, Failure> {
        let mut last = Failure::new("no host is named");
        for location in &self.locations {
            match self.connect_to(location, application).await {
                Ok(session) => return Ok(session),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    async fn connect_to(&self, location: &Location, application: &str) -> Result<Session, Failure> {
        let mut config = self.config.clone();
        if config.get_application_name().is_none() {
            config.application_name(application);
        }
        config.port(location.port);
        if let Some(password) = self.password_for(location)? {
            config.password(password);
        }
        let limit = config.get_connect_timeout().copied().unwrap_or(Duration::from_secs(10));
        // The driver's own limit does not include the TLS handshake and the authentication.
        let attempt = async {
            let tls = match &location.host {
                Host::Socket(folder) => {
                    config.host_path(folder);
                    tls::Tls::none()
                }
                Host::Network { name, address } => {
                    config.host(name);
                    if let Some(address) = address {
                        config.hostaddr(*address);
                    }
                    tls::Tls::new(&self.security)?
                }
            };
            let (client, connection) = open(&mut config, &tls).await?;
            Ok(Session { client, connection, tls, location: location.clone() })
        };
        let late = |_| Failure::new(format!("{location} did not answer within {limit:?}"));
        let result = tokio::time::timeout(limit, attempt).await.map_err(late)?;
        result.map_err(|failure: Failure| Failure {
            message: format!("cannot connect to {location}: {}", failure.message),
            ..failure
        })
    }
}

async fn open(config: &mut Config, tls: &tls::Tls) -> Result<(Client, AbortHandle), Failure> {
    config.ssl_mode(tls.mode());
    // A connection ends with its client, once all statements have their answers; the client reports its errors.
    match tls.connector() {
        Some(connector) => {
            let (client, connection) = config.connect(connector).await?;
            Ok((client, tokio::spawn(connection).abort_handle()))
        }
        None => {
            let (client, connection) = config.connect(NoTls).await?;
            Ok((client, tokio::spawn(connection).abort_handle()))
        }
    }
}

impl Session {
    pub async fn rows(&self, query: &str, arguments: Arguments<'_>) -> Result<Vec<Row>, Failure> {
        Ok(self.client.query_typed(query, arguments).await?)
    }

    /// The first column of the only row, as JSON.
    pub async fn json(&self, query: &str, arguments: Arguments<'_>) -> Result<serde_json::Value, Failure> {
        Ok(self.first(query, arguments).await?.unwrap_or(serde_json::Value::Null))
    }

    /// The first column of the only row, unless it is null.
    pub async fn first<T: FromSqlOwned>(
        &self,
        query: &str,
        arguments: Arguments<'_>,
    ) -> Result<Option<T>, Failure> {
        let rows = self.rows(query, arguments).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?.flatten())
    }

    /// Cancels the statement that runs, and waits at most this long for the server to take the request.
    pub async fn cancel(&self, limit: Duration) {
        let token = self.client.cancel_token();
        let request = cancel::send(&token, &self.location, self.tls.connector());
        // If the request is lost, the statement continues: a backend does not notice at once that its client has left.
        let _ = tokio::time::timeout(limit, request).await;
    }
    /// Closes the connection now, without an answer to the statement that runs.
    pub fn abort(&self) {
        self.connection.abort();
    }
}
