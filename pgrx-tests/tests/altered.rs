//! Tables that users have altered, and transactions of every kind: each call either works as in SQL and reports why
//! it fell back, or is refused with a clear error.

#[path = "altered/history.rs"]
mod history;
#[path = "altered/meanwhile.rs"]
mod meanwhile;
#[path = "altered/publications.rs"]
mod publications;

use std::time::Duration;

use postgres::Client;
use queue_ext_tests::{Cluster, Settings, eventually};

fn cluster(name: &str) -> Cluster {
    let extra = "queue.sweep_interval = '1s'\nwal_level = logical";
    let mut cluster = Cluster::start_with(name, &Settings { preload: true, extra });
    run(&mut cluster.connect(), "CREATE EXTENSION queue_ext");
    cluster.await_worker("postgres");
    cluster
}

fn run(client: &mut Client, statements: &str) {
    client.batch_execute(statements).unwrap_or_else(|error| panic!("{statements}: {error:?}"));
}

fn count(client: &mut Client, query: &str) -> i64 {
    client.query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}

fn code(client: &mut Client, statement: &str) -> String {
    let error = client.batch_execute(statement).expect_err(statement);
    error.code().unwrap_or_else(|| panic!("{statement}: {error}")).code().to_owned()
}

/// How many calls were served natively, and how many fell back for this reason.
fn verbs(client: &mut Client, reason: &str) -> (u64, u64) {
    let stats: serde_json::Value =
        client.query_one("SELECT queue.engine_stats()", &[]).expect("stats").get(0);
    let verbs = &stats["verbs"];
    (verbs["served"].as_u64().unwrap_or(0), verbs["fallbacks"][reason].as_u64().unwrap_or(0))
}

/// Each native function once, with its expected result; afterwards no task is left.
const ROUND: &str = "
DO $$
DECLARE
    pushed bigint[]; task queue.claimed_task; next queue.claimed_task; ids bigint[]; tokens bigint[];
BEGIN
    pushed := queue.push('default', '{\"n\": 1}') || ARRAY(SELECT queue.push_many('default', '{1, 2, 3}'));
    COMMIT;
    SELECT * INTO STRICT task FROM queue.claim('1 hour', worker => 'w');
    ASSERT task.id = pushed[1], 'the first';
    PERFORM queue.extend(task.id, task.token, '2 hours', '1');
    COMMIT;
    SELECT * INTO STRICT next FROM queue.complete_and_claim(task.id, task.token, '2', '1 hour');
    ASSERT next.id = pushed[2], 'the second';
    PERFORM queue.complete(next.id, next.token);
    SELECT array_agg(id), array_agg(token) INTO ids, tokens FROM queue.claim('1 hour', max_tasks => 5);
    ASSERT ids = pushed[3:4], 'the others';
    ASSERT (SELECT count(*) FROM queue.complete_many(ids, tokens)) = 2;
    ASSERT (SELECT count(*) FROM queue.history WHERE id = ANY (pushed)) = 4;
    ASSERT NOT EXISTS (SELECT FROM queue.tasks);
END $$";

/// Plays a round, whose calls fall back for this reason; "" if the native fast path is to serve them.
fn round(client: &mut Client, what: &str, reason: &str) {
    let (served_before, handed_before) = verbs(client, reason);
    client.batch_execute(ROUND).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let (served, handed) = verbs(client, reason);
    if reason.is_empty() {
        assert!(served - served_before >= 7, "{what}: served {}", served - served_before);
    } else {
        assert!(handed - handed_before >= 5, "{what}: {} fell back for {reason}", handed - handed_before);
    }
}

