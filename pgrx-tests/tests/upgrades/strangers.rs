//! A library with a schema of an older or later version, as while servers are upgraded one by one. It serves calls
//! with the functions in SQL, or reports what is missing. It never reads a row as something that it is not.

use postgres::Client;
use queue_ext_tests::{Cluster, Settings, brief};

use super::run;

/// Differences of an older or later version, and how to undo them.
const STRANGE: &[(&str, &str)] = &[
    ("ALTER TABLE queue.tasks RENAME worker TO who", "ALTER TABLE queue.tasks RENAME who TO worker"),
    ("ALTER TABLE queue.tasks RENAME queue TO line", "ALTER TABLE queue.tasks RENAME line TO queue"),
    // Another order: numbers where names are expected.
    (
        "ALTER TABLE queue.tasks RENAME queue TO q; ALTER TABLE queue.tasks RENAME priority TO queue; ALTER TABLE queue.tasks RENAME q TO priority",
        "ALTER TABLE queue.tasks RENAME queue TO q; ALTER TABLE queue.tasks RENAME priority TO queue; ALTER TABLE queue.tasks RENAME q TO priority",
    ),
    (
        "ALTER TABLE queue.tasks ALTER backoff TYPE json USING backoff::json",
        "ALTER TABLE queue.tasks ALTER backoff TYPE jsonb USING backoff::jsonb",
    ),
    ("ALTER TABLE queue.queues RENAME lease TO hire", "ALTER TABLE queue.queues RENAME hire TO lease"),
    ("ALTER TABLE queue.history RENAME state TO ending", "ALTER TABLE queue.history RENAME ending TO state"),
    (
        "ALTER TABLE queue.dead_letters RENAME queue TO line",
        "ALTER TABLE queue.dead_letters RENAME line TO queue",
    ),
    (
        "DROP INDEX queue.tasks_order; CREATE INDEX tasks_order ON queue.tasks (run_at, id, priority, queue, key) WHERE admission < 2",
        "DROP INDEX queue.tasks_order; CREATE INDEX tasks_order ON queue.tasks (queue, priority, run_at, id) WHERE admission < 2",
    ),
    (
        "DROP INDEX queue.tasks_group; CREATE INDEX tasks_group ON queue.tasks (queue, group_key, admission, id)",
        "DROP INDEX queue.tasks_group; CREATE INDEX tasks_group ON queue.tasks (queue, group_key, admission, id) WHERE group_key IS NOT NULL",
    ),
    (
        "DROP INDEX queue.tasks_start_by; CREATE INDEX tasks_start_by ON queue.tasks (start_by, id)",
        "DROP INDEX queue.tasks_start_by; CREATE INDEX tasks_start_by ON queue.tasks (start_by, id) WHERE start_by IS NOT NULL",
    ),
    (
        "DROP INDEX queue.tasks_order",
        "CREATE INDEX tasks_order ON queue.tasks (queue, priority, run_at, id) WHERE admission < 2",
    ),
    (
        "ALTER TABLE queue_internal.dependencies DROP CONSTRAINT dependencies_pkey, ADD CONSTRAINT dependencies_pkey PRIMARY KEY (on_failure, task_id, predecessor_id)",
        "ALTER TABLE queue_internal.dependencies DROP CONSTRAINT dependencies_pkey, ADD CONSTRAINT dependencies_pkey PRIMARY KEY (predecessor_id, task_id)",
    ),
    (
        "ALTER TABLE queue_internal.events DROP CONSTRAINT events_pkey, ADD CONSTRAINT events_pkey PRIMARY KEY (id)",
        "ALTER TABLE queue_internal.events DROP CONSTRAINT events_pkey, ADD CONSTRAINT events_pkey PRIMARY KEY (queue, due_at, id)",
    ),
    (
        "ALTER TABLE queue_internal.events RENAME TO signals",
        "ALTER TABLE queue_internal.signals RENAME TO events",
    ),
    (
        "ALTER FUNCTION queue_internal.claim(interval, text, integer, text) RENAME TO gone",
        "ALTER FUNCTION queue_internal.gone RENAME TO claim",
    ),
    (
        "ALTER FUNCTION queue_internal.push RENAME TO gone",
        "ALTER FUNCTION queue_internal.gone RENAME TO push",
    ),
    (
        "ALTER FUNCTION queue_internal.first_ready RENAME TO gone",
        "ALTER FUNCTION queue_internal.gone RENAME TO first_ready",
    ),
    (
        "ALTER FUNCTION queue_internal.expire RENAME TO gone",
        "ALTER FUNCTION queue_internal.gone RENAME TO expire",
    ),
    (
        "ALTER FUNCTION queue_internal.reap(bigint, bigint, integer) RENAME TO gone",
        "ALTER FUNCTION queue_internal.gone RENAME TO reap",
    ),
    (
        "ALTER FUNCTION queue_internal.ended_since RENAME TO gone",
        "ALTER FUNCTION queue_internal.gone RENAME TO ended_since",
    ),
    (
        "ALTER SCHEMA queue_internal RENAME TO inner_queue",
        "ALTER SCHEMA inner_queue RENAME TO queue_internal",
    ),
];

