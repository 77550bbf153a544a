//! Reads the fields of a request for an action. An error names the field.

use serde_json::Value;

use crate::filter::json_text;
use crate::problem::Problem;

/// The text of a field; nothing if it is missing or empty.
pub fn text(wish: &Value, name: &str) -> Result<Option<String>, Problem> {
    match &wish[name] {
        Value::Null => Ok(None),
        Value::String(text) if text.contains('\0') => {
            Err(Problem::bad(&format!("{name} must not contain the character 0")))
        }
        Value::String(text) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        _ => Err(Problem::bad(&format!("{name} must be a string"))),
    }
}

pub fn needed(wish: &Value, name: &str) -> Result<String, Problem> {
    text(wish, name)?.ok_or(Problem::bad(&format!("{name} is missing")))
}

/// A whole number, as a number or as the text of a field.
pub fn whole(wish: &Value, name: &str) -> Result<Option<i32>, Problem> {
    let number = match &wish[name] {
        Value::Number(number) => number.as_i64().and_then(|number| i32::try_from(number).ok()),
        _ => match text(wish, name)? {
            None => return Ok(None),
            Some(text) => text.trim().parse().ok(),
        },
    };
    number
        .map(Some)
        .ok_or(Problem::bad(&format!("{name} must be a whole number from -2147483648 to 2147483647")))
}

/// JSON, as text.
pub fn json(wish: &Value, name: &str) -> Result<Option<String>, Problem> {
    let text = text(wish, name)?.filter(|text| !text.trim().is_empty());
    if let Some(text) = &text {
        json_text(name, text)?;
    }
    Ok(text)
}

/// A JSON object, as text.
pub fn object(wish: &Value, name: &str) -> Result<Option<String>, Problem> {
    let text = json(wish, name)?;
    match &text {
        Some(text) if !json_text(name, text)?.is_object() => {
            Err(Problem::bad(&format!("{name} must be a JSON object")))
        }
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_is_not_valid_is_refused_by_its_name() {
        let wish = json!({"payload": "{a: secret}", "priority": "high", "headers": "[1]", "key": 7});
        for (refused, name) in [
            (json(&wish, "payload").err(), "payload"),
            (whole(&wish, "priority").err(), "priority"),
            (object(&wish, "headers").err(), "headers"),
            (text(&wish, "key").err(), "key"),
            (needed(&wish, "queue").err(), "queue"),
        ] {
            let line = refused.expect(name).line();
            assert!(line.starts_with(name) && !line.contains("secret"), "{line}");
        }
        assert_eq!(whole(&json!({"priority": " -5 "}), "priority").ok(), Some(Some(-5)));
        assert_eq!(whole(&wish, "delay").ok(), Some(None));
    }
}