#[test]
fn altered_tables_fall_back_to_sql() {
    let cluster = cluster("altered-tables");
    let (mut client, mut other) = (cluster.connect(), cluster.connect());
    run(
        &mut client,
        "CREATE TABLE public.seen (what text);
         CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO public.seen VALUES (TG_OP); RETURN NULL; END $$",
    );
    round(&mut client, "as it comes", "");
    round(&mut other, "as it comes", "");
    for (what, make, undo) in [
        (
            "a trigger",
            "CREATE TRIGGER mine AFTER INSERT OR UPDATE OR DELETE ON queue.tasks FOR EACH ROW EXECUTE FUNCTION public.see()",
            "DROP TRIGGER mine ON queue.tasks",
        ),
        (
            "a trigger on the history",
            "CREATE TRIGGER mine AFTER INSERT ON queue.history FOR EACH ROW EXECUTE FUNCTION public.see()",
            "DROP TRIGGER mine ON queue.history",
        ),
        (
            "a constraint",
            "ALTER TABLE queue.tasks ADD CONSTRAINT mine CHECK (priority < 100)",
            "ALTER TABLE queue.tasks DROP CONSTRAINT mine",
        ),
        (
            "an index on an expression",
            "CREATE INDEX mine ON queue.tasks ((payload ->> 'n'))",
            "DROP INDEX queue.mine",
        ),
        (
            "a partial index",
            "CREATE INDEX mine ON queue.tasks (worker) WHERE state = 'running'",
            "DROP INDEX queue.mine",
        ),
        (
            "a reference",
            "CREATE TABLE public.mine (task bigint REFERENCES queue.tasks ON DELETE CASCADE)",
            "DROP TABLE public.mine",
        ),
        (
            "a rule",
            "CREATE RULE mine AS ON INSERT TO queue.tasks DO ALSO NOTIFY mine",
            "DROP RULE mine ON queue.tasks",
        ),
        (
            "a constraint of exclusion",
            "ALTER TABLE queue.tasks ADD CONSTRAINT mine EXCLUDE USING btree (id WITH =)",
            "ALTER TABLE queue.tasks DROP CONSTRAINT mine",
        ),
        (
            "a table that a crash empties",
            "ALTER TABLE queue.tasks SET UNLOGGED",
            "ALTER TABLE queue.tasks SET LOGGED",
        ),
        (
            "a trigger of its own that is off",
            "ALTER TABLE queue.tasks DISABLE TRIGGER tasks_announced",
            "ALTER TABLE queue.tasks ENABLE TRIGGER tasks_announced",
        ),
        (
            "a replica identity",
            "ALTER TABLE queue.tasks REPLICA IDENTITY NOTHING",
            "ALTER TABLE queue.tasks REPLICA IDENTITY DEFAULT",
        ),
    ] {
        run(&mut client, make);
        // Which function is affected depends on the altered object.
        let (_, before) = verbs(&mut client, "altered");
        round_anyhow(&mut client, what);
        round_anyhow(&mut other, what);
        let (_, after) = verbs(&mut client, "altered");
        assert!(after - before >= 6, "{what}: {} fell back", after - before);
        run(&mut client, undo);
        round(&mut other, &format!("without {what}"), "");
    }
    let events = "SELECT count(DISTINCT what) FROM public.seen";
    assert_eq!(count(&mut client, events), 3, "the triggers saw everything");
    // In a database of its own, since a dropped column is never gone for good.
    run(&mut client, "CREATE DATABASE wider");
    let mut wider = cluster.connect_to("wider");
    run(&mut wider, "CREATE EXTENSION queue_ext; SELECT queue.create('wide')");
    for table in ["queue.tasks", "queue.history"] {
        run(&mut wider, &format!("ALTER TABLE {table} ADD COLUMN mine text DEFAULT 'x' NOT NULL"));
        eventually("its calls are counted", Duration::from_secs(15), || {
            let (_, before) = verbs(&mut wider, "altered");
            round_anyhow(&mut wider, "a column");
            verbs(&mut wider, "altered").1 > before
        });
        run(&mut wider, "SELECT queue.push('wide')");
        run(&mut wider, &format!("ALTER TABLE {table} DROP COLUMN mine"));
        // A row that still has a value in the column is read as usual.
        let wide = "SELECT count(queue.complete(id, token)) FROM queue.claim('1 hour', 'wide')";
        assert_eq!(count(&mut wider, wide), 1, "{table}");
        round(&mut wider, &format!("a dropped column of {table}"), "");
    }
}

fn round_anyhow(client: &mut Client, what: &str) {
    client.batch_execute(ROUND).unwrap_or_else(|error| panic!("{what}: {error:?}"));
}

