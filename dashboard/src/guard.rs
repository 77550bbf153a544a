//! Access control. There are no cookies: the token of a user, and the key that every action needs, are sent in headers,
//! which another site cannot make a browser send.

use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::{Method, StatusCode};

use crate::problem::Problem;

/// The header that carries the key of this process.
const KEY: &str = "x-queue-key";
const LONGEST_USER: usize = 200;

/// The data to check requests.
pub struct Guard {
    token: Option<String>,
    key: String,
    hosts: Vec<String>,
    user_header: Option<HeaderName>,
}

impl Guard {
    /// Creates a new key.
    pub fn new(
        token: Option<String>,
        hosts: Vec<String>,
        user_header: Option<HeaderName>,
    ) -> Result<Self, String> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|error| format!("no random numbers: {error}"))?;
        let key = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { token, key, hosts, user_header })
    }

    /// The key that an action needs. A page of another site cannot read it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Accepts a request, or returns why it is refused.
    pub fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
        let host = text(headers, HOST.as_str());
        if !self.knows(host) {
            return Err(Problem::new(StatusCode::FORBIDDEN, "this host name is not allowed")
                .hint("Come by address or as localhost, or start queue dashboard with --allow-host NAME."));
        }
        if !path.starts_with("/api/") {
            return Ok(());
        }
        // Without a token, another site could make a browser send requests and measure how long they take.
        let site = text(headers, "sec-fetch-site");
        if !["", "same-origin", "none"].contains(&site) {
            return Err(Problem::new(StatusCode::FORBIDDEN, "the request came from another site"));
        }
        if let Some(token) = &self.token {
            let shown = text(headers, AUTHORIZATION.as_str()).strip_prefix("Bearer ").unwrap_or_default();
            if !same(shown, token) {
                return Err(Problem::new(StatusCode::UNAUTHORIZED, "the token is wrong"));
            }
        }
        self.user(headers)?;
        if method == Method::POST {
            // Behind a proxy with TLS, the scheme of the origin may differ.
            let origin =
                text(headers, ORIGIN.as_str()).split_once("://").map_or("", |(_, authority)| authority);
            let plain = text(headers, CONTENT_TYPE.as_str()) == "application/json";
            let here = origin == host && site != "none";
            if !here || !plain || !same(text(headers, KEY), &self.key) {
                return Err(Problem::new(
                    StatusCode::FORBIDDEN,
                    "the request did not come from the dashboard",
                )
                .hint("Load the page again."));
            }
        }
        Ok(())
    }

    /// The user whom a proxy names in its header. Every request has shown the token or came from this machine, because
    /// other addresses need a token; so only who has the token, or is logged in here, can name a user. A header that
    /// comes twice is refused: the proxy would have added its own to one that the browser sent.
    pub fn user(&self, headers: &HeaderMap) -> Result<Option<String>, Problem> {
        let Some(header) = &self.user_header else { return Ok(None) };
        let mut users = headers.get_all(header).iter();
        let user = users.next().map(|user| String::from_utf8_lossy(user.as_bytes()).trim().to_owned());
        if users.next().is_some() || user.as_ref().is_some_and(|user| user.len() > LONGEST_USER) {
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                &format!("the header {header} was sent twice, or is too long"),
            )
            .hint("Have the proxy replace the header, not add one."));
        }
        Ok(user.filter(|user| !user.is_empty()))
    }

    /// The user of an action, who must be known if the proxy names users.
    pub fn actor(&self, headers: &HeaderMap) -> Result<Option<String>, Problem> {
        match (self.user(headers)?, &self.user_header) {
            (None, Some(header)) => Err(Problem::new(
                StatusCode::FORBIDDEN,
                &format!("the header {header} is missing, so it is not known who acts"),
            )
            .hint("Come through the proxy that sets it.")),
            (user, _) => Ok(user),
        }
    }

    /// An address, localhost, or a name that was allowed. Not any name that resolves to this machine: with DNS
    /// rebinding, a page of another site would have the same origin.
    fn knows(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next(),
            None => host.split(':').next(),
        };
        let name = name.unwrap_or_default().to_ascii_lowercase();
        name == "localhost" || name.parse::<IpAddr>().is_ok() || self.hosts.contains(&name)
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Compares in constant time.
fn same(shown: &str, right: &str) -> bool {
    shown.len() == right.len()
        && shown.bytes().zip(right.bytes()).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_are_the_pages_are_answered() {
        let guard = Guard::new(None, vec!["queue.example.com".to_owned()], None).expect("a guard");
        for host in ["localhost:1", "127.0.0.1", "[::1]:80", "192.0.2.7:80", "QUEUE.example.com"] {
            assert!(guard.knows(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[evil]:80"] {
            assert!(!guard.knows(host), "{host}");
        }
    }

    #[test]
    fn a_user_is_one_header_and_needed_only_to_act() {
        let name = HeaderName::from_static("x-user");
        let guard = Guard::new(None, Vec::new(), Some(name.clone())).expect("a guard");
        let mut headers = HeaderMap::new();
        assert!(guard.user(&headers).is_ok_and(|user| user.is_none()) && guard.actor(&headers).is_err());
        headers.append(&name, "ada".parse().expect("a value"));
        assert!(guard.actor(&headers).is_ok_and(|user| user.as_deref() == Some("ada")));
        headers.append(&name, "eve".parse().expect("a value"));
        assert!(guard.user(&headers).is_err());
    }

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same("abc", "abc"));
        assert!(!same("abc", "abd") && !same("ab", "abc") && !same("", "abc") && !same("abcd", "abc"));
    }
}
