//! A claimed task.

use std::rc::Rc;

use serde_json::{Map, Value, json};

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

    /// The headers; empty if there are none.
    pub fn headers(&self) -> Map<String, Value> {
        let headers = self.headers.as_deref().and_then(|headers| serde_json::from_str(headers).ok());
        headers.unwrap_or_default()
    }
}
