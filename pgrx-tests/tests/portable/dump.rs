//! Dumps of the SQL-only edition. Its tables are ordinary ones, so a dump also has the rows that an installation makes.

use super::*;
use queue_ext_tests::estate;

/// Tables with one row, which the installation makes.
const SINGLE_ROW_TABLES: [&str; 3] = ["token_mark", "settling", "maintenance"];

fn has_its_single_rows(client: &mut Client, way: &str) {
    for table in SINGLE_ROW_TABLES {
        assert_eq!(
            ask::<i64>(client, &format!("SELECT count(*) FROM queue_internal.{table}")),
            1,
            "{way}: {table}"
        );
    }
}

#[test]
fn a_dump_whole_or_in_parts_is_the_queue_as_it_was() {
    let source = started("dump-parts");
    let mut client = source.connect();
    estate::work(&mut client, 500);
    client.batch_execute("CALL queue.maintain()").expect("partitions of the history");
    // Locks of groups, slots of a limit, and a mark that the edition has from the extension.
    client
        .batch_execute(
            "SELECT queue.create('limited', '{\"max_running\": 2}');
             SELECT queue.push('limited', group_key => 'g') FROM generate_series(1, 3);
             SELECT queue.claim('1 day', 'limited');
             UPDATE queue_internal.token_mark SET reached = 7",
        )
        .expect("more of it");
    let (everything, rows) = (estate::everything(&mut client), estate::rows(&mut client));
    let target = Edition::SqlOnly.cluster("portable-dump-target", Worker::On);
    target.connect().batch_execute("CREATE ROLE web").expect("a role is not part of a dump");
    let [from, to] = [&source, &target].map(|cluster| cluster.folder().to_str().expect("a path").to_owned());
    let restore = |database: &str, how: &[&str]| {
        let file = format!("{from}/part.dump");
        source.run(
            "pg_dump",
            &[&["-h", &from, "-U", "postgres", "-Fc", "-f", &file, "postgres"], how].concat(),
        );
        let connection = ["-h", &to, "-U", "postgres", "-d", database];
        target.run("pg_restore", &[&["--exit-on-error", "-j", "2", &file], &connection[..]].concat());
    };
    let database = |name: &str| {
        let mut server = target.connect();
        server.batch_execute(&format!("CREATE DATABASE {name}")).expect("a database");
    };
    let goes_on = |client: &mut Client, way: &str| {
        estate::goes_on(client);
        assert_eq!(ask::<i64>(client, "SELECT count(*) FROM queue.claim('1 day', 'limited', 5)"), 0, "{way}");
        let complete =
            "SELECT queue.complete(id, token) FROM queue.tasks WHERE queue = 'limited' AND state = 'running'";
        client.batch_execute(complete).expect("the lease from before");
        let token = ask::<i64>(client, "SELECT token FROM queue.claim('1 day', 'limited')");
        assert_eq!(token, 8, "{way}: after the mark");
        client.batch_execute("CALL queue.maintain()").expect("maintain");
        has_its_single_rows(client, way);
    };

    Edition::SqlOnly.install(&target, "postgres");
    database("whole");
    restore("whole", &[]);
    let mut client = target.connect_to("whole");
    assert_eq!(estate::everything(&mut client), everything);
    goes_on(&mut client, "whole");

    // First the schema, which works as a queue without tasks; then the data.
    database("halves");
    restore("halves", &["--schema-only"]);
    let mut client = target.connect_to("halves");
    client.batch_execute("SELECT queue.create('new'), queue.push('new')").expect("push");
    assert_eq!(ask::<i64>(&mut client, "SELECT token FROM queue.claim('1 day', 'new')"), 1);
    client.batch_execute("CALL queue.maintain()").expect("maintain");
    has_its_single_rows(&mut client, "schema");
    let maintained = "SELECT status FROM queue.health() WHERE name = 'worker'";
    assert_eq!(ask::<String>(&mut client, maintained), "ok");
    client.batch_execute("SELECT queue.drop('new', force => true)").expect("drop");
    restore("halves", &["--data-only"]);
    assert_eq!(estate::everything(&mut client), everything);
    goes_on(&mut client, "halves");

    // The data alone, into a database that has the edition; it has no partitions for the days yet.
    let mut client = target.connect();
    restore("postgres", &["--data-only", "--load-via-partition-root"]);
    assert_eq!(estate::rows(&mut client), rows);
    goes_on(&mut client, "data");
}

