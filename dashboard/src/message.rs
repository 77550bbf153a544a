//! The message of a stored error.

/// The SQL of an error from its message on. The traceback of a Python program ends with its message: the first line after
/// the last frame that is not indented. An error that has no frames begins with its message.
///
/// The error is read once, because a long one is stored apart from its row.
pub fn message(error: &str) -> String {
    format!(
        "(SELECT CASE WHEN e.text LIKE 'Traceback (most recent call last):%' THEN coalesce(substring(
                     right(e.text, strpos(reverse(e.text), reverse(E'\\n  File \"')) - 1) FROM '\\n([^[:space:]].*)'),
                 e.text) ELSE e.text END
          FROM (SELECT {error} AS text OFFSET 0) AS e)"
    )
}
