//! The files in `monitoring/`, with the real Prometheus and an exporter: docs/monitoring.md.

#[path = "metrics/files.rs"]
mod files;
#[path = "metrics/picture.rs"]
mod picture;
#[path = "metrics/seen.rs"]
mod seen;
#[path = "metrics/stack.rs"]
mod stack;

use postgres::{Client, NoTls};
use queue_ext_tests::{Cluster, run};
use std::path::Path;

/// A server with the role that docs/monitoring.md makes.
fn cluster(name: &str) -> Cluster {
    let cluster = Cluster::start(name);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/monitoring.md");
    let page = std::fs::read_to_string(page).expect("read the page");
    let (_, rest) = page.split_once("```sql test=metrics\n").expect("statements on the page");
    let (statements, _) = rest.split_once("```").expect("their end");
    assert!(statements.contains("CREATE ROLE metrics"), "{statements}");
    run(&mut cluster.connect(), statements);
    cluster
}

/// A connection of the role that monitors.
fn monitor(cluster: &Cluster) -> Client {
    cluster.config("postgres").user("metrics").connect(NoTls).expect("connect")
}