/// A whole dump brings the rows before the keys and the triggers of their tables.
#[test]
fn maintain_during_a_restore_does_not_get_in_its_way() {
    let source = started("dump-maintained");
    let mut client = source.connect();
    client.batch_execute("SELECT queue.push('default')").expect("a task");
    let host = source.folder().to_str().expect("a path").to_owned();
    let file = format!("{host}/whole.dump");
    source.run("pg_dump", &["-h", &host, "-U", "postgres", "-Fc", "-f", &file, "postgres"]);
    client.batch_execute("CREATE DATABASE restored").expect("a database");
    let mut client = source.connect_to("restored");
    for part in ["pre-data", "data", "post-data"] {
        let section = format!("--section={part}");
        source.run(
            "pg_restore",
            &["--exit-on-error", &section, &file, "-h", &host, "-U", "postgres", "-d", "restored"],
        );
        client.batch_execute("CALL queue.maintain()").expect("maintain");
    }
    for table in SINGLE_ROW_TABLES {
        assert_eq!(
            ask::<i64>(&mut client, &format!("SELECT count(*) FROM queue_internal.{table}")),
            1,
            "{table}"
        );
    }
    assert_eq!(ask::<i64>(&mut client, "SELECT count(*) FROM queue.claim()"), 1);
}

#[test]
fn maintain_does_the_rest_if_it_cannot_add_a_row() {
    let cluster = started("dump-locked");
    let mut owner = as_owner(&cluster, "postgres");
    let mut other = as_owner(&cluster, "postgres");
    owner.batch_execute("SELECT queue.push('default')").expect("a task");
    for held in [
        "INSERT INTO queue_internal.settling DEFAULT VALUES",
        "LOCK TABLE queue_internal.settling IN ACCESS EXCLUSIVE MODE",
    ] {
        owner
            .batch_execute(
                "DELETE FROM queue_internal.settling; SELECT queue.claim('1 hour');
                 UPDATE queue.tasks SET lease_until = clock_timestamp() - interval '1 s' WHERE state = 'running'",
            )
            .expect("an expired lease");
        other.batch_execute(&format!("BEGIN; {held}")).expect(held);
        owner.batch_execute("CALL queue.maintain()").expect(held);
        assert_eq!(ask::<String>(&mut owner, "SELECT state FROM queue.tasks"), "queued", "{held}");
        other.batch_execute("ROLLBACK").expect("rollback");
        owner.batch_execute("CALL queue.maintain()").expect("maintain");
        assert_eq!(ask::<i64>(&mut owner, "SELECT count(*) FROM queue_internal.settling"), 1, "{held}");
    }
}

/// docs/portable.md says what the owner runs after a failover: it needs the mark of tokens.
#[test]
fn maintain_adds_the_rows_once_whoever_calls_it_meanwhile() {
    let cluster = started("dump-callers");
    let mut owner = as_owner(&cluster, "postgres");
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let missing = SINGLE_ROW_TABLES.map(|table| format!("DELETE FROM queue_internal.{table};")).concat();
        owner.batch_execute(&missing).expect("missing rows");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut caller = as_owner(&cluster, "postgres");
                    caller
                        .batch_execute(&format!("SET default_transaction_isolation = '{isolation}'"))
                        .expect("set");
                    caller.batch_execute("CALL queue.maintain()").expect(isolation);
                });
            }
        });
        has_its_single_rows(&mut owner, isolation);
    }
}

/// pg_restore with several jobs brings the locks while a trigger makes those of a new queue.
#[test]
fn restored_locks_do_not_wait_for_those_of_a_new_queue() {
    let cluster = started("dump-locks");
    let mut creator = as_owner(&cluster, "postgres");
    let mut loader = as_owner(&cluster, "postgres");
    creator.batch_execute("BEGIN; INSERT INTO queue.queues (name) VALUES ('q1')").expect("a queue");
    loader
        .batch_execute(
            "SET lock_timeout = '1s'; SET check_function_bodies = off; SELECT pg_catalog.set_config('search_path', '', false);
             INSERT INTO queue_internal.locks VALUES ('q1', -1), ('q1', 0), ('q1', 1)",
        )
        .expect("locks");
    creator.batch_execute("COMMIT").expect("commit");
    let locks = "SELECT count(*) FROM queue_internal.locks WHERE queue = 'q1'";
    assert_eq!(ask::<i64>(&mut creator, locks), 1);
    let running = "SELECT queue.push('q1', group_key => 'g'), queue.push('q1', group_key => 'g')";
    creator.batch_execute(running).expect("a group");
    assert_eq!(ask::<i64>(&mut creator, "SELECT count(*) FROM queue.claim('1 hour', 'q1', 5)"), 1);
}

