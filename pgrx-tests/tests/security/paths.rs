//! Names: whatever schemas and temporary objects a caller or a database puts first, the extension finds its
//! own. The traps count on a sequence, so that neither an error nor a rollback hides them.

use super::verbs::{Stock, VERBS, commits};
use super::{NO_WORKER, cluster, column, login, number, refusal, run};
use postgres::Client;
use queue_ext_tests::{Cluster, SOON, Settings, eventually};

/// Functions and operators that are more specific than none of the server's, but come first: one for each
/// that can be written in SQL. And a few of the server's types.
const TRAPS: &str = "
CREATE SCHEMA evil;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
CREATE SEQUENCE evil.sprung;
GRANT ALL ON SEQUENCE evil.sprung TO PUBLIC;
DO $do$
DECLARE
    f record;
    n integer := 0;
BEGIN
    FOR f IN
        SELECT p.proname, p.proretset, pg_catalog.pg_get_function_identity_arguments(p.oid) AS arguments,
               p.prorettype::regtype::text AS result
        FROM pg_proc AS p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.provariadic = 0
          AND p.proargmodes IS NULL
          AND NOT EXISTS (SELECT FROM pg_type AS t WHERE t.oid = ANY (p.proargtypes::oid[] || p.prorettype)
                          AND (t.typtype = 'p' AND t.typname NOT IN ('anyarray', 'anyelement', 'void')
                               OR t.typname IN ('cstring', 'internal')))
          AND 'void'::regtype <> ALL (p.proargtypes::oid[])
    LOOP
        EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s%s LANGUAGE plpgsql AS %L',
                       f.proname, f.arguments, CASE WHEN f.proretset THEN 'SETOF ' ELSE '' END, f.result,
                       'BEGIN PERFORM pg_catalog.nextval(''evil.sprung''); '
                       || CASE WHEN f.proretset OR f.result = 'void' THEN 'RETURN; END' ELSE 'RETURN NULL; END' END);
    END LOOP;
    FOR f IN
        SELECT o.oprname, o.oprleft::regtype::text AS l, o.oprright::regtype::text AS r, o.oprresult::regtype::text AS result
        FROM pg_operator AS o
        WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprleft <> 0
          AND NOT EXISTS (SELECT FROM pg_type AS t WHERE t.oid IN (o.oprleft, o.oprright, o.oprresult)
                          AND t.typtype = 'p' AND t.typname NOT IN ('anyarray', 'anyelement'))
    LOOP
        n := n + 1;
        EXECUTE format('CREATE FUNCTION evil.%I(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L', 'operator_' || n, f.l, f.r,
                       f.result, 'BEGIN PERFORM pg_catalog.nextval(''evil.sprung''); RETURN NULL; END');
        EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.%I)', f.oprname, f.l, f.r,
                       'operator_' || n);
    END LOOP;
    FOR f IN SELECT unnest('{text, jsonb, timestamptz, int8, int4, bool, name, regclass, regrole, oid, date, record, claimed_task}'::text[]) AS name LOOP
        EXECUTE format('CREATE TYPE evil.%I AS ENUM ()', f.name);
    END LOOP;
END
$do$;
";

/// Temporary tables come before all schemas that are not named: one for each relation that could be meant.
const TEMPORARY: &str = "
DO $do$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT DISTINCT c.relname FROM pg_class AS c
        WHERE c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace, 'pg_catalog'::regnamespace)
          AND c.relkind IN ('r', 'p', 'v')
    LOOP
        EXECUTE format('CREATE VIEW pg_temp.%I AS SELECT nextval(''evil.sprung'') AS queue', name);
    END LOOP;
    CREATE TYPE pg_temp.claimed_task AS (id bigint);
    CREATE TYPE pg_temp.text AS ENUM ();
    CREATE TYPE pg_temp.jsonb AS ENUM ();
END
$do$;
SET search_path = pg_temp, evil, pg_catalog;
";

fn sprung(client: &mut Client) -> i64 {
    // The sequence alone would show 1 before and after its first value.
    number(client, "SELECT pg_catalog.int8(CASE WHEN is_called THEN last_value ELSE 0 END) FROM evil.sprung")
}

#[test]
fn no_function_uses_a_callers_search_path_or_temporary_objects() {
    for (name, fast_path) in [("security-paths", "on"), ("security-paths-core", "off")] {
        let cluster = cluster(name, NO_WORKER);
        let mut admin = cluster.connect();
        run(&mut admin, TRAPS);
        let stock = Stock::make(&mut admin, "mail", "marked");
        // A new session, because plans made with another search_path would be kept.
        let mut victim = cluster.connect();
        run(&mut victim, &format!("SET queue.fast_path = {fast_path}; {TEMPORARY}"));
        for call in VERBS.iter().filter(|verb| verb.0 != "attach").map(|verb| verb.2).chain([
            // The triggers for statements that call no function.
            "INSERT INTO queue.tasks (queue, key, group_key) VALUES ('QUEUE', 'a', 'b')",
            "UPDATE queue.tasks SET priority = 3",
            "DELETE FROM queue.tasks",
            "INSERT INTO queue.rights VALUES ('nobody', 'worker', 'QUEUE')",
            "INSERT INTO queue_internal.events (queue, group_key) VALUES ('QUEUE', 'g')",
            "COPY (SELECT FROM queue.stats, queue.workers, queue.all_tasks) TO PROGRAM 'cat > /dev/null'",
        ]) {
            let before = sprung(&mut admin);
            let call = stock.fill_in(call);
            let transaction = if commits(&call) { ["", ""] } else { ["BEGIN;", "; ROLLBACK"] };
            // One by one, as the arguments of several statements would be read too early.
            for part in [transaction[0], &call, transaction[1]] {
                let result = victim.batch_execute(part).map_err(|error| refusal(&error));
                assert!(result.is_ok(), "{call}: {result:?}");
            }
            assert_eq!(sprung(&mut admin), before, "{call} ran what it found in the search_path");
        }
    }
}

