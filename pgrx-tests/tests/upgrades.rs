//! Upgrades of the extension, the library and the server. Work in progress continues.

#[path = "upgrades/catalog.rs"]
mod catalog;
#[path = "upgrades/flight.rs"]
mod flight;
#[path = "upgrades/servers.rs"]
mod servers;
#[path = "upgrades/strangers.rs"]
mod strangers;
#[path = "upgrades/subscriber.rs"]
mod subscriber;

use std::fs;
use std::path::{Path, PathBuf};

use queue_ext_tests::cluster::run_folder;
use queue_ext_tests::installation::Installation;
use queue_ext_tests::{Cluster, SOON, Settings, number, run};

/// A version after all others: the statements that its sources add. Each can be in the install script and in the
/// upgrade script, and comes with the message that reports it as missing.
const NEXT: &[(&str, &str)] = &[
    ("ALTER TABLE queue.tasks ADD COLUMN site text NOT NULL DEFAULT 'here'", "queue.tasks column 28: column"),
    ("COMMENT ON COLUMN queue.tasks.worker IS 'Who.'", "queue.tasks column 11: comment"),
    ("CREATE INDEX dead_letters_worker ON queue.dead_letters (worker)", "queue.dead_letters_worker: index"),
    ("DROP INDEX queue_internal.events_task", "queue_internal.events_task: index"),
    ("ALTER TABLE queue.tasks SET (fillfactor = 60)", "queue.tasks: options"),
    (
        "ALTER TABLE queue.tasks SET (toast.autovacuum_enabled = off)",
        "queue.tasks: options of what is out of line",
    ),
    (
        "ALTER TABLE queue.queues ADD CONSTRAINT queues_site CHECK (name <> 'x')",
        "queue.queues constraint queues_site",
    ),
    ("ALTER TABLE queue.queues ALTER COLUMN max_attempts SET DEFAULT 21", "queue.queues column 7: default"),
    (
        "ALTER TABLE queue.queues DISABLE TRIGGER restore_default_queue",
        "trigger restore_default_queue: enabled",
    ),
    (
        "ALTER TABLE queue.dead_letters ALTER COLUMN payload SET STORAGE EXTERNAL",
        "queue.dead_letters column 21: column",
    ),
    ("ALTER TABLE queue.schedules REPLICA IDENTITY FULL", "queue.schedules: kind"),
    ("GRANT SELECT ON queue.bindings TO pg_monitor", "queue.bindings: privileges"),
    ("GRANT SELECT (name) ON queue.schedules TO pg_monitor", "queue.schedules column 1: privileges"),
    ("CREATE POLICY mine ON queue.bindings USING (true)", "queue.bindings policy mine"),
    ("ALTER TABLE queue.bindings FORCE ROW LEVEL SECURITY", "queue.bindings: row-level security"),
    (
        "CREATE OR REPLACE FUNCTION queue_internal.restore_default_queue() RETURNS trigger
         LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$ BEGIN RETURN NEW; END $$",
        "restore_default_queue(): definition",
    ),
    ("ALTER FUNCTION queue.reap() SET lock_timeout = '9s'", "queue.reap(): definition"),
    ("COMMENT ON FUNCTION queue.redrive(text, integer) IS 'Again.'", "queue.redrive(text,integer): comment"),
    ("GRANT EXECUTE ON FUNCTION queue.purge(text) TO pg_monitor", "queue.purge(text): privileges"),
    (
        "CREATE FUNCTION queue.site() RETURNS text LANGUAGE sql SET search_path = pg_catalog, pg_temp
         BEGIN ATOMIC SELECT max(site) FROM queue.tasks; END",
        "queue.site(): definition",
    ),
    ("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA queue FROM PUBLIC", "queue.site(): privileges"),
    ("CREATE VIEW queue.sites AS SELECT DISTINCT t.site FROM queue.tasks AS t", "queue.sites: query"),
    ("CREATE TYPE queue.place AS ENUM ('here', 'there')", "queue.place: labels"),
    // Otherwise the background worker does so, at some time.
    ("DO $$ BEGIN PERFORM queue_internal.close_types(); END $$", "queue.place: privileges"),
    ("CREATE SEQUENCE queue.sites_seq", "queue.sites_seq: sequence"),
    ("ALTER SEQUENCE queue.tasks_id_seq CACHE 5", "queue.tasks_id_seq: sequence"),
    ("CREATE STATISTICS queue.tasks_sites ON queue, state FROM queue.tasks", "statistics tasks_sites"),
    ("SELECT pg_catalog.pg_extension_config_dump('queue.rights', 'WHERE true')", "queue.rights: dumped"),
    ("INSERT INTO queue.queues (name) VALUES ('second')", "row of queue.queues: second"),
    ("COMMENT ON EXTENSION queue_ext IS 'The next one.'", "the extension: comment"),
];

/// Statements that need the first one.
const ABOUT_SITE: [&str; 2] = ["queue.site()", "queue.sites AS"];

/// The statements of the next version as a script, without some of them.
fn script(without: impl Fn(&str) -> bool) -> String {
    NEXT.iter().filter(|(statement, _)| !without(statement)).map(|(it, _)| format!("{it};\n")).collect()
}

/// The project's folder.
fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(project().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The version that the sources make.
fn version() -> String {
    let cargo = read("Cargo.toml");
    let line = cargo.lines().find_map(|line| line.strip_prefix("version = \"")).expect("a version");
    line.trim_end_matches('"').to_owned()
}

/// The versions with a frozen script.
fn releases() -> Vec<String> {
    let files = fs::read_dir(project().join("sql/releases")).expect("the frozen scripts");
    let names = files.map(|file| file.expect("a file").file_name().into_string().expect("UTF-8"));
    let version = |name: String| Some(name.strip_prefix("queue_ext--")?.strip_suffix(".sql")?.to_owned());
    names.filter_map(version).collect()
}

/// A running server without the extension that knows every released version, and the next one as 99.0; and the
/// folder of its scripts.
fn laboratory(name: &str) -> (Cluster, PathBuf) {
    let Installation { programs, extensions, .. } = Installation::copy(&run_folder(format!("{name}-server")));
    for version in releases() {
        let name = format!("queue_ext--{version}.sql");
        if !extensions.join(&name).exists() {
            fs::write(extensions.join(&name), read(&format!("sql/releases/{name}"))).expect("write a script");
        }
    }
    let now = version();
    let installed = fs::read_to_string(extensions.join(format!("queue_ext--{now}.sql"))).expect("a script");
    let add = |name: String, script: &str| fs::write(extensions.join(name), script).expect("write a script");
    add("queue_ext--99.0.sql".to_owned(), &(installed + "\n" + &script(|_| false)));
    add(format!("queue_ext--{now}--99.0.sql"), &script(|_| false));
    let folder = run_folder(name);
    let mut cluster = Cluster::create_of(&programs, &folder, &Settings::default(), &[]);
    cluster.launch();
    (cluster, extensions)
}
