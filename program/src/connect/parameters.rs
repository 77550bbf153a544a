//! Finds the parameters of a connection, and checks them.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, SslNegotiation, TargetSessionAttrs};

use super::string::{self, Parameters};
use super::tls::{Mode, Security};
use super::{password, service};
use crate::failure::Failure;

/// The environment variables of libpq, and the parameters that they set.
const VARIABLES: &[(&str, &str)] = &[
    ("PGHOST", "host"),
    ("PGHOSTADDR", "hostaddr"),
    ("PGPORT", "port"),
    ("PGDATABASE", "dbname"),
    ("PGUSER", "user"),
    ("PGPASSWORD", "password"),
    ("PGPASSFILE", "passfile"),
    ("PGOPTIONS", "options"),
    ("PGAPPNAME", "application_name"),
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGSSLCERT", "sslcert"),
    ("PGSSLKEY", "sslkey"),
    ("PGSSLNEGOTIATION", "sslnegotiation"),
    ("PGCONNECT_TIMEOUT", "connect_timeout"),
    ("PGTARGETSESSIONATTRS", "target_session_attrs"),
    ("PGCHANNELBINDING", "channel_binding"),
];

/// Parameters of libpq that do not matter here. Accepted, so that the connection strings of other programs work.
const IGNORED: &[&str] = &[
    "client_encoding",
    "fallback_application_name",
    "gssencmode",
    "gsslib",
    "gssdelegation",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "krbsrvname",
    "load_balance_hosts",
    "require_auth",
    "sslcompression",
    "sslcrl",
    "sslcrldir",
    "sslsni",
    "ssl_min_protocol_version",
    "tcp_user_timeout",
];

/// A server, or several of which one is to be used.
pub struct Server {
    pub(super) config: Config,
    pub(super) locations: Vec<Location>,
    pub(super) security: Security,
    passfile: PathBuf,
    /// The connection string that was given, for the commands that a worker starts.
    pub url: Option<String>,
}

/// One host.
#[derive(Clone)]
pub struct Location {
    pub host: Host,
    pub port: u16,
}

/// Where a host is.
#[derive(Clone)]
pub enum Host {
    Socket(PathBuf),
    Network { name: String, address: Option<IpAddr> },
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Socket(folder) => write!(formatter, "{}, port {}", folder.display(), self.port),
            Host::Network { name, .. } => write!(formatter, "{name}, port {}", self.port),
        }
    }
}

