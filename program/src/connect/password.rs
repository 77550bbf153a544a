//! The password file.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Whether users other than the owner can read a file.
pub fn is_open_to_others(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o077 != 0)
}

/// The password of the first line that matches. A file that others can read is not used, as psql does not use it.
pub fn find(path: &Path, wanted: [&str; 4]) -> Result<Option<String>, String> {
    let Ok(about) = std::fs::metadata(path) else { return Ok(None) };
    if !about.is_file() {
        return Ok(None);
    }
    if is_open_to_others(path) {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text.lines().find_map(|line| password(line, wanted)))
}

fn password(line: &str, wanted: [&str; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let fields = fields(line);
    let [host, port, database, user, password] = fields.as_slice() else { return None };
    let matches = [host, port, database, user]
        .iter()
        .zip(wanted)
        .all(|(field, value)| *field == "*" || *field == value);
    matches.then(|| password.clone())
}

/// The parts between colons. A backslash protects a colon or a backslash.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut().into_iter().for_each(|field| field.extend(letters.next())),
            letter => fields.last_mut().into_iter().for_each(|field| field.push(letter)),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_matches_counts() {
        let wanted = ["db", "5432", "shop", "ann"];
        assert_eq!(password("db:*:shop:ann:se:cret", wanted).as_deref(), Some("se:cret"));
        assert_eq!(password(r"*:*:*:ann:a\:b\\c", wanted).as_deref(), Some(r"a:b\c"));
        assert_eq!(password("#db:*:shop:ann:x", wanted), None);
        assert_eq!(password("db:5433:shop:ann:x", wanted), None);
    }
}
