//! A claimed task.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::lease::Lease;

pub struct Task {
    pub lease: Rc<Lease>,
    pub kind: Option<String>,
    pub attempt: i32,
    pub max_attempts: Option<i32>,
    /// JSON, as the server wrote it.
    pub payload: String,
    pub headers: Option<String>,
}

impl Task {
    /// What the log says about it: never its payload.
    pub fn fields(&self) -> Value {
        let mut fields = json!({"task": self.lease.id, "queue": self.lease.queue, "attempt": self.attempt});
        if let Some(kind) = &self.kind {
            fields["kind"] = json!(kind);
        }
        fields
    }

    /// A header that is a string. Others are not read: they can have numbers and depths that Rust has not.
    pub fn header(&self, name: &str) -> Option<String> {
        let headers: BTreeMap<String, &RawValue> = serde_json::from_str(self.headers.as_deref()?).ok()?;
        serde_json::from_str(headers.get(name)?.get()).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    #[test]
    fn a_header_is_found_beside_json_that_rust_cannot_represent() {
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        let headers =
            format!(r#"{{"traceparent": "00-1-2-01", "n": 1e400, "deep": {deep}, "tracestate": 5}}"#);
        let task = Task {
            lease: Lease::new(1, 1, "mail".to_owned(), Instant::now(), Duration::from_secs(1)),
            kind: None,
            attempt: 1,
            max_attempts: None,
            payload: String::new(),
            headers: Some(headers),
        };
        assert_eq!(task.header("traceparent").as_deref(), Some("00-1-2-01"));
        assert_eq!((task.header("tracestate"), task.header("baggage")), (None, None));
    }
}