/// Differences that leave traces, each in its own database, and whether everything still works.
const STRANGE_FOR_EVER: &[(&str, bool)] = &[
    ("ALTER TABLE queue.tasks ADD COLUMN site text NOT NULL DEFAULT 'here'", true),
    ("ALTER TABLE queue.queues ADD COLUMN site text", true),
    ("ALTER TABLE queue.history ADD COLUMN site text", true),
    ("ALTER TABLE queue.dead_letters ADD COLUMN site text", true),
    ("ALTER TABLE queue_internal.events ADD COLUMN site text", true),
    ("ALTER TYPE queue.claimed_task ADD ATTRIBUTE site text", false),
];

/// Every call by itself. Their tasks are finished at the end of a round that succeeds.
const CALLS: &[&str] = &[
    "SELECT queue.push('default', '1')",
    "SELECT queue.push('default', '2', key => 'k', group_key => 'g')",
    "SELECT queue.push_many('default', '{3,4,5}')",
    "INSERT INTO queue.tasks (queue, payload) VALUES ('default', '6')",
    "CALL queue.wait('default', '100 ms')",
    "CREATE TEMP TABLE got AS SELECT * FROM queue.claim('1 hour', max_tasks => 3)",
    "SELECT queue.extend(id, token, '2 hours') FROM got",
    "SELECT queue.complete_and_claim(id, token, '1', '1 ms') FROM got LIMIT 1",
    "SELECT queue.complete_many(array_agg(id), array_agg(token)) FROM got",
    "SELECT queue.fail(id, token, 'x', permanent => true) FROM queue.claim('1 hour')",
    "SELECT queue.claim('1 hour', ARRAY['default'])",
    "UPDATE queue.tasks SET updated_at = now()",
    "SELECT * FROM queue.stats",
    "SELECT * FROM queue.health()",
    "SELECT queue.reap()",
    "CALL queue.maintain()",
    "DELETE FROM queue.tasks",
    "DELETE FROM queue.dead_letters",
    "DELETE FROM queue.history",
    "DROP TABLE got",
];

/// Makes every call; returns the errors of those that failed.
fn call_all(client: &mut Client) -> Vec<String> {
    let mut failed = Vec::new();
    for call in CALLS {
        if let Err(error) = client.batch_execute(call) {
            let Some(said) = error.as_db_error() else { panic!("{call} ends the session: {error:?}") };
            let code = said.code().code();
            assert!(!code.starts_with("XX") && !code.starts_with("57P"), "{call}: {code} {said:?}");
            failed.push(format!("{call}: {} {}", said.message(), said.hint().unwrap_or_default()));
        }
    }
    failed
}

fn served(client: &mut Client) -> i64 {
    let query = "SELECT (queue.engine_stats() #>> '{verbs,served}')::bigint";
    client.query_one(query, &[]).expect("stats").get(0)
}

/// A server with the extension in `postgres` and in a database of that name.
fn cluster(name: &str, other: &str) -> Cluster {
    let settings =
        Settings { preload: true, extra: "queue.sweep_interval = '1s'\nmax_worker_processes = 32" };
    let mut cluster = Cluster::start_with(name, &settings);
    run(&mut cluster.connect(), "CREATE EXTENSION queue_ext");
    run(&mut cluster.connect(), &format!("CREATE DATABASE {other}"));
    run(&mut cluster.connect_to(other), "CREATE EXTENSION queue_ext");
    cluster.await_worker("postgres");
    cluster.await_worker(other);
    cluster
}

/// The server never went down, and met nothing that it could not name.
fn was_well(cluster: &Cluster) {
    let log = cluster.log();
    for bad in [
        "PANIC",
        "terminated by signal",
        "in recovery mode",
        "TRAP:",
        "cache lookup failed",
        "invalid memory",
    ] {
        assert!(!log.contains(bad), "{bad} in the log");
    }
}