impl Server {
    /// From a connection string, if there is one, and the environment of this process.
    pub fn find(url: Option<&str>) -> Result<Self, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let server = Self::resolve(url, &variable).map_err(Failure::new)?;
        if server.config.get_password().is_none() && password::is_open_to_others(&server.passfile) {
            let path = server.passfile.display();
            eprintln!("queue: {path} is not used, because other users can read it: run chmod 600 on it");
        }
        Ok(server)
    }

    fn resolve(url: Option<&str>, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut found = string::read(url.unwrap_or_default())?;
        let home = variable("HOME");
        if let Some(name) = found.remove("service").or_else(|| variable("PGSERVICE")) {
            let file = found.remove("servicefile").or_else(|| variable("PGSERVICEFILE"));
            let system = variable("PGSYSCONFDIR");
            merge(&mut found, service::read(&name, file.as_deref(), home.as_deref(), system.as_deref())?);
        }
        let set = VARIABLES.iter().filter_map(|(name, key)| Some((key.to_string(), variable(name)?)));
        merge(&mut found, set.collect());
        let home = home.map(PathBuf::from).unwrap_or_default();
        let user = found.remove("user").or_else(|| variable("USER")).or_else(system_user);
        let user = user.ok_or("name a user: --url, PGUSER or USER")?;
        let mut take = |name: &str| found.remove(name).filter(|value| !value.is_empty());

        let mut config = Config::new();
        config.dbname(take("dbname").unwrap_or_else(|| user.clone())).user(user);
        if let Some(password) = take("password") {
            config.password(password);
        }
        if let Some(options) = take("options") {
            config.options(options);
        }
        if let Some(name) = take("application_name") {
            config.application_name(name);
        }
        if let Some(value) = take("connect_timeout") {
            let seconds: i64 = value.parse().map_err(|_| format!("connect_timeout {value}: not a number"))?;
            // As in libpq: no limit if it is not positive.
            let limit = if seconds > 0 { seconds.unsigned_abs() } else { 3600 };
            config.connect_timeout(Duration::from_secs(limit));
        }
        match take("target_session_attrs").as_deref() {
            None | Some("any") => {}
            Some("read-write" | "primary") => {
                config.target_session_attrs(TargetSessionAttrs::ReadWrite);
            }
            Some("read-only" | "standby") => {
                config.target_session_attrs(TargetSessionAttrs::ReadOnly);
            }
            Some(other) => return Err(format!("target_session_attrs {other} is not supported")),
        }
        match take("channel_binding").as_deref() {
            None | Some("prefer") => {}
            Some("require") => {
                config.channel_binding(ChannelBinding::Require);
            }
            Some("disable") => {
                config.channel_binding(ChannelBinding::Disable);
            }
            Some(other) => return Err(format!("channel_binding {other}: use disable, prefer or require")),
        }
        match take("sslnegotiation").as_deref() {
            None | Some("postgres") => {}
            Some("direct") => {
                config.ssl_negotiation(SslNegotiation::Direct);
            }
            Some(other) => return Err(format!("sslnegotiation {other}: use postgres or direct")),
        }
        // A server that has gone is noticed after about a minute.
        config.keepalives_idle(Duration::from_secs(30)).keepalives_interval(Duration::from_secs(10));
        config.keepalives_retries(3).tcp_user_timeout(Duration::from_secs(60));

        let security = security(&mut take, &home)?;
        let locations = locations(take("host"), take("hostaddr"), take("port"))?;
        let passfile = take("passfile").map_or_else(|| home.join(".pgpass"), PathBuf::from);
        if let Some(name) = found.keys().find(|name| !IGNORED.contains(&name.as_str())) {
            return Err(format!("unknown connection parameter \"{name}\""));
        }
        Ok(Self { config, locations, security, passfile, url: url.map(str::to_owned) })
    }

    /// The password for a host from the password file, unless the password is known already.
    pub(super) fn password_for(&self, location: &Location) -> Result<Option<String>, Failure> {
        if self.config.get_password().is_some() {
            return Ok(None);
        }
        let host = match &location.host {
            Host::Socket(folder) if folder == Path::new(default_socket()) => "localhost".into(),
            Host::Socket(folder) => folder.to_string_lossy(),
            Host::Network { name, .. } => name.as_str().into(),
        };
        let (port, config) = (location.port.to_string(), &self.config);
        let names = [config.get_dbname(), config.get_user()].map(Option::unwrap_or_default);
        password::find(&self.passfile, [&host, &port, names[0], names[1]]).map_err(Failure::new)
    }
}

fn merge(found: &mut Parameters, more: Parameters) {
    for (name, value) in more {
        found.entry(name).or_insert(value);
    }
}

fn security(take: &mut dyn FnMut(&str) -> Option<String>, home: &Path) -> Result<Security, String> {
    let file = |given: Option<String>, name: &str| {
        let usual = home.join(".postgresql").join(name);
        given.map(PathBuf::from).or_else(|| usual.exists().then_some(usual))
    };
    let roots = file(take("sslrootcert"), "root.crt");
    let system = roots.as_deref() == Some(Path::new("system"));
    let mode = match take("sslmode").as_deref() {
        None if system => Mode::VerifyFull,
        Some("verify-full") => Mode::VerifyFull,
        Some(weak) if system => {
            return Err(format!("sslmode {weak} is too weak for sslrootcert=system: use verify-full"));
        }
        Some("disable") => Mode::Disable,
        None | Some("allow" | "prefer") => Mode::Prefer,
        Some("require") => Mode::Require,
        Some("verify-ca") => Mode::VerifyCa,
        Some(other) => {
            return Err(format!("sslmode {other}: use disable, prefer, require, verify-ca or verify-full"));
        }
    };
    let (certificate, key) =
        (file(take("sslcert"), "postgresql.crt"), file(take("sslkey"), "postgresql.key"));
    Ok(Security { mode, roots, certificate, key })
}

