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