#[test]
fn an_unknown_schema_falls_back_to_sql_or_is_refused_by_name() {
    let mut cluster = cluster("upgrades-strange", "other");
    let step = if brief() { 3 } else { 1 };
    // Two sessions that used the schema before must not use native functions that no longer fit.
    let (mut client, mut other) = (cluster.connect(), cluster.connect());
    assert_eq!(call_all(&mut client), [""; 0], "as it is");
    assert_eq!(call_all(&mut other), [""; 0], "as it is");
    for (make, undo) in STRANGE.iter().step_by(step) {
        run(&mut client, &format!("BEGIN; {make}; COMMIT"));
        let before = served(&mut client);
        let failed = [call_all(&mut client), call_all(&mut other), call_all(&mut cluster.connect())].concat();
        if make.contains("queue_internal.claim") {
            let told = failed.iter().any(|said| said.contains("ALTER EXTENSION queue_ext UPDATE"));
            assert!(told, "{failed:#?}");
        } else if make.starts_with("ALTER TABLE queue.tasks") {
            assert_eq!(served(&mut client), before, "{make}: nothing natively");
        } else if make.contains("CREATE INDEX") || make.contains("PRIMARY KEY") {
            assert_eq!(failed, [""; 0], "{make}");
        }
        run(
            &mut client,
            &format!("BEGIN; {undo}; COMMIT; DELETE FROM queue.tasks; DROP TABLE IF EXISTS pg_temp.got"),
        );
        run(&mut other, "DROP TABLE IF EXISTS pg_temp.got");
        let before = served(&mut client);
        assert_eq!([call_all(&mut client), call_all(&mut other)].concat(), [""; 0], "{undo}");
        assert!(served(&mut client) > before, "{undo}: natively again");
    }
    for (n, (make, works)) in STRANGE_FOR_EVER.iter().enumerate().step_by(step) {
        run(&mut client, &format!("CREATE DATABASE strange_{n} TEMPLATE other"));
        let mut client = cluster.connect_to(&format!("strange_{n}"));
        assert_eq!(call_all(&mut client), [""; 0], "before {make}");
        run(&mut client, make);
        let failed = call_all(&mut client);
        assert!(!works || failed.is_empty(), "{make}: {failed:#?}");
    }
    cluster.await_worker("postgres");
    was_well(&cluster);
}

#[test]
fn a_function_with_other_arguments_is_not_served_natively() {
    let cluster = cluster("upgrades-arguments", "other");
    let mut client = cluster.connect();
    // As in a later version: more arguments and more columns. The SQL implementation takes the same.
    run(
        &mut client,
        "CREATE FUNCTION queue.complete(id bigint, token bigint, result jsonb, note text) RETURNS void
         LANGUAGE c AS '$libdir/queue_ext', 'queue_complete';
         CREATE FUNCTION queue_internal.complete(id bigint, token bigint, result jsonb, note text) RETURNS void
         LANGUAGE sql AS $$ SELECT queue_internal.complete(id, token, to_jsonb(note)) $$;
         CREATE TYPE public.wide AS (id bigint, token bigint, site text);
         CREATE FUNCTION queue.claim(lease interval, queue text, max_tasks integer, worker text, site text)
         RETURNS SETOF public.wide LANGUAGE c AS '$libdir/queue_ext', 'queue_claim';
         CREATE FUNCTION queue_internal.claim(lease interval, queue text, max_tasks integer, worker text, site text)
         RETURNS SETOF public.wide LANGUAGE sql
         AS $$ SELECT c.id, c.token, site FROM queue_internal.claim(lease, queue, max_tasks, worker) AS c $$;
         SELECT queue.push('default')",
    );
    let claimed = "SELECT id, token, site FROM queue.claim('1 hour', 'default', 1, 'w', 'here')";
    let task = client.query_one(claimed, &[]).expect("claim");
    let (id, token, site): (i64, i64, String) = (task.get(0), task.get(1), task.get(2));
    assert_eq!(site, "here");
    client.execute("SELECT queue.complete($1, $2, '1', 'note')", &[&id, &token]).expect("complete");
    let result: serde_json::Value =
        client.query_one("SELECT result FROM queue.history WHERE id = $1", &[&id]).expect("result").get(0);
    assert_eq!(result, "note");
    // Fewer arguments, and more than any current function has, without an SQL implementation for it: refused by name.
    run(
        &mut client,
        "CREATE FUNCTION public.push(queue text) RETURNS bigint LANGUAGE c AS '$libdir/queue_ext', 'queue_push';
         DO $do$ BEGIN EXECUTE format('CREATE FUNCTION public.push(%s) RETURNS bigint LANGUAGE c AS %L, %L',
             (SELECT string_agg('a' || n || ' text', ', ') FROM generate_series(1, 40) AS n), '$libdir/queue_ext', 'queue_push');
         END $do$",
    );
    for call in
        ["SELECT public.push('default')".to_owned(), format!("SELECT public.push({}'')", "'', ".repeat(39))]
    {
        let error = client.batch_execute(&call).expect_err("no core");
        let said = error.as_db_error().expect("an error of the server");
        assert_eq!(said.code().code(), "42883");
        assert!(
            said.hint().is_some_and(|hint| hint.contains("ALTER EXTENSION queue_ext UPDATE")),
            "{said:?}"
        );
    }
    was_well(&cluster);
}
