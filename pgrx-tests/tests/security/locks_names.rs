//! The library resolves the names in a command before PostgreSQL does (src/hooks/relations.rs). Whatever happens in between, and
//! whatever the command is, it must not wait for a lock on a protected table, nor crash.

use super::locks::producer;
use super::{NO_WORKER, attempt, cluster, column, login, number, run};
use queue_ext_tests::{SOON, eventually};

/// While "tasks" is a table that another session of the role has dropped, but not committed.
const ON_TASKS: [&str; 12] = [
    "CREATE RULE r AS ON INSERT TO tasks DO NOTHING",
    "CREATE TRIGGER t BEFORE INSERT ON tasks EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE TABLE x () INHERITS (tasks)",
    "CREATE TABLE x (id bigint REFERENCES tasks)",
    "ALTER TABLE plain INHERIT tasks",
    "ALTER TABLE parted ATTACH PARTITION tasks DEFAULT",
    "ALTER INDEX tasks_pkey DEPENDS ON EXTENSION plpgsql",
    "COMMENT ON TABLE tasks IS 'x'",
    "COMMENT ON COLUMN tasks.id IS 'x'",
    "CREATE STATISTICS x ON id, queue FROM tasks",
    "ALTER PUBLICATION mine ADD TABLE tasks",
    "ALTER EXTENSION plpgsql ADD TABLE tasks",
];

/// Other changes that a session has not committed, and commands that mean something else after the commit.
const OTHERS: [(&str, &str); 3] = [
    ("DROP TABLE a_producer.pg_class", "CREATE RULE r AS ON INSERT TO pg_class DO NOTHING"),
    (
        "ALTER TABLE plain DROP COLUMN id",
        "ALTER TABLE plain ADD COLUMN IF NOT EXISTS id bigint REFERENCES queue.tasks",
    ),
    (
        "DROP SCHEMA made CASCADE; CREATE SCHEMA made",
        "CREATE TABLE IF NOT EXISTS made.x () INHERITS (queue.tasks)",
    ),
];

/// PostgreSQL resolves names again after it has waited for a lock.
#[test]
fn a_name_is_resolved_once_before_the_wait() {
    let cluster = cluster("security-locks-names", NO_WORKER);
    producer(&cluster);
    let mut owner = login(&cluster, "a_producer");
    let mut open = login(&cluster, "a_producer");
    let commands = ON_TASKS.iter().map(|command| ("DROP TABLE tasks", *command)).chain(OTHERS);
    let wrong: Vec<String> = commands
        .filter_map(|(change, command)| {
            run(
                &mut owner,
                "CREATE TABLE IF NOT EXISTS tasks (id bigint PRIMARY KEY, queue text);
                 CREATE TABLE IF NOT EXISTS a_producer.pg_class (id oid PRIMARY KEY);
                 CREATE SCHEMA IF NOT EXISTS made; CREATE TABLE IF NOT EXISTS made.x ();
                 ALTER TABLE plain ADD COLUMN IF NOT EXISTS id bigint",
            );
            run(&mut owner, &format!("BEGIN; {change}"));
            let mut waiting = login(&cluster, "a_producer");
            run(
                &mut waiting,
                "SET search_path = a_producer, queue, pg_catalog; SET statement_timeout = '10 s'",
            );
            let pid = number(&mut waiting, "SELECT pg_backend_pid()::bigint");
            let state =
                format!("SELECT coalesce(wait_event_type, '') FROM pg_stat_activity WHERE pid = {pid}");
            let mut admin = cluster.connect();
            let result = std::thread::scope(|scope| {
                let waiting = scope.spawn(|| attempt(&mut waiting, command));
                eventually("it waits", SOON, || column(&mut admin, &state) == ["Lock"]);
                run(&mut open, "BEGIN; SELECT queue.push('a'); PREPARE p AS DELETE FROM pg_catalog.pg_class");
                // The locks of autovacuum.
                run(&mut admin, "BEGIN; LOCK TABLE queue.tasks IN SHARE UPDATE EXCLUSIVE MODE");
                run(&mut owner, "COMMIT");
                waiting.join().expect("the thread")
            });
            run(&mut open, "COMMIT; DEALLOCATE p");
            match result {
                Err((code, _)) if code == "42P01" => None,
                other => Some(format!("{command}: {other:?}")),
            }
        })
        .collect();
    assert_eq!(wrong, [""; 0]);
}

/// Statements of every form that the library inspects, on relations that exist and on others. Most of them fail.
const ODD: &str = include_str!("odd_ddl.sql");

#[test]
fn no_command_crashes_the_server() {
    let cluster = cluster("security-locks-odd", NO_WORKER);
    let mut admin = producer(&cluster);
    let session = "SELECT pg_postmaster_start_time()::text || pg_backend_pid()";
    let before = column(&mut admin, session);
    let statements: Vec<&str> =
        ODD.split(";\n").map(str::trim).filter(|statement| !statement.is_empty()).collect();
    for role in ["nobody", "a_producer", "postgres"] {
        let mut client = login(&cluster, role);
        for statement in &statements {
            attempt(&mut client, statement).ok();
            for path in ["a_producer, information_schema", "queue", "''"] {
                attempt(&mut client, &format!("SET LOCAL search_path = {path}; {statement}")).ok();
            }
        }
    }
    // A crash of any backend would have ended this session.
    assert_eq!(column(&mut admin, session), before);
    assert!(!cluster.log().contains("terminated by signal"));
}
