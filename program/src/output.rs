//! What commands print: tables for people, JSON for programs.

use serde_json::Value;

/// A table without lines, each column as wide as its longest entry. Numbers are right-aligned.
pub fn table(headers: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headers[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headers.len()).map(width).collect();
    let is_number =
        |cell: &str| cell.chars().all(|letter| letter.is_ascii_digit() || ".,- ".contains(letter));
    let numeric: Vec<bool> = (0..headers.len())
        .map(|column| rows.iter().all(|row| is_number(&row[column])) && !rows.is_empty())
        .collect();
    let mut text = String::new();
    let headers = headers.iter().map(ToString::to_string).collect();
    for row in std::iter::once(&headers).chain(rows) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let space = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            line += &if numeric[column] { format!("{space}{cell}  ") } else { format!("{cell}{space}  ") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// A value as a person reads it: a string without quotes, nothing for null. Control characters, which could move the
/// cursor, are replaced.
pub fn plain(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    visible(&text)
}

/// Text on one line without control characters.
pub fn visible(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// Seconds in a short form.
pub fn age(seconds: f64) -> String {
    match seconds {
        ..60.0 => format!("{seconds:.1}s"),
        ..3600.0 => format!("{}m{:02}s", seconds as u64 / 60, seconds as u64 % 60),
        ..86400.0 => format!("{}h{:02}m", seconds as u64 / 3600, seconds as u64 / 60 % 60),
        _ => format!("{}d{:02}h", seconds as u64 / 86400, seconds as u64 / 3600 % 24),
    }
}

/// Prints text; a reader that has gone, as in `queue top | head`, is no error.
pub fn print(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => result,
    }
}

/// Whether somebody can still read what is printed: `queue tail | head -1` is to end although nothing more happens.
pub fn has_reader() -> bool {
    let mut output = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
    // SAFETY: one entry, and no waiting.
    unsafe { libc::poll(&raw mut output, 1, 0) };
    output.revents & (libc::POLLERR | libc::POLLHUP) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_entries() {
        let rows = [vec!["mail".to_owned(), "7".to_owned()], vec!["a".to_owned(), "1000".to_owned()]];
        assert_eq!(table(&["queue", "dead"], &rows), "queue  dead\nmail      7\na      1000\n");
    }

    #[test]
    fn ages_are_short() {
        assert_eq!([5.0, 65.0, 3700.0, 90000.0].map(age), ["5.0s", "1m05s", "1h01m", "1d01h"]);
    }

    #[test]
    fn control_characters_are_not_printed() {
        assert_eq!(plain(&Value::from("a\u{1b}[2Jb\n")), "a [2Jb ");
    }
}
