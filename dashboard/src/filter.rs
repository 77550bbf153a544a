//! The filter of a list of tasks, as it stands in the address of a page and in the request for a bulk action.

use serde_json::{Map, Value, json};
use tokio_postgres::types::{ToSql, Type};

use crate::problem::Problem;

/// Everything that a list can be filtered by.
const NAMES: &[&str] = &[
    "queue",
    "state",
    "kind",
    "key",
    "group",
    "worker",
    "error",
    "text",
    "payload",
    "pushed_from",
    "pushed_to",
    "ended_from",
    "ended_to",
];
/// The longest value, except for payloads.
const LONGEST: usize = 600;
const LONGEST_PAYLOAD: usize = 8000;

/// A task has to match all parts; empty ones are ignored.
pub struct Filter {
    pub queue: String,
    pub state: String,
    pub kind: String,
    /// Patterns for LIKE: `*` in the address stands for any text.
    pub key: String,
    pub group: String,
    pub worker: String,
    pub error: String,
    pub text: String,
    /// JSON that the payload contains.
    pub payload: Option<String>,
    /// Seconds since 1970, because an address has no time zone.
    pub pushed: Between,
    pub ended: Between,
    /// The group, if it is not a pattern.
    pub one_group: String,
}

pub struct Between {
    pub from: Option<f64>,
    pub to: Option<f64>,
}

impl Between {
    pub fn is_empty(&self) -> bool {
        self.from.is_none() && self.to.is_none()
    }
}

impl Filter {
    /// From the parameters of an address.
    pub fn read(value: &dyn Fn(&str) -> String, hide_payloads: bool) -> Result<Self, Problem> {
        for name in NAMES {
            let longest = if *name == "payload" { LONGEST_PAYLOAD } else { LONGEST };
            if value(name).len() > longest {
                return Err(Problem::bad(&format!("{name} is longer than {longest} bytes")));
            }
        }
        let between = |name: &str| {
            Ok::<_, Problem>(Between {
                from: time(&format!("{name}_from"), value)?,
                to: time(&format!("{name}_to"), value)?,
            })
        };
        let payload = Some(value("payload").trim().to_owned()).filter(|text| !text.is_empty());
        if payload.is_some() && hide_payloads {
            return Err(Problem::bad("payload cannot be searched: payloads are hidden"));
        }
        if let Some(text) = &payload {
            json_text("payload", text)?;
        }
        let group = value("group");
        Ok(Self {
            queue: value("queue"),
            state: value("state"),
            kind: value("kind"),
            key: pattern(&value("key")),
            one_group: if group.contains('*') { String::new() } else { group.clone() },
            group: pattern(&group),
            worker: value("worker"),
            error: pattern(&value("error")),
            text: value("text"),
            payload,
            pushed: between("pushed")?,
            ended: between("ended")?,
        })
    }

    /// From the JSON object in the request for a bulk action.
    pub fn from_json(object: &Value, hide_payloads: bool) -> Result<Self, Problem> {
        let object = object.as_object().ok_or(Problem::bad("the filter must be a JSON object"))?;
        for (name, value) in object {
            if !NAMES.contains(&name.as_str()) {
                return Err(Problem::bad(&format!("the filter has no part {name:?}")));
            }
            if !value.is_string() {
                return Err(Problem::bad(&format!("{name} in the filter must be a string")));
            }
        }
        let value =
            |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default().replace('\0', "");
        Self::read(&value, hide_payloads)
    }

    /// Whether a list has to read payloads or errors, which may be long.
    pub fn reads_documents(&self) -> bool {
        !self.text.is_empty() || self.payload.is_some() || !self.error.is_empty()
    }

