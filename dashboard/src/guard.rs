//! Access control. There are no cookies: the token of a user, and the key that every action needs, are sent in headers,
//! which another site cannot make a browser send.

use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, ORIGIN};
use hyper::{Method, StatusCode};

use crate::problem::Problem;

/// The header that carries the key of this process.
const KEY: &str = "x-queue-key";

/// The data to check requests.
pub struct Guard {
    token: Option<String>,
    key: String,
    hosts: Vec<String>,
}

impl Guard {
    /// Creates a new key.
    pub fn new(token: Option<String>, hosts: Vec<String>) -> Result<Self, String> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|error| format!("no random numbers: {error}"))?;
        let key = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { token, key, hosts })
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
        let guard = Guard::new(None, vec!["queue.example.com".to_owned()]).expect("a guard");
        for host in ["localhost:1", "127.0.0.1", "[::1]:80", "192.0.2.7:80", "QUEUE.example.com"] {
            assert!(guard.knows(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[evil]:80"] {
            assert!(!guard.knows(host), "{host}");
        }
    }

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same("abc", "abc"));
        assert!(!same("abc", "abd") && !same("ab", "abc") && !same("", "abc") && !same("abcd", "abc"));
    }
}
