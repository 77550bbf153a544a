//! Whose rights count in the SQL-only edition, which sees only the role of the session.

use super::{Client, OWNER, ask, started};
use postgres::NoTls;
use queue_ext_tests::eventually;
use std::time::Duration;

#[test]
fn a_function_that_runs_for_the_owner_of_a_table_does_not_have_the_rights_of_the_session() {
    let cluster = started("autovacuum");
    let mut admin = cluster.connect();
    for statement in [
        "CREATE ROLE tenant LOGIN",
        "CREATE SCHEMA own AUTHORIZATION tenant",
        "SELECT queue.create('a'), queue.create('b'), queue.grant_producer('tenant', 'a')",
        "ALTER SYSTEM SET autovacuum_naptime = '1s'",
        "SELECT pg_reload_conf()",
    ] {
        admin.batch_execute(statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
    // ANALYZE evaluates the expressions of indexes, as the owner of the table; but the session of an autovacuum
    // worker is a superuser's.
    let mut tenant = cluster.config("postgres").user("tenant").connect(NoTls).expect("connect");
    tenant
        .batch_execute(
            "CREATE TABLE own.attempts (by_whom name, outcome text);
             CREATE FUNCTION own.attempt() RETURNS void LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM queue.push('b');
                 INSERT INTO own.attempts VALUES (session_user, 'pushed');
             EXCEPTION WHEN OTHERS THEN
                 INSERT INTO own.attempts VALUES (session_user, sqlstate);
             END
             $$;
             CREATE FUNCTION own.indexed(integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM own.attempt();
                 RETURN $1;
             END
             $$;
             CREATE TABLE own.bait (number integer) WITH (autovacuum_analyze_threshold = 1);
             INSERT INTO own.bait SELECT generate_series(1, 10);
             CREATE INDEX ON own.bait (own.indexed(number));
             TRUNCATE own.attempts;
             INSERT INTO own.bait SELECT generate_series(1, 10)",
        )
        .expect("set the trap");
    tenant
        .batch_execute("DELETE FROM own.attempts WHERE by_whom = 'tenant'")
        .expect("forget the tenant's own");
    eventually("autovacuum analyzes the table", Duration::from_secs(60), || {
        ask::<i64>(&mut admin, "SELECT count(*) FROM own.attempts WHERE by_whom = 'postgres'") > 0
    });
    admin.batch_execute("ANALYZE own.bait; REINDEX TABLE own.bait").expect("maintain the table");
    let outcomes: String = ask(
        &mut admin,
        "SELECT string_agg(DISTINCT outcome, ', ') FROM own.attempts WHERE by_whom = 'postgres'",
    );
    assert_eq!(outcomes, "42501");
    assert_eq!(ask::<i64>(&mut admin, "SELECT count(*) FROM queue.tasks WHERE queue = 'b'"), 0);
}

/// A right that is granted closes the functions of the schemas to everybody else, but not those of another extension.
#[test]
fn a_granted_right_leaves_the_functions_of_other_extensions_open() {
    let cluster = started("others");
    let mut client = cluster.connect();
    client
        .batch_execute(&format!(
            "CREATE ROLE web;
             CREATE FUNCTION queue.theirs() RETURNS int LANGUAGE sql RETURN 1;
             CREATE FUNCTION queue.mine() RETURNS int LANGUAGE sql RETURN 1;
             ALTER FUNCTION queue.theirs() OWNER TO {OWNER}; ALTER FUNCTION queue.mine() OWNER TO {OWNER};
             ALTER EXTENSION plpgsql ADD FUNCTION queue.theirs();
             SELECT queue.grant_worker('web')"
        ))
        .expect("functions");
    let open = |client: &mut Client, name: &str| -> bool {
        ask(client, &format!("SELECT has_function_privilege('web', 'queue.{name}()', 'EXECUTE')"))
    };
    assert!(open(&mut client, "theirs"));
    assert!(!open(&mut client, "mine"));
}