    /// The arguments of a statement, $1 to $15, with the position in the list as $3.
    pub fn arguments<'a>(&'a self, position: &'a String) -> [(&'a (dyn ToSql + Sync), Type); 15] {
        // Not a state but every one of a task that has not ended.
        let state = if self.state == "live" { &EVERY } else { &self.state };
        [
            (&self.queue, Type::TEXT),
            (&self.text, Type::TEXT),
            (position, Type::TEXT),
            (state, Type::TEXT),
            (&self.kind, Type::TEXT),
            (&self.key, Type::TEXT),
            (&self.group, Type::TEXT),
            (&self.worker, Type::TEXT),
            (&self.error, Type::TEXT),
            (&self.payload, Type::TEXT),
            (&self.pushed.from, Type::FLOAT8),
            (&self.pushed.to, Type::FLOAT8),
            (&self.ended.from, Type::FLOAT8),
            (&self.ended.to, Type::FLOAT8),
            (&self.one_group, Type::TEXT),
        ]
    }

    /// The condition on a row `t` of any table of tasks, except for the state, the end and the text.
    pub fn condition(&self) -> String {
        let parts = [
            (!self.queue.is_empty(), "t.queue = $1"),
            (!self.kind.is_empty(), "t.kind = $5"),
            (!self.key.is_empty(), "t.key LIKE $6"),
            (!self.group.is_empty(), "t.group_key LIKE $7"),
            (!self.worker.is_empty(), "t.worker = $8"),
            (!self.error.is_empty(), "t.errors -> -1 ->> 'error' LIKE $9"),
            (self.payload.is_some(), "t.payload @> $10::jsonb"),
            (self.pushed.from.is_some(), "t.created_at > to_timestamp($11)"),
            (self.pushed.to.is_some(), "t.created_at < to_timestamp($12)"),
        ];
        let parts: Vec<_> = parts.iter().filter(|(given, _)| *given).map(|(_, part)| *part).collect();
        if parts.is_empty() { "true".to_owned() } else { parts.join(" AND ") }
    }

    /// The options of the filter of `queue.*_where` that are neither payloads nor times. Refuses what those procedures
    /// cannot filter by.
    pub fn options(&self) -> Result<Map<String, Value>, Problem> {
        if !self.text.is_empty() || !self.ended.is_empty() {
            return Err(Problem::bad("a bulk action cannot filter by text or by the time of the end"));
        }
        let state = if self.state == "live" { "" } else { &self.state };
        let options = [
            ("queue", self.queue.as_str()),
            ("state", state),
            ("kind", &self.kind),
            ("key", &self.key),
            ("group_key", &self.group),
            ("worker", &self.worker),
            ("error", &self.error),
        ];
        let given = options.iter().filter(|(_, value)| !value.is_empty());
        let mut options: Map<_, _> = given.map(|(name, value)| (name.to_string(), json!(value))).collect();
        if options.is_empty() && self.payload.is_none() && self.pushed.is_empty() {
            options.insert("all".to_owned(), json!(true));
        }
        Ok(options)
    }
}

static EVERY: String = String::new();

/// The pattern for LIKE in which only `*` stands for other text.
fn pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '*' => pattern.push('%'),
            '%' | '_' | '\\' => pattern.extend(['\\', letter]),
            _ => pattern.push(letter),
        }
    }
    pattern
}

/// A time in seconds since 1970, within the years that PostgreSQL can add an hour to.
fn time(name: &str, value: &dyn Fn(&str) -> String) -> Result<Option<f64>, Problem> {
    let text = value(name);
    if text.is_empty() {
        return Ok(None);
    }
    let seconds = text.parse::<f64>().ok().filter(|seconds| seconds.abs() < 1e11);
    seconds.map(Some).ok_or(Problem::bad(&format!("{name} must be a time in seconds since 1970")))
}

/// Checks JSON, which is then sent as text, because a number could lose digits on the way.
pub fn json_text(name: &str, text: &str) -> Result<Value, Problem> {
    serde_json::from_str(text).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        Problem::bad(&format!("{name} is not JSON: see {place}")).hint("Strings need double quotes.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_star_stands_for_other_text() {
        assert_eq!(pattern("order_1*%\\"), "order\\_1%\\%\\\\");
    }

    #[test]
    fn a_value_that_is_not_valid_is_refused_by_its_name() {
        for (name, value) in
            [("payload", "{to: 1}"), ("pushed_from", "yesterday"), ("ended_to", "inf"), ("pushed_to", "NaN")]
        {
            let given = |asked: &str| if asked == name { value.to_owned() } else { String::new() };
            let refused = Filter::read(&given, false).err().expect("refused");
            assert!(refused.line().starts_with(name), "{}", refused.line());
        }
        let payload = |asked: &str| if asked == "payload" { "{}".to_owned() } else { String::new() };
        assert!(Filter::read(&payload, true).is_err() && Filter::read(&payload, false).is_ok());
    }

    #[test]
    fn what_a_bulk_action_cannot_filter_by_is_refused() {
        for (name, value) in [("text", "x"), ("ended_from", "1"), ("nonsense", "x")] {
            let read = Filter::from_json(&json!({name: value}), false);
            assert!(read.and_then(|filter| filter.options()).is_err(), "{name}");
        }
        let every = Filter::from_json(&json!({"state": "live"}), false).and_then(|filter| filter.options());
        assert_eq!(every.ok().map(Value::Object), Some(json!({"all": true})));
    }
}