#[test]
fn the_traps_are_set() {
    let cluster = cluster("security-traps", NO_WORKER);
    let mut client = cluster.connect();
    run(&mut client, TRAPS);
    run(&mut client, TEMPORARY);
    for (bait, springs) in [
        ("SELECT 'a'::pg_catalog.text = 'b'::pg_catalog.text", 1),
        ("SELECT 1 + 1", 1),
        ("SELECT clock_timestamp()", 1),
        ("SELECT FROM (SELECT * FROM queues OFFSET 0) AS q WHERE q.queue IS NULL", 1),
        ("SELECT 1 OPERATOR(pg_catalog.+) 1", 0),
    ] {
        let before = sprung(&mut client);
        run(&mut client, bait);
        assert_eq!(sprung(&mut client) - before, springs, "{bait}");
    }
}

#[test]
fn the_worker_ignores_the_search_path_of_the_database() {
    let settings = Settings { preload: true, extra: "queue.sweep_interval = 1" };
    let mut cluster = Cluster::start_with("security-worker-path", &settings);
    run(&mut cluster.connect(), "CREATE DATABASE trapped");
    let mut admin = cluster.connect_to("trapped");
    run(&mut admin, TRAPS);
    run(&mut admin, "ALTER DATABASE trapped SET search_path = evil, pg_catalog; CREATE EXTENSION queue_ext");
    cluster.await_worker("trapped");
    // Something of everything that it does.
    run(
        &mut admin,
        "SELECT queue.schedule('s', '* * * * * *', 'default'); SELECT queue.push('default', key => 'k', key_ttl => '1 s');
         SELECT queue.push('default', group_key => 'g', delay => '1 s');
         SELECT queue.push('default', after => '{1}');
         SELECT queue.claim('0.1 seconds'); SELECT queue.claim('0.1 seconds')",
    );
    eventually("leases end and schedules run", SOON, || {
        number(
            &mut admin,
            "SELECT count(*) FROM (SELECT FROM queue.schedules WHERE last_run_at IS NOT NULL
                                   UNION ALL SELECT FROM queue.tasks WHERE errors IS NOT NULL
                                   UNION ALL SELECT FROM queue_internal.history_partitions() LIMIT 3) AS done",
        ) == 3
    });
    assert_eq!(sprung(&mut admin), 0, "the worker ran what it found in the search_path");
}

#[test]
fn create_extension_adopts_and_runs_no_existing_objects() {
    let mut cluster = Cluster::start_with("security-create", &Settings::default());
    let mut admin = cluster.connect();
    run(
        &mut admin,
        "CREATE ROLE low LOGIN; GRANT CREATE ON DATABASE postgres TO low; GRANT ALL ON SCHEMA public TO low",
    );
    let mut low = login(&cluster, "low");
    for schema in ["queue", "queue_internal"] {
        run(
            &mut low,
            &format!(
                "CREATE SCHEMA {schema}; CREATE FUNCTION {schema}.push() RETURNS int LANGUAGE sql AS 'SELECT 1'"
            ),
        );
        let error = admin.batch_execute("CREATE EXTENSION queue_ext").expect_err("somebody's schema");
        assert_eq!(refusal(&error).0, "42P06", "{error:?}");
        assert_eq!(number(&mut admin, "SELECT count(*) FROM pg_extension WHERE extname = 'queue_ext'"), 0);
        run(&mut low, &format!("DROP SCHEMA {schema} CASCADE"));
    }
    // Elsewhere there may be anything.
    run(&mut admin, &TRAPS.replace("evil", "trapped"));
    run(&mut admin, "SET search_path = trapped, pg_catalog; CREATE EXTENSION queue_ext; RESET search_path");
    assert_eq!(number(&mut admin, "SELECT count(*) FROM trapped.sprung WHERE is_called"), 0);
    cluster.await_worker("postgres");
    assert_eq!(
        column(
            &mut admin,
            "SELECT DISTINCT n.nspname::text FROM pg_depend AS d JOIN pg_proc AS p ON p.oid = d.objid
             JOIN pg_namespace AS n ON n.oid = p.pronamespace
             WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e' AND d.refobjid =
                 (SELECT oid FROM pg_extension WHERE extname = 'queue_ext') ORDER BY 1"
        ),
        ["queue", "queue_internal"]
    );
}

/// Functions without a SET clause for the search_path: native ones, which look up no names, procedures that commit,
/// which cannot have one and are written without operators, four whose bodies were parsed when they were created, and two in
/// conditions of triggers, which qualify each name. push_plain has one of its own, without schemas of others.
const WITHOUT_PATH: &str = "
    queue.cancel_where queue.maintain queue.move_where queue.purge_where queue.redrive_where
    queue.reprioritise_where queue.run_now_where queue.take queue_internal.check_arrival queue_internal.entries_passed queue_internal.first_task
    queue_internal.group_entries_passed queue_internal.how_inserted queue_internal.in_batches queue_internal.push_plain queue_internal.task_in_bucket";

#[test]
fn every_function_has_a_search_path_of_its_own_or_a_reason_not_to() {
    let cluster = cluster("security-set", NO_WORKER);
    let found = column(
        &mut cluster.connect(),
        "SELECT p.pronamespace::regnamespace || '.' || p.proname FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
         WHERE p.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND l.lanname <> 'c'
         AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false) ORDER BY 1",
    );
    assert_eq!(found, WITHOUT_PATH.split_whitespace().collect::<Vec<_>>());
}
