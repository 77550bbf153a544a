//! The SQL-only edition: installed by a plain role, maintained by calls, and exchanged for the extension and back.
//! The suites regress, isolation and policies show that its functions behave the same.

use std::path::Path;
use std::process::{Command, Output};

use postgres::{Client, NoTls};
use queue_ext_tests::cluster::bindir;
use queue_ext_tests::edition::{OWNER, target};
use queue_ext_tests::{Cluster, Edition, Settings, Worker};

#[path = "portable/cron.rs"]
mod cron;
#[path = "portable/dump.rs"]
mod dump;
#[path = "portable/install.rs"]
mod install;
#[path = "portable/maintenance.rs"]
mod maintenance;
#[path = "portable/moving.rs"]
mod moving;
#[path = "portable/rights.rs"]
mod rights;

/// A server without the library, with the SQL-only edition in the database `postgres`.
fn started(name: &str) -> Cluster {
    let cluster = Edition::SqlOnly.cluster(&format!("portable-{name}"), Worker::On);
    Edition::SqlOnly.install(&cluster, "postgres");
    cluster
}

/// A connection as the plain role that owns the database.
fn as_owner(cluster: &Cluster, database: &str) -> Client {
    cluster.config(database).user(OWNER).connect(NoTls).expect("connect")
}

/// Runs a file with psql, or standard input if the file is "-".
fn psql(cluster: &Cluster, role: &str, database: &str, file: &Path, options: &[&str]) -> Output {
    Command::new(bindir().join("psql"))
        .args(["-X", "-q", "-U", role, "-d", database, "-h"])
        .arg(cluster.folder())
        .args(options)
        .arg("-f")
        .arg(file)
        .output()
        .expect("run psql")
}

/// A file that "make portable" made.
fn made(what: &str) -> std::path::PathBuf {
    target().join(format!("queue_ext-{what}--{}.sql", env!("CARGO_PKG_VERSION")))
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// One value of one row.
fn ask<T: for<'a> postgres::types::FromSql<'a>>(client: &mut Client, query: &str) -> T {
    client.query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}

/// A server with the library, on which the extension can be installed.
fn with_library(name: &str) -> Cluster {
    Cluster::start_with(&format!("portable-{name}"), &Settings::default())
}
