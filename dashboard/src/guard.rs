//! Who may ask. The page has no cookies: a visitor's token, and the key that every action has to show, come in
//! headers, which no other site can make a browser send.

use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, ORIGIN};
use hyper::{Method, StatusCode};

use crate::problem::Problem;

/// The header that carries the key of this process.
const KEY: &str = "x-queue-key";

/// What requests are held against.
pub struct Guard {
    token: Option<String>,
    key: String,
    hosts: Vec<String>,
}

impl Guard {
    /// With a fresh key.
    pub fn new(token: Option<String>, hosts: Vec<String>) -> Result<Self, String> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|error| format!("no random numbers: {error}"))?;
        let key = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { token, key, hosts })
    }

    /// What an action has to show. A page of another site cannot read it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Lets a request through, or says why not.
    pub fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
        let host = text(headers, HOST.as_str());
        if !self.knows(host) {
            return Err(Problem::new(StatusCode::FORBIDDEN, "this name is not one of the page's")
                .hint("Come by address or as localhost, or start queue-dashboard with --allow-host NAME."));
        }
        if !path.starts_with("/api/") {
            return Ok(());
        }
        // Without a token, another site could have a browser ask, and see how long the answer takes.
        let site = text(headers, "sec-fetch-site");
        if !["", "same-origin", "none"].contains(&site) {
            return Err(Problem::new(StatusCode::FORBIDDEN, "another site asked for this"));
        }
        if let Some(token) = &self.token {
            let shown = text(headers, AUTHORIZATION.as_str()).strip_prefix("Bearer ").unwrap_or_default();
            if !same(shown, token) {
                return Err(Problem::new(StatusCode::UNAUTHORIZED, "the token is wrong"));
            }
        }
        if method == Method::POST {
            // The origin's scheme may differ from ours behind a proxy that speaks TLS.
            let origin =
                text(headers, ORIGIN.as_str()).split_once("://").map_or("", |(_, authority)| authority);
            let plain = text(headers, CONTENT_TYPE.as_str()) == "application/json";
            let here = origin == host && site != "none";
            if !here || !plain || !same(text(headers, KEY), &self.key) {
                return Err(Problem::new(StatusCode::FORBIDDEN, "this did not come from the page")
                    .hint("Load the page again."));
            }
        }
        Ok(())
    }

    /// An address, localhost, or a name that was allowed. Not any name that leads here: somebody else's, pointed
    /// at this machine, would make his page one of ours.
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

/// Takes the same time wherever the two differ.
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