#[test]
fn nulls_in_not_null_columns_are_refused_alike() {
    let cluster = cluster("altered-nulls");
    let mut client = cluster.connect();
    for (table, column, statement) in [
        ("queue.tasks", "headers", "SELECT queue.push('default')"),
        ("queue.history", "result", "SELECT queue.complete(id, token) FROM queue.claim('1 hour')"),
    ] {
        run(&mut client, "DELETE FROM queue.tasks; SELECT queue.push('default', headers => '{}')");
        run(&mut client, &format!("ALTER TABLE {table} ALTER {column} SET NOT NULL"));
        let came_to = ["on", "off"].map(|fast_path| {
            run(&mut client, &format!("SET queue.fast_path = {fast_path}"));
            code(&mut client, statement)
        });
        assert_eq!(came_to, ["23502", "23502"], "{statement} where {column} must not be null");
        run(&mut client, &format!("ALTER TABLE {table} ALTER {column} DROP NOT NULL; RESET queue.fast_path"));
    }
    run(&mut client, "DELETE FROM queue.tasks");
    round(&mut client, "with nulls again", "");
}

#[test]
fn columns_that_became_nullable_fall_back_to_sql() {
    let cluster = cluster("altered-may-be-null");
    let mut client = cluster.connect();
    for column in ["queue", "payload"] {
        run(
            &mut client,
            "DELETE FROM queue.tasks; SELECT queue.push('default'); SELECT * FROM queue.claim('1 hour')",
        );
        run(&mut client, &format!("ALTER TABLE queue.tasks ALTER {column} DROP NOT NULL"));
        run(
            &mut client,
            &format!(
                "ALTER TABLE queue.tasks DISABLE TRIGGER task_changed; UPDATE queue.tasks SET {column} = NULL; ALTER TABLE queue.tasks ENABLE ALWAYS TRIGGER task_changed"
            ),
        );
        let statement = "SELECT queue.complete(id, token) FROM queue.tasks";
        assert_eq!(code(&mut client, statement), "23502", "{column} is null");
        run(
            &mut client,
            &format!(
                "DELETE FROM queue.tasks WHERE {column} IS NOT NULL; TRUNCATE queue.tasks; ALTER TABLE queue.tasks ALTER {column} SET NOT NULL"
            ),
        );
    }
    round(&mut client, "without nulls again", "");
}

