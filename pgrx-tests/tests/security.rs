//! Tests the statements of docs/security.md: what roles cannot do, and cannot make other roles do.
//!
//! security/verbs.rs has the table of all functions, with the roles that may call them and a call of each. The tests
//! use it, and one of them fails if a function is missing there.

#[path = "security/callers.rs"]
mod callers;
#[path = "security/grid.rs"]
mod grid;
#[path = "security/ids.rs"]
mod ids;
#[path = "security/leaks.rs"]
mod leaks;
#[path = "security/locks.rs"]
mod locks;
#[path = "security/locks_names.rs"]
mod locks_names;
#[path = "security/names.rs"]
mod names;
#[path = "security/paths.rs"]
mod paths;
#[path = "security/relations.rs"]
mod relations;
#[path = "security/supply.rs"]
mod supply;
#[path = "security/tenants.rs"]
mod tenants;
#[path = "security/triggers.rs"]
mod triggers;
#[path = "security/verbs.rs"]
pub mod verbs;
#[path = "security/worker.rs"]
mod worker;

use postgres::{Client, NoTls};
use queue_ext_tests::{Cluster, Settings, number, run};

/// Rows that the worker would change during a test stay as they are.
const NO_WORKER: &str = "queue.worker_enabled = off";

/// A server with roles, and the extension, whose owner is no longer a superuser.
fn cluster(name: &str, extra: &'static str) -> Cluster {
    let cluster = Cluster::start_with(name, &Settings { preload: true, extra });
    run(
        &mut cluster.connect(),
        "CREATE ROLE nobody LOGIN; CREATE ROLE producer LOGIN; CREATE ROLE worker LOGIN;
         CREATE ROLE operator LOGIN; CREATE ROLE monitor LOGIN; GRANT pg_monitor TO monitor;
         CREATE ROLE owner LOGIN SUPERUSER",
    );
    run(&mut login(&cluster, "owner"), "CREATE EXTENSION queue_ext");
    run(&mut cluster.connect(), "ALTER ROLE owner NOSUPERUSER");
    cluster
}

/// A connection of this role's own.
fn login(cluster: &Cluster, role: &str) -> Client {
    cluster.config("postgres").user(role).connect(NoTls).expect("connect")
}

/// The first column of the rows, as text.
fn column(client: &mut Client, query: &str) -> Vec<String> {
    let rows = client.query(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// The error of the server: the SQLSTATE and the complete message.
fn refusal(error: &postgres::Error) -> (String, String) {
    let error = error.as_db_error().unwrap_or_else(|| panic!("not the server's word: {error:?}"));
    let said = [Some(error.message()), error.detail(), error.hint()];
    (error.code().code().to_owned(), said.into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

/// Runs a statement and rolls it back; returns its error.
fn attempt(client: &mut Client, statement: &str) -> Result<(), (String, String)> {
    run(client, "BEGIN");
    let result = client.batch_execute(statement).map_err(|error| refusal(&error));
    run(client, "ROLLBACK");
    result
}