fn locations(
    hosts: Option<String>,
    addresses: Option<String>,
    ports: Option<String>,
) -> Result<Vec<Location>, String> {
    let list = |text: Option<String>| -> Vec<String> {
        text.map(|text| text.split(',').map(|part| part.trim().to_owned()).collect()).unwrap_or_default()
    };
    let (mut hosts, addresses, ports) = (list(hosts), list(addresses), list(ports));
    if hosts.is_empty() {
        hosts = vec![String::new(); addresses.len().max(1)];
    }
    if !addresses.is_empty() && addresses.len() != hosts.len() {
        return Err("host and hostaddr have different numbers of entries".to_owned());
    }
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err("host and port have different numbers of entries".to_owned());
    }
    let mut found = Vec::new();
    for (number, name) in hosts.into_iter().enumerate() {
        let port = ports.get(number).or(ports.first()).filter(|port| !port.is_empty());
        let port =
            port.map_or(Ok(5432), |port| port.parse().map_err(|_| format!("port {port}: not a port")))?;
        let address = addresses.get(number).filter(|address| !address.is_empty());
        let host = match address {
            Some(text) => {
                let address = text.parse().map_err(|_| format!("hostaddr {text}: not an address"))?;
                let name = if name.is_empty() { text.clone() } else { name };
                Host::Network { name, address: Some(address) }
            }
            None if name.is_empty() => Host::Socket(PathBuf::from(default_socket())),
            None if name.starts_with('/') => Host::Socket(PathBuf::from(name)),
            None => Host::Network { name, address: None },
        };
        found.push(Location { host, port });
    }
    Ok(found)
}

/// Debian's folder for sockets, if it is there, or else PostgreSQL's.
fn default_socket() -> &'static str {
    let debian = "/var/run/postgresql";
    if Path::new(debian).exists() { debian } else { "/tmp" }
}

fn system_user() -> Option<String> {
    // SAFETY: the result of getpwuid is copied before another call could overwrite it; only this thread calls it.
    unsafe {
        let found = libc::getpwuid(libc::geteuid()).as_ref()?;
        std::ffi::CStr::from_ptr(found.pw_name).to_str().ok().map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(url: &str, set: &[(&str, &str)]) -> Result<Server, String> {
        let variable =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
        Server::resolve(Some(url).filter(|url| !url.is_empty()), &variable)
    }

    #[test]
    fn the_url_comes_before_the_variables() {
        let set = [("PGHOST", "b"), ("PGPORT", "5433"), ("PGUSER", "bob"), ("PGDATABASE", "other")];
        let server = resolve("postgresql://ann@a/shop", &set).expect("a server");
        assert_eq!(server.config.get_user(), Some("ann"));
        assert_eq!(server.config.get_dbname(), Some("shop"));
        assert_eq!(server.locations[0].to_string(), "a, port 5433");
    }

    #[test]
    fn the_database_is_named_like_the_user_by_default() {
        let server = resolve("", &[("PGUSER", "ann")]).expect("a server");
        assert_eq!(server.config.get_dbname(), Some("ann"));
        assert!(matches!(server.locations[0].host, Host::Socket(_)));
    }

    #[test]
    fn modes_of_tls_follow_libpq() {
        let mode = |url| resolve(url, &[("USER", "ann")]).map(|server| server.security.mode);
        assert_eq!(mode("host=a"), Ok(Mode::Prefer));
        assert_eq!(mode("host=a sslrootcert=system"), Ok(Mode::VerifyFull));
        assert!(mode("host=a sslrootcert=system sslmode=require").is_err());
        assert!(mode("host=a sslmode=maybe").is_err());
    }

    #[test]
    fn an_unknown_parameter_is_an_error() {
        assert!(resolve("host=a hots=b", &[("USER", "a")]).is_err_and(|why| why.contains("hots")));
        assert!(resolve("host=a client_encoding=UTF8", &[("USER", "a")]).is_ok());
    }
}
