//! Errors for the browser, with the SQLSTATE and the hint from Postgres.

use std::error::Error;

use hyper::StatusCode;
use serde_json::{Value, json};

/// An error.
#[derive(Clone, Debug)]
pub struct Problem {
    pub status: StatusCode,
    message: String,
    sqlstate: Option<String>,
    detail: Option<String>,
    hint: Option<String>,
}

impl Problem {
    pub fn new(status: StatusCode, message: &str) -> Self {
        Self { status, message: message.to_owned(), sqlstate: None, detail: None, hint: None }
    }

    pub fn hint(mut self, hint: &str) -> Self {
        self.hint = Some(hint.to_owned());
        self
    }

    pub fn bad(message: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub fn unreachable(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    pub fn json(&self) -> Value {
        json!({
            "message": self.message, "sqlstate": self.sqlstate, "detail": self.detail, "hint": self.hint,
            "unreachable": self.status == StatusCode::SERVICE_UNAVAILABLE,
        })
    }

    pub fn sqlstate(&self) -> Option<&str> {
        self.sqlstate.as_deref()
    }

    /// The error in one line, for the log.
    pub fn line(&self) -> String {
        match &self.sqlstate {
            Some(sqlstate) => format!("{sqlstate} {}", self.message),
            None => self.message.clone(),
        }
    }
}

impl From<tokio_postgres::Error> for Problem {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(said) = error.as_db_error() else {
            let cause = error.source().map_or(String::new(), |cause| format!(": {cause}"));
            return Self::unreachable(&format!("{error}{cause}"));
        };
        let sqlstate = said.code().code();
        let status = match sqlstate {
            "42501" => StatusCode::FORBIDDEN,
            "QX003" => StatusCode::NOT_FOUND,
            // Starting up, shutting down, in recovery, or out of connections.
            _ if sqlstate.starts_with("57P") || sqlstate.starts_with("08") || sqlstate == "53300" => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        let hint = match sqlstate {
            "57014" => Some("It took too long and was given up. Narrow it: name a queue or a state."),
            "42501" => Some("The role of DATABASE_URL lacks this right: SELECT queue.grant_operator(...)."),
            "3F000" | "42P01" => Some("Is this the right database? CREATE EXTENSION queue_ext installs it."),
            _ => None,
        };
        Self {
            status,
            message: said.message().to_owned(),
            sqlstate: Some(sqlstate.to_owned()),
            detail: said.detail().map(str::to_owned),
            hint: said.hint().or(hint).map(str::to_owned),
        }
    }
}
