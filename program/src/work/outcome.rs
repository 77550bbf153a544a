//! How an attempt ended.

use std::num::IntErrorKind;
use std::time::{Duration, SystemTime};

use serde::de::IgnoredAny;
use serde_json::Value;

use super::lease::Reason;

/// What is reported to the server.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// With the result as JSON.
    Done(Option<String>),
    Failed(Failed),
    /// Back to the queue, without counting the attempt.
    Released(Duration),
    Cancelled,
    /// Nothing is reported: the lease was lost.
    Nothing,
}

/// A failed attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Failed {
    pub error: String,
    pub details: Option<Value>,
    pub retry_in: Option<Duration>,
    pub permanent: bool,
}

impl Outcome {
    pub fn failed(error: impl Into<String>) -> Self {
        Self::Failed(Failed { error: error.into(), ..Failed::default() })
    }

    /// Of a handler that was stopped before it finished.
    pub fn stopped(reason: Reason, timeout: Option<Duration>) -> Self {
        match reason {
            Reason::Cancelled => Self::Cancelled,
            Reason::Lost => Self::Nothing,
            Reason::Shutdown => Self::Released(Duration::ZERO),
            Reason::TimedOut => {
                let limit = humantime::format_duration(timeout.unwrap_or_default());
                Self::failed(format!("stopped after {limit}, the limit of --timeout"))
            }
        }
    }

    /// What is reported in the place of an outcome that the server refuses for what it contains, if there is anything.
    pub fn replacement(&self, why: &str) -> Option<Self> {
        match self {
            Self::Done(result) => {
                let what = if result.is_some() { "result" } else { "completion" };
                Some(Self::failed(format!("the server refused the {what}: {why}")))
            }
            // The encoding of the database may not have all characters of the text.
            Self::Failed(failed) if !failed.error.is_ascii() => {
                Some(Self::Failed(Failed { error: in_ascii(&failed.error), ..failed.clone() }))
            }
            Self::Released(_) => Some(Self::failed(format!("the server refused the release: {why}"))),
            Self::Cancelled => Some(Self::failed(format!("the server refused the cancellation: {why}"))),
            Self::Failed(_) | Self::Nothing => None,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Failed(Failed { permanent: true, .. }) => "discarded",
            Self::Failed(_) => "failed",
            Self::Released(_) => "released",
            Self::Cancelled => "cancelled",
            Self::Nothing => "abandoned",
        }
    }
}

/// The result of a task from the output of its handler.
pub fn result(output: &[u8], results: super::Results, cut: bool) -> Result<Option<String>, String> {
    let text = || std::str::from_utf8(output).map_err(|_| "the result is not UTF-8".to_owned());
    match results {
        super::Results::None => Ok(None),
        _ if cut => Err("the result has more than 1 MB".to_owned()),
        super::Results::Text => {
            let text = text()?;
            if text.is_empty() {
                return Ok(None);
            }
            let text = text.strip_suffix('\n').unwrap_or(text);
            if text.contains('\0') {
                return Err("the result contains a null character".to_owned());
            }
            Ok(Some(Value::from(text).to_string()))
        }
        super::Results::Json => {
            let text = text()?.trim();
            if text.is_empty() {
                return Ok(None);
            }
            // The text itself is sent, because reading it into numbers would round them, or refuse large ones. The error has
            // no part of the text.
            match serde_json::from_str::<IgnoredAny>(text) {
                Ok(_) => Ok(Some(text.to_owned())),
                Err(why) => Err(format!("the result is not JSON: {why}")),
            }
        }
    }
}

/// What Retry-After asks for: a number of seconds, or a date.
pub fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    /// A server that asks for more is not believed.
    const LONGEST: Duration = Duration::from_secs(30 * 24 * 60 * 60);
    let value = value.trim();
    let wait = match value.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(why) if *why.kind() == IntErrorKind::PosOverflow => LONGEST,
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(LONGEST))
}

/// The last bytes of an output, as text that the server accepts.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\0', "\u{fffd}").trim_end().to_owned()
}

/// The text with other characters as JSON and the client libraries write them.
fn in_ascii(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_ascii() {
            plain.push(letter);
        } else {
            plain.extend(letter.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Results;

    #[test]
    fn retry_after_is_a_number_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(retry_after(" 120 ", now), Some(Duration::from_secs(120)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:50:37 GMT", now), Some(Duration::from_secs(60)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:00:00 GMT", now), Some(Duration::ZERO));
        assert_eq!(retry_after("99999999999", now), Some(Duration::from_secs(2_592_000)));
        assert_eq!(retry_after("99999999999999999999", now), Some(Duration::from_secs(2_592_000)));
        assert_eq!(retry_after("soon", now), None);
    }

    #[test]
    fn a_refused_error_keeps_its_verdict_and_becomes_ascii() {
        let refused = Failed { error: "é 😀\n".to_owned(), permanent: true, ..Failed::default() };
        let plain =
            Failed { error: "\\u00e9 \\ud83d\\ude00\n".to_owned(), permanent: true, ..Failed::default() };
        let plain = Outcome::Failed(plain);
        assert_eq!(Outcome::Failed(refused).replacement("why").as_ref(), Some(&plain));
        assert_eq!(plain.replacement("why"), None);
        let refused = Outcome::Done(None).replacement("why");
        assert_eq!(refused, Some(Outcome::failed("the server refused the completion: why")));
        let refused = Outcome::Cancelled.replacement("why");
        assert_eq!(refused, Some(Outcome::failed("the server refused the cancellation: why")));
    }

    #[test]
    fn results_are_checked() {
        assert_eq!(result(b"{\"a\": 1.10}\n", Results::Json, false), Ok(Some("{\"a\": 1.10}".to_owned())));
        assert_eq!(result(b" \n", Results::Json, false), Ok(None));
        assert!(result(b"{", Results::Json, false).is_err_and(|why| why.contains("not JSON")));
        assert_eq!(result(b"a \"b\"\n", Results::Text, false), Ok(Some(r#""a \"b\"""#.to_owned())));
        assert!(result(b"\xff", Results::Text, false).is_err());
        assert_eq!(result(b"", Results::Text, false), Ok(None));
        assert_eq!(result(b"\n", Results::Text, false), Ok(Some("\"\"".to_owned())));
        assert!(result(b"1", Results::Json, true).is_err_and(|why| why.contains("1 MB")));
        assert_eq!(result(b"\xff", Results::None, true), Ok(None));
    }
}
