//! Connection strings: URLs and "keyword = value" pairs, with PostgreSQL's rules.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;

/// Parameters by the names that libpq gives them.
pub type Parameters = BTreeMap<String, String>;

/// Reads a connection string. Errors do not contain it, because it can contain a password.
pub fn read(text: &str) -> Result<Parameters, String> {
    match text.split_once("://") {
        Some(("postgres" | "postgresql", rest)) => url(rest),
        Some((scheme, _))
            if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)) =>
        {
            Err("the connection string is a URL, and does not begin with postgresql://".to_owned())
        }
        _ if text.contains('=') => pairs(text),
        _ if text.is_empty() => Ok(Parameters::new()),
        // As psql: a single word is the name of a database.
        _ => Ok(Parameters::from([("dbname".to_owned(), text.to_owned())])),
    }
}

fn url(rest: &str) -> Result<Parameters, String> {
    let mut found = Parameters::new();
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) =
        authority.rsplit_once('@').map_or((None, authority), |(user, hosts)| (Some(user), hosts));
    if let Some(user) = user {
        let (user, password) = user.split_once(':').map_or((user, None), |(user, word)| (user, Some(word)));
        put(&mut found, "user", &decoded(user)?);
        put(&mut found, "password", &decoded(password.unwrap_or_default())?);
    }
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        let (name, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (name, port) =
                    rest.split_once(']').ok_or("an address in the URL has no closing bracket")?;
                (name, port.strip_prefix(':').unwrap_or_default())
            }
            None => host.rsplit_once(':').unwrap_or((host, "")),
        };
        names.push(decoded(name)?);
        ports.push(decoded(port)?);
    }
    if names.iter().any(|name| !name.is_empty()) {
        put(&mut found, "host", &names.join(","));
    }
    if ports.iter().any(|port| !port.is_empty()) {
        put(&mut found, "port", &ports.join(","));
    }
    put(&mut found, "dbname", &decoded(database)?);
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or("a parameter in the URL has no value")?;
        match (decoded(name)?.as_str(), decoded(value)?.as_str()) {
            ("ssl", "true") => put(&mut found, "sslmode", "require"),
            (name, value) => put(&mut found, name, value),
        }
    }
    Ok(found)
}

fn put(found: &mut Parameters, name: &str, value: &str) {
    if !value.is_empty() {
        found.insert(name.to_owned(), value.to_owned());
    }
}

fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    Ok(decoded.map_err(|_| "the connection string is not UTF-8")?.into_owned())
}

fn pairs(text: &str) -> Result<Parameters, String> {
    let mut found = Parameters::new();
    let mut letters = text.chars().peekable();
    loop {
        while letters.next_if(|letter| letter.is_whitespace()).is_some() {}
        if letters.peek().is_none() {
            return Ok(found);
        }
        let mut name = String::new();
        while let Some(letter) = letters.next_if(|letter| *letter != '=' && !letter.is_whitespace()) {
            name.push(letter);
        }
        while letters.next_if(|letter| letter.is_whitespace()).is_some() {}
        if letters.next() != Some('=') {
            return Err("the connection string has a parameter without \"=\"".to_owned());
        }
        while letters.next_if(|letter| letter.is_whitespace()).is_some() {}
        let quoted = letters.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match letters.next() {
                Some('\\') => value.extend(letters.next()),
                Some('\'') if quoted => break,
                Some(letter) if !quoted && letter.is_whitespace() => break,
                Some(letter) => value.push(letter),
                None if quoted => return Err("the connection string has an open quote".to_owned()),
                None => break,
            }
        }
        found.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_pairs(text: &str) -> Vec<(String, String)> {
        read(text).expect("parameters").into_iter().collect()
    }

    fn expected(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn a_url_names_users_hosts_ports_and_parameters() {
        let url = "postgresql://ann%40x:p%3Aw@[::1]:5433,b:5434/shop?sslmode=require&application_name=a%20b";
        let found = [
            ("application_name", "a b"),
            ("dbname", "shop"),
            ("host", "::1,b"),
            ("password", "p:w"),
            ("port", "5433,5434"),
            ("sslmode", "require"),
            ("user", "ann@x"),
        ];
        assert_eq!(read_pairs(url), expected(&found));
        assert_eq!(
            read_pairs("postgres:///shop?host=/tmp"),
            expected(&[("dbname", "shop"), ("host", "/tmp")])
        );
        assert_eq!(read_pairs("postgres://%2Ftmp/"), expected(&[("host", "/tmp")]));
    }

    #[test]
    fn pairs_can_be_quoted() {
        let found = [("dbname", "a b"), ("host", "/tmp"), ("password", "it's")];
        assert_eq!(read_pairs(r"host = /tmp dbname='a b' password='it\'s'"), expected(&found));
        assert!(read("host='x").is_err() && read("host=x dbname").is_err());
    }

    #[test]
    fn a_url_of_another_scheme_is_refused_without_its_text() {
        for query in ["", "?sslmode=require"] {
            let refused = read(&format!("postgresql+psycopg://shop:s3cret@db/shop{query}"));
            assert!(
                refused.as_ref().is_err_and(|why| why.contains("postgresql://") && !why.contains("s3cret")),
                "{refused:?}"
            );
        }
        // Part of a value, and not a scheme.
        assert_eq!(read_pairs("host=a options=x://y"), expected(&[("host", "a"), ("options", "x://y")]));
    }

    #[test]
    fn a_word_is_a_database() {
        assert_eq!(read_pairs("shop"), expected(&[("dbname", "shop")]));
    }
}
