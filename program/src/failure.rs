//! What can go wrong, as people read it: a short message, and the server's detail and hint.

use std::error::Error as _;
use std::fmt;

/// An error of the server, of the connection to it, or of this program.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The SQLSTATE, if the server reported the error.
    pub sqlstate: Option<String>,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Self { sqlstate: None, message: message.into(), detail: None, hint: None }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Whether the SQLSTATE is this one, or is in this class.
    pub fn is(&self, code: &str) -> bool {
        self.sqlstate.as_ref().is_some_and(|sqlstate| sqlstate.starts_with(code))
    }

    /// The message and the SQLSTATE. The detail can contain a row with its payload.
    pub fn brief(&self) -> String {
        match &self.sqlstate {
            Some(sqlstate) => format!("{} ({sqlstate})", self.message),
            None => self.message.clone(),
        }
    }

    /// The same for logs, unless the message can contain a part of a payload, as that of an error in a user's trigger can. Then
    /// only the SQLSTATE. The classes are those of connecting, of resources and of interventions.
    pub fn logged(&self) -> String {
        let is_of_the_server = ["08", "28", "3D", "53", "57"].iter().any(|class| self.is(class));
        match &self.sqlstate {
            Some(sqlstate) if !is_of_the_server => format!("SQLSTATE {sqlstate}"),
            _ => self.brief(),
        }
    }

    /// Whether the server refuses what a statement contains. An exception of a user's trigger, P0, is also about that.
    pub fn is_of_the_values(&self) -> bool {
        ["22", "23", "54", "P0"].iter().any(|class| self.is(class))
    }

    /// Whether the statement fails on each connection: because of its values, of a lock, or of the state of a task.
    pub fn is_of_the_statement(&self) -> bool {
        self.is_of_the_values() || self.is("55P03") || self.is("QX")
    }

    /// Whether the connection, and not the statement, failed.
    pub fn is_of_the_connection(&self) -> bool {
        self.sqlstate.is_none() || ["08", "57P", "53300", "25006"].iter().any(|code| self.is(code))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.brief())?;
        for (label, text) in [("DETAIL", &self.detail), ("HINT", &self.hint)] {
            if let Some(text) = text {
                write!(formatter, "\n{label}: {text}")?;
            }
        }
        Ok(())
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(said) = error.as_db_error() else {
            let mut message = error.to_string();
            let mut cause = error.source();
            while let Some(error) = cause {
                let text = error.to_string();
                if !message.contains(&text) {
                    message += &format!(": {text}");
                }
                cause = error.source();
            }
            return Self::new(message);
        };
        let hint = match said.code().code() {
            "3F000" | "42P01" | "42883" => {
                Some("Is this the right database? CREATE EXTENSION queue_ext installs queue_ext in it.")
            }
            _ => None,
        };
        Self {
            sqlstate: Some(said.code().code().to_owned()),
            message: said.message().to_owned(),
            detail: said.detail().map(str::to_owned),
            hint: said.hint().or(hint).map(str::to_owned),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}