/// Who may do what, as far as it is not the owner.
const PRIVILEGES: &str = "
    SELECT concat_ws(' ', o.object, coalesce(nullif(a.grantee, 0)::regrole::text, 'PUBLIC'), a.privilege_type)
    FROM (SELECT p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)), p.pronamespace
          FROM pg_proc AS p
          UNION ALL SELECT n.oid::regnamespace::text, n.nspowner, n.nspacl, n.oid FROM pg_namespace AS n
          UNION ALL SELECT c.oid::regclass::text, c.relowner, c.relacl, c.relnamespace FROM pg_class AS c
          UNION ALL SELECT c.oid::regclass || '.' || t.attname, c.relowner, t.attacl, c.relnamespace
                    FROM pg_attribute AS t JOIN pg_class AS c ON c.oid = t.attrelid
          UNION ALL SELECT 'type ' || t.oid::regtype, t.typowner, coalesce(t.typacl, acldefault('T', t.typowner)), t.typnamespace
                    FROM pg_type AS t WHERE t.typelem = 0) AS o (object, owner, acl, namespace),
         LATERAL aclexplode(o.acl) AS a
    WHERE o.namespace::regnamespace::text IN ('queue', 'queue_internal') AND a.grantee <> o.owner
    ORDER BY 1";

/// pg_dump --no-privileges, as Rails calls it, leaves PUBLIC with all functions and the roles with nothing. So does a role that is
/// missing where the dump is restored.
#[test]
fn maintain_restores_privileges_that_a_dump_has_left_out() {
    let source = started("dump-private");
    let mut client = source.connect();
    client
        .batch_execute(
            "CREATE ROLE web; CREATE ROLE worker; CREATE ROLE oncall;
             SELECT queue.grant_producer('web', 'default'), queue.grant_worker('worker'), queue.grant_operator('oncall')",
        )
        .expect("rights");
    as_owner(&source, "postgres").batch_execute("CALL queue.maintain()").expect("maintain");
    let privileges = |client: &mut Client| -> Vec<String> {
        client.query(PRIVILEGES, &[]).expect("privileges").iter().map(|row| row.get(0)).collect()
    };
    let before = privileges(&mut client);
    assert!(before.iter().any(|line| line.ends_with("web EXECUTE")), "{before:?}");
    let target = Edition::SqlOnly.cluster("portable-dump-private-target", Worker::On);
    let roles = format!("CREATE ROLE {OWNER} LOGIN; CREATE ROLE web; CREATE ROLE worker");
    target.connect().batch_execute(&roles).expect("roles");
    let host = source.folder().to_str().expect("a path").to_owned();
    let file = format!("{host}/private.sql");
    let restore = |database: &str, how: &[&str]| -> Client {
        source.run("pg_dump", &[&["-h", &host, "-U", OWNER, "-f", &file, "postgres"], how].concat());
        target
            .connect()
            .batch_execute(&format!("CREATE DATABASE {database} OWNER {OWNER}"))
            .expect("a database");
        psql(&target, OWNER, database, Path::new(&file), &[]);
        let mut owner = as_owner(&target, database);
        assert_ne!(privileges(&mut owner), before, "{database}: the dump restores them by itself");
        owner.batch_execute("CALL queue.maintain()").expect("maintain");
        owner
    };

    // The rights come back with the role.
    let mut owner = restore("without_a_role", &[]);
    target.connect().batch_execute("CREATE ROLE oncall").expect("the role");
    let rights = "SELECT queue.grant_producer('web', 'default'), queue.grant_worker('worker'), queue.grant_operator('oncall')";
    owner.batch_execute(rights).expect("rights");
    assert_eq!(privileges(&mut owner), before);

    let mut owner = restore("without_privileges", &["--no-privileges", "--no-owner"]);
    assert_eq!(privileges(&mut owner), before);

    let mut owner = restore("schema_alone", &["--schema-only", "--no-privileges", "--no-owner"]);
    let of_roles =
        |line: &&String| ["web", "worker", "oncall"].iter().any(|role| line.contains(&format!(" {role} ")));
    assert_eq!(privileges(&mut owner).iter().find(of_roles), None);
    owner.batch_execute("SELECT queue.create('default')").expect("it works");
    owner.batch_execute(rights).expect("rights");
    assert_eq!(privileges(&mut owner), before);

    // Nobody waits for maintenance who grants the rights again.
    let mut owner = restore("again", &["--no-privileges", "--no-owner"]);
    owner.batch_execute("REVOKE USAGE ON SCHEMA queue FROM web").expect("revoke");
    owner.batch_execute(rights).expect("rights");
    assert_eq!(privileges(&mut owner), before);
}
