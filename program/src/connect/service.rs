//! The service file: named groups of connection parameters.

use std::path::PathBuf;

use super::string::Parameters;

/// The parameters of a service: from PGSERVICEFILE or ~/.pg_service.conf, or else from the file of the system.
pub fn read(
    name: &str,
    file: Option<&str>,
    home: Option<&str>,
    system: Option<&str>,
) -> Result<Parameters, String> {
    let own =
        file.map(PathBuf::from).or_else(|| home.map(|home| PathBuf::from(home).join(".pg_service.conf")));
    let folder = system.unwrap_or("/etc/postgresql-common");
    for path in own.into_iter().chain([PathBuf::from(folder).join("pg_service.conf")]) {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        if let Some(found) = section(&text, name).map_err(|why| format!("{}: {why}", path.display()))? {
            return Ok(found);
        }
    }
    Err(format!("no service file has the service \"{name}\""))
}

fn section(text: &str, name: &str) -> Result<Option<Parameters>, String> {
    let mut found: Option<Parameters> = None;
    for (number, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(title) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            if found.is_some() {
                break;
            }
            found = (title == name).then(Parameters::new);
        } else if let Some(found) = &mut found {
            let (key, value) = line.split_once('=').ok_or(format!("line {} has no \"=\"", number + 1))?;
            found.entry(key.trim().to_owned()).or_insert(value.trim().to_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_section_counts() {
        let text = "# all\n[a]\nhost=one\n\n[b]\nhost=two\nport=1\n[c]\nhost=three\n";
        let found = section(text, "b").expect("readable").expect("found");
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [("host".into(), "two".into()), ("port".into(), "1".into())]
        );
        assert!(section(text, "d").expect("readable").is_none());
        assert!(section("[b]\nhost", "b").is_err());
    }
}
