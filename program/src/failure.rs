//! What can go wrong, as people read it: a short message, and the server's detail and hint.

use std::error::Error as _;
use std::fmt;

use tokio_postgres::error::Severity;

/// An error of the server, of the connection to it, or of this program.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The SQLSTATE, if the server reported the error.
    pub sqlstate: Option<String>,
    /// Whether the server ends the connection with this error, or does not open one.
    pub is_fatal: bool,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Self { sqlstate: None, is_fatal: false, message: message.into(), detail: None, hint: None }
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

    /// The same for logs. A user's trigger can raise an error with a payload in its message, and with any SQLSTATE. So only errors
    /// of a connection have their message.
    pub fn logged(&self) -> String {
        let Some(sqlstate) = self.sqlstate.as_ref().filter(|_| !self.is_fatal) else {
            return self.brief();
        };
        let meaning = match sqlstate.as_str() {
            "22021" | "22P05" => "a text of a task cannot be converted to UTF-8",
            "25006" => "the server is read-only",
            "3F000" | "42883" | "42P01" => "is this the right database, with queue_ext in it?",
            "40001" => "serialization failure",
            "40P01" => "deadlock",
            "42501" => "permission denied",
            "53100" => "the disk is full",
            "53200" => "out of memory",
            "53300" => "too many connections",
            "55P03" => "a lock is not available",
            "57014" => "the statement was cancelled or took too long",
            "P0001" => "an error of a trigger",
            "QX002" => "no such queue",
            _ => return format!("SQLSTATE {sqlstate}"),
        };
        format!("SQLSTATE {sqlstate}: {meaning}")
    }

    /// Whether the server refuses what a statement contains: the values themselves, or by a user's trigger, which can use any
    /// SQLSTATE. The other classes are about the server, the connection, a lock, or an object that is missing or in use.
    pub fn is_of_the_values(&self) -> bool {
        const OTHERS: [&str; 12] = ["08", "25", "28", "3D", "3F", "40", "42", "53", "55", "57", "58", "XX"];
        self.sqlstate.is_some() && !self.is_fatal && !OTHERS.iter().any(|class| self.is(class))
    }

    /// Whether the connection, and not the statement, failed: it was lost, or the server refuses a new one, with any SQLSTATE. An
    /// error of a trigger that has lost a connection of its own, for example to a foreign server, is not fatal.
    pub fn is_of_the_connection(&self) -> bool {
        self.sqlstate.is_none() || self.is_fatal
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
            is_fatal: matches!(said.parsed_severity(), Some(Severity::Fatal | Severity::Panic)),
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