#[test]
fn an_index_that_is_not_valid_is_not_read() {
    let cluster = cluster("altered-invalid");
    let (mut client, mut old) = (cluster.connect(), cluster.connect());
    run(&mut client, "SELECT queue.push('default') FROM generate_series(1, 3)");
    let made = "SELECT pg_get_indexdef('queue.tasks_order'::regclass)";
    let made: String = client.query_one(made, &[]).expect("the index").get(0);
    run(&mut client, "DROP INDEX queue.tasks_order");
    // A snapshot that is older than the index keeps it from becoming valid.
    run(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queue.queues");
    run(&mut client, "SET lock_timeout = 0; SET statement_timeout = '2s'");
    let concurrently = made.replacen("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1);
    assert_eq!(code(&mut client, &concurrently), "57014");
    run(&mut client, "RESET statement_timeout");
    let ready =
        "SELECT indisready AND NOT indisvalid FROM pg_index WHERE indexrelid = 'queue.tasks_order'::regclass";
    assert!(client.query_one(ready, &[]).expect("the index").get::<_, bool>(0), "it is filled and not valid");
    run(&mut old, "COMMIT");
    let claimed = client.query("SELECT id FROM queue.claim('1 hour', max_tasks => 10)", &[]).expect("claim");
    assert_eq!(claimed.len(), 3);
    run(&mut client, &format!("DROP INDEX queue.tasks_order; {made}; DELETE FROM queue.tasks"));
    round(&mut client, "with a valid index again", "");
}

#[test]
fn plain_indexes_are_written_natively_also_while_they_are_built() {
    let cluster = cluster("altered-indexes");
    let (mut client, mut other) = (cluster.connect(), cluster.connect());
    // One of columns that a claim changes, one that covers, one of an order of its own, one that is unique.
    run(&mut client, "CREATE INDEX mine_a ON queue.tasks (state, worker) INCLUDE (token);
         CREATE INDEX mine_b ON queue.tasks (created_at DESC NULLS LAST); CREATE INDEX mine_c ON queue.tasks USING hash (queue);
         CREATE INDEX mine_d ON queue.tasks USING gin (payload); CREATE UNIQUE INDEX mine_e ON queue.tasks (id, token)");
    round(&mut other, "plain indexes", "");
    run(
        &mut client,
        "SELECT queue.push('default', '{\"n\": 7}'); SELECT queue.claim('1 hour', worker => 'w')",
    );
    for by_index in [
        "SELECT count(*) FROM queue.tasks WHERE state = 'running' AND worker = 'w'",
        "SELECT count(*) FROM queue.tasks WHERE payload @> '{\"n\": 7}'",
        "SELECT count(*) FROM queue.tasks WHERE queue = 'default'",
    ] {
        run(&mut client, "SET enable_seqscan = off");
        assert_eq!(count(&mut client, by_index), 1, "{by_index}");
    }
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.tasks");

    // While an index is built by the side, it is there but takes nothing yet.
    run(&mut other, "BEGIN; SELECT queue.push('default')");
    let config = cluster.config("postgres");
    let builder = std::thread::spawn(move || {
        let mut client = config.connect(postgres::NoTls).expect("connect");
        run(&mut client, "CREATE INDEX CONCURRENTLY mine_f ON queue.tasks (updated_at)");
    });
    eventually("it waits for the open transaction", Duration::from_secs(10), || {
        count(
            &mut client,
            "SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('queue.mine_f') AND NOT indisready",
        ) == 1
    });
    run(
        &mut client,
        "SELECT queue.push('default'); SELECT queue.complete(id, token) FROM queue.claim('1 hour')",
    );
    run(&mut other, "COMMIT");
    builder.join().expect("the builder");
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim('1 hour', max_tasks => 10)");
    round(&mut client, "after it", "");
}

/// From PostgreSQL 16 on, an update that changes only columns of such an index stays in its chain.
#[test]
fn brin_indexes_do_not_disturb_other_indexes() {
    let cluster = cluster("altered-summaries");
    let mut client = cluster.connect();
    run(
        &mut client,
        "CREATE INDEX mine ON queue.tasks USING brin (updated_at, lease_until); SELECT queue.push('default')",
    );
    let (served_before, _) = verbs(&mut client, "altered");
    run(&mut client, "SELECT queue.claim('1 hour')");
    for _ in 0..20 {
        run(&mut client, "SELECT queue.extend(1, 1, '1 hour')");
    }
    assert!(verbs(&mut client, "altered").0 >= served_before + 21, "natively");
    // Vacuum frees the TIDs of old versions, and new rows reuse them.
    eventually("another task is where an old version was", Duration::from_secs(10), || {
        run(&mut client, "VACUUM queue.tasks");
        run(&mut client, "SELECT queue.push('default')");
        count(&mut client, "SELECT count(*) FROM queue.tasks WHERE ctid = '(0,2)' AND id <> 1") == 1
    });
    run(&mut client, "SET enable_seqscan = off; SET enable_bitmapscan = off");
    assert_eq!(count(&mut client, "SELECT count(*) FROM queue.tasks WHERE id = 1"), 1);
    run(&mut client, "SELECT queue.complete(1, 1); SELECT queue.purge('default')");
    round(&mut client, "an index that summarizes blocks", "");
}

/// A statement that changes a task and also finishes it or extends its lease has the same result as in SQL.
#[test]
fn a_statement_that_changed_the_task_itself_finishes() {
    let cluster = cluster("altered-self");
    let mut client = cluster.connect();
    run(&mut client, "SET statement_timeout = '5s'; SELECT queue.push_many('default', '{1, 2, 3}')");
    run(&mut client, "SELECT queue.claim('1 hour', max_tasks => 3)");
    let changed = |id: i32| {
        format!("WITH mine AS (UPDATE queue.tasks SET progress = '1' WHERE id = {id} RETURNING id, token)")
    };
    let (_, before) = verbs(&mut client, "own_tasks");
    run(&mut client, &(changed(1) + " SELECT queue.complete(id, token) FROM mine"));
    run(&mut client, &(changed(2) + " SELECT queue.extend(id, token, '2 hours') FROM mine"));
    run(
        &mut client,
        &(changed(3)
            + " SELECT queue.complete_many(ARRAY(SELECT id FROM mine), ARRAY(SELECT token FROM mine))"),
    );
    assert_eq!(verbs(&mut client, "own_tasks").1, before + 2, "the two that name one task");
    let done = "SELECT count(*) FROM queue.history WHERE progress = '1' AND id IN (1, 3)";
    assert_eq!(count(&mut client, done), 2);
    let extended = "SELECT count(*) FROM queue.tasks WHERE id = 2 AND progress = '1' AND lease_until > now() + interval '1 hour'";
    assert_eq!(count(&mut client, extended), 1);
}

/// The owner of the tables can create triggers with any function of the extension; the server must survive that.
#[test]
fn trigger_functions_refuse_wrong_tables_and_events() {
    let cluster = cluster("altered-triggers");
    let mut client = cluster.connect();
    let (tasks, history, dead) = ("queue.tasks", "queue.history", "queue.dead_letters");
    let wrong = [
        (tasks, "AFTER INSERT", "STATEMENT", "task_changed"),
        (tasks, "AFTER INSERT", "STATEMENT", "tasks_announced"),
        (tasks, "BEFORE INSERT", "ROW", "tasks_announced"),
        (history, "AFTER DELETE", "STATEMENT", "history_counted"),
        (dead, "AFTER DELETE", "STATEMENT", "dead_letter_counted"),
        ("queue_internal.events", "AFTER DELETE", "STATEMENT", "event_announced"),
        ("queue_internal.dependencies", "AFTER DELETE", "STATEMENT", "tasks_announced"),
    ];
    for (table, event, each, function) in wrong {
        run(
            &mut client,
            &format!(
                "CREATE TRIGGER mine {event} ON {table} FOR EACH {each} EXECUTE FUNCTION queue_internal.{function}()"
            ),
        );
        let statement = match event.ends_with("INSERT") {
            true => "SELECT queue.push('default')".to_owned(),
            false => format!("DELETE FROM {table}"),
        };
        assert_eq!(code(&mut client, &statement), "39P01", "{function} {event} on {table}");
        run(&mut client, &format!("DROP TRIGGER mine ON {table}"));
    }
    run(
        &mut client,
        "CREATE TRIGGER mine AFTER DELETE ON queue.tasks REFERENCING OLD TABLE AS gone
         FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.tasks_announced()",
    );
    assert_eq!(code(&mut client, "DELETE FROM queue.tasks WHERE false"), "39P01", "the other table of rows");
    run(&mut client, "DROP TRIGGER mine ON queue.tasks");
    assert_eq!(code(&mut client, "SELECT queue_internal.task_changed()"), "39P01");
    round(&mut client, "without them", "");
}

#[test]
fn roles_with_rights_for_one_queue_are_served_natively_and_refused_by_sql() {
    let cluster = cluster("altered-tenants");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.create('theirs'); CREATE ROLE tenant LOGIN;
         SELECT queue.grant_worker('tenant', 'default'); SELECT queue.grant_producer('tenant', 'default')",
    );
    let mut tenant = cluster.config("postgres").user("tenant").connect(postgres::NoTls).expect("connect");
    run(&mut client, "CALL queue.maintain()");
    let (before, _) = verbs(&mut client, "rights");
    run(&mut tenant, "SELECT queue.push('default')");
    run(&mut tenant, "SELECT queue.complete(id, token) FROM queue.claim('1 hour')");
    let (after, _) = verbs(&mut client, "rights");
    assert_eq!(after - before, 3, "served natively");
    run(&mut client, "SELECT queue.push('theirs'); SELECT queue.claim('1 hour', 'theirs')");
    for statement in [
        "SELECT queue.push('theirs')",
        "SELECT queue.claim('1 hour', 'theirs')",
        "SELECT queue.complete(2, 1)",
        "SELECT queue.extend(2, 1)",
        "SELECT queue.complete_and_claim(2, 1)",
    ] {
        let code = code(&mut tenant, statement);
        assert!(["42501", "QX002", "QX003"].contains(&code.as_str()), "{statement}: {code}");
    }
    assert_eq!(
        count(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'running' AND token = 1"),
        1
    );
    // A role without any right.
    run(&mut client, "CREATE ROLE nobody_special LOGIN");
    let mut nobody =
        cluster.config("postgres").user("nobody_special").connect(postgres::NoTls).expect("connect");
    for statement in ["SELECT queue.push('default')", "SELECT queue.claim()", "SELECT queue.complete(2, 1)"] {
        assert_eq!(code(&mut nobody, statement), "42501", "{statement}");
    }
}

#[test]
fn transactions_of_every_kind_are_served_or_refused() {
    let cluster = cluster("altered-transactions");
    let mut client = cluster.connect();
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        run(&mut client, &format!("BEGIN ISOLATION LEVEL {level}"));
        run(&mut client, "SELECT queue.push('default'); SELECT queue.push_many('default', '{1}')");
        run(&mut client, "SAVEPOINT s");
        // SQL decides: it either claims or raises an error, and the native function has to do the same.
        let native =
            client.batch_execute("SELECT queue.claim('1 hour')").map_err(|error| error.code().cloned());
        run(&mut client, "ROLLBACK TO s; SET LOCAL queue.fast_path = off");
        let by_core =
            client.batch_execute("SELECT queue.claim('1 hour')").map_err(|error| error.code().cloned());
        assert_eq!(native, by_core, "{level}");
        run(&mut client, "ROLLBACK");
    }
    let (_, handed) = verbs(&mut client, "transaction");
    assert!(handed >= 6);
    run(&mut client, "SELECT queue.push('default')");
    for statement in [
        "SELECT queue.push('default')",
        "SELECT queue.push_many('default', '{1}')",
        "SELECT queue.claim()",
        "SELECT queue.complete(1, 1)",
    ] {
        run(&mut client, "BEGIN READ ONLY");
        assert_eq!(code(&mut client, statement), "25006", "{statement}");
        run(&mut client, "ROLLBACK");
    }
    // Like the apply worker of a subscriber: no triggers fire, and a sweep finds the rows.
    run(&mut client, "SELECT queue.claim()");
    let (_, before) = verbs(&mut client, "transaction");
    run(
        &mut client,
        "SET session_replication_role = replica; INSERT INTO queue.tasks (queue) VALUES ('default');
         SELECT queue.push('default'); RESET session_replication_role",
    );
    assert_eq!(verbs(&mut client, "transaction").1, before + 1);
    let mut found = 0;
    eventually("both are claimed", Duration::from_secs(10), || {
        found += count(&mut client, "SELECT count(*) FROM queue.claim('1 hour', max_tasks => 5)");
        found == 2
    });
}

#[test]
fn snapshots_that_are_too_old_are_refused_alike() {
    let cluster = cluster("altered-snapshots");
    let (mut client, mut other) = (cluster.connect(), cluster.connect());
    let mut codes = std::collections::BTreeSet::new();
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        for verb in [
            "queue.complete($, 1)",
            "queue.complete($, 2)",
            "queue.complete_many(ARRAY[$], ARRAY[1])",
            "queue.complete_and_claim($, 1, NULL, '1 hour')",
            "queue.complete_many_and_claim(ARRAY[$], ARRAY[1], NULL, '1 hour')",
            "queue.extend($, 1, '2 hours')",
        ] {
            for changed in [false, true] {
                let mut came_to = ["on", "off"].map(|fast_path| {
                    run(&mut client, "TRUNCATE queue.tasks, queue.history");
                    run(&mut client, "SELECT queue.push('default')");
                    let id = count(&mut client, "SELECT id FROM queue.claim('1 hour')");
                    run(&mut client, &format!("SET queue.fast_path = {fast_path}; BEGIN ISOLATION LEVEL {level}; TABLE queue.tasks"));
                    if changed {
                        run(&mut other, "UPDATE queue.tasks SET progress = '5'");
                    }
                    let result = client.batch_execute(&format!("SELECT {}", verb.replace('$', &id.to_string())));
                    run(&mut client, if result.is_ok() { "COMMIT" } else { "ROLLBACK" });
                    let left = client
                        .query_one("SELECT concat((SELECT count(*) FROM queue.tasks), (SELECT count(*) FROM queue.history))", &[])
                        .expect("count")
                        .get::<_, String>(0);
                    let code = result.err().map(|error| error.code().expect("of the server").code().to_owned());
                    codes.extend(code.clone());
                    (code, left)
                });
                let [natively, by_core] = came_to.each_mut().map(std::mem::take);
                assert_eq!(natively, by_core, "{level}, {verb}, changed: {changed}");
            }
        }
    }
    assert_eq!(codes.into_iter().collect::<Vec<_>>(), ["40001", "QX001"]);
}
