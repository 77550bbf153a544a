//! The options of the command line and the environment.

use std::net::SocketAddr;
use std::str::FromStr;

use hyper::header::HeaderName;

use crate::tls::Certificate;

/// A token that is shorter could be guessed.
const SHORTEST_TOKEN: usize = 16;

pub const USAGE: &str = "\
queue dashboard: a web dashboard for queue_ext

  DATABASE_URL=postgresql://oncall@host/database queue dashboard [options]

  --listen ADDRESS    the address to listen on; default 127.0.0.1:8642. An address that other machines
                      can reach needs a token
  --token-file FILE   require the token in this file; or set QUEUE_DASHBOARD_TOKEN
  --tls-cert FILE     serve the dashboard with TLS: the file of the certificate and those that vouch for it, as
                      PEM. The files are read again when they change
  --tls-key FILE      the file of the certificate's key, as PEM
  --allow-actions     enable actions: push, change and cancel tasks, pause queues, edit schedules.
                      Read-only by default
  --user-header NAME  a header in which a proxy names the user; shown, logged, and needed for actions
  --hide-payloads     neither show nor search payloads, headers, progress and results
  --allow-host NAME   a host name under which a proxy serves the dashboard; can be given several times
";

/// The options.
pub struct Options {
    pub listen: SocketAddr,
    pub token: Option<String>,
    pub certificate: Option<Certificate>,
    pub hosts: Vec<String>,
    pub user_header: Option<HeaderName>,
    pub allow_actions: bool,
    pub hide_payloads: bool,
}

/// The result of parsing.
pub enum Wish {
    Serve(Box<Options>),
    Help,
}

impl Options {
    /// From the arguments and the environment of this process.
    pub fn read(arguments: Vec<String>) -> Result<Wish, String> {
        let variable = |name: &str| std::env::var(name).ok();
        Self::parse(arguments.into_iter(), &variable)
    }

    fn parse(
        mut arguments: impl Iterator<Item = String>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Wish, String> {
        let mut listen = "127.0.0.1:8642".to_owned();
        let mut token = variable("QUEUE_DASHBOARD_TOKEN");
        let (mut certificate, mut key) = (None, None);
        let mut user_header = None;
        let (mut hosts, mut allow_actions, mut hide_payloads) = (Vec::new(), false, false);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--listen" => listen = value()?,
                "--token-file" => {
                    let path = value()?;
                    token = Some(std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?);
                }
                "--tls-cert" => certificate = Some(value()?),
                "--tls-key" => key = Some(value()?),
                "--allow-host" => hosts.push(value()?.to_ascii_lowercase()),
                "--user-header" => user_header = Some(users(&value()?)?),
                "--allow-actions" => allow_actions = true,
                "--hide-payloads" => hide_payloads = true,
                "--help" | "-h" => return Ok(Wish::Help),
                _ => return Err(format!("unknown option {argument}\n\n{USAGE}")),
            }
        }
        let token = token.map(|token| token.trim().to_owned());
        if token.as_ref().is_some_and(|token| token.len() < SHORTEST_TOKEN) {
            return Err(format!("a token needs at least {SHORTEST_TOKEN} characters"));
        }
        let listen = SocketAddr::from_str(&listen)
            .map_err(|_| format!("--listen {listen}: not an address and port, such as 127.0.0.1:8642"))?;
        if !listen.ip().is_loopback() && token.is_none() {
            return Err(format!(
                "other machines can reach {listen}: use --token-file, or listen on 127.0.0.1 and connect through ssh -L"
            ));
        }
        let certificate = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(Certificate::read(&certificate, &key)?),
            (None, None) => None,
            (Some(_), None) => return Err("--tls-cert needs --tls-key".to_owned()),
            (None, Some(_)) => return Err("--tls-key needs --tls-cert".to_owned()),
        };
        Ok(Wish::Serve(Box::new(Self {
            listen,
            token,
            certificate,
            hosts,
            user_header,
            allow_actions,
            hide_payloads,
        })))
    }
}

/// The header that names the user. Not one that means something else, or that a script of another site can set.
fn users(name: &str) -> Result<HeaderName, String> {
    let header = HeaderName::from_str(name).ok().filter(|header| {
        let taken = ["authorization", "cookie", "host", "origin", "content-type", "accept", "x-queue-key"];
        !taken.contains(&header.as_str()) && !header.as_str().starts_with("sec-")
    });
    header.ok_or(format!("--user-header {name}: not a header for users, such as X-Forwarded-User"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str], token: Option<&str>) -> Result<Options, String> {
        let variable = |name: &str| match name {
            "QUEUE_DASHBOARD_TOKEN" => token.map(str::to_owned),
            _ => None,
        };
        match Options::parse(arguments.iter().map(|argument| argument.to_string()), &variable)? {
            Wish::Serve(options) => Ok(*options),
            Wish::Help => Err("help".to_owned()),
        }
    }

    #[test]
    fn by_default_it_is_read_only_and_local() {
        let options = parse(&[], None).expect("options");
        assert!(options.listen.ip().is_loopback() && !options.allow_actions && options.token.is_none());
    }

    #[test]
    fn an_address_that_other_machines_can_reach_needs_a_token() {
        for address in ["0.0.0.0:80", "[::]:80", "192.0.2.1:80"] {
            assert!(parse(&["--listen", address], None).is_err_and(|why| why.contains("token")), "{address}");
            assert!(parse(&["--listen", address], Some("sixteen letters!")).is_ok(), "{address}");
        }
        assert!(parse(&["--listen", "[::1]:80"], None).is_ok());
    }

    #[test]
    fn the_header_of_users_is_none_that_means_something_else() {
        let options = parse(&["--user-header", "X-Forwarded-User"], None).expect("options");
        assert_eq!(options.user_header.as_ref().map(HeaderName::as_str), Some("x-forwarded-user"));
        for name in ["Authorization", "Host", "sec-fetch-site", "two words", ""] {
            assert!(
                parse(&["--user-header", name], None).is_err_and(|why| why.contains("--user-header")),
                "{name}"
            );
        }
    }

    #[test]
    fn a_short_token_and_an_unknown_option_are_refused() {
        assert!(parse(&[], Some("")).is_err_and(|why| why.contains("16 characters")));
        assert!(parse(&[], Some("fifteen letters")).is_err());
        assert!(parse(&["--alow-actions"], None).is_err_and(|why| why.contains("--alow-actions")));
    }
}
