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
    has_its_single_rows(&mut client, "sections");
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
        "LOCK TABLE queue.rights IN ACCESS EXCLUSIVE MODE",
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
fn concurrent_calls_of_maintain_add_each_missing_row_once() {
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

/// pg_dump --no-privileges, as Rails calls it, leaves PUBLIC with all functions and the roles with nothing. A role that is
/// missing where the dump is restored has the same effect.
#[test]
fn maintain_restores_privileges_that_a_dump_has_left_out() {
    const RIGHTS: &str = "SELECT queue.grant_producer('web', 'default'), queue.grant_worker('worker'), queue.grant_operator('oncall')";
    let source = started("dump-private");
    let mut client = source.connect();
    client.batch_execute("CREATE ROLE web; CREATE ROLE worker; CREATE ROLE oncall").expect("roles");
    client.batch_execute(RIGHTS).expect("rights");
    let mut owner = as_owner(&source, "postgres");
    owner.batch_execute("CALL queue.maintain()").expect("maintain");
    let privileges = |client: &mut Client, of: &str| -> Vec<String> {
        let lines = client.query(PRIVILEGES, &[]).expect("privileges");
        lines.iter().map(|row| row.get::<_, String>(0)).filter(|line| line.contains(of)).collect()
    };
    let before = privileges(&mut client, "");
    let open = privileges(&mut client, " PUBLIC EXECUTE");
    assert!(open.len() == 14 && before.len() > 200, "{before:?}");
    let target = Edition::SqlOnly.cluster("portable-dump-private-target", Worker::On);
    let roles = format!("CREATE ROLE {OWNER} LOGIN; CREATE ROLE web; CREATE ROLE worker");
    target.connect().batch_execute(&roles).expect("roles");
    let [from, to] = [&source, &target].map(|cluster| cluster.folder().to_str().expect("a path").to_owned());
    let file = format!("{from}/private.dump");
    let load = |database: &str, how: &[&str]| -> Client {
        source.run("pg_dump", &[&["-h", &from, "-U", OWNER, "-Fc", "-f", &file, "postgres"], how].concat());
        // It goes on after an error.
        let connection = ["-h", &to, "-U", OWNER, "-d", database];
        Command::new(bindir().join("pg_restore"))
            .args(connection)
            .arg(&file)
            .output()
            .expect("run pg_restore");
        as_owner(&target, database)
    };
    let restore = |database: &str, how: &[&str]| -> Client {
        target
            .connect()
            .batch_execute(&format!("CREATE DATABASE {database} OWNER {OWNER}"))
            .expect("a database");
        let mut owner = load(database, how);
        assert_ne!(privileges(&mut owner, ""), before, "{database}: the dump restores them by itself");
        owner
    };

    // The right of a missing role comes back with the role.
    let mut owner = restore("without_a_role", &[]);
    target.connect().batch_execute("CREATE ROLE oncall").expect("the role");
    owner.batch_execute(RIGHTS).expect("rights");
    owner.batch_execute("CALL queue.maintain()").expect("maintain");
    assert_eq!(privileges(&mut owner, ""), before);

    let mut owner = restore("without_privileges", &["--no-privileges", "--no-owner"]);
    owner
        .batch_execute("SELECT queue.grant_producer('worker'), queue.revoke_producer('worker')")
        .expect("another right");
    owner.batch_execute("CALL queue.maintain()").expect("maintain");
    assert_eq!(privileges(&mut owner, ""), before);
    // Nobody has to wait for maintenance who grants the rights again.
    owner.batch_execute("REVOKE USAGE ON SCHEMA queue FROM web").expect("revoke");
    owner.batch_execute(RIGHTS).expect("rights");
    assert_eq!(privileges(&mut owner, ""), before);

    // Before a role may use the schemas, the functions are closed to it.
    let schema = ["--schema-only", "--no-privileges", "--no-owner"];
    let mut owner = restore("schema_alone", &schema);
    owner.batch_execute("SELECT queue.grant_worker('worker')").expect("rights");
    assert_eq!(privileges(&mut owner, " PUBLIC EXECUTE"), open);
    owner.batch_execute("SELECT queue.create('default')").expect("the dump has no queue");
    owner.batch_execute(RIGHTS).expect("rights");
    owner.batch_execute("CALL queue.maintain()").expect("maintain");
    assert_eq!(privileges(&mut owner, ""), before);
    restore("schema_first", &schema);
    let mut owner = load("schema_first", &["--data-only", "--no-privileges", "--no-owner"]);
    assert_eq!(privileges(&mut owner, " PUBLIC EXECUTE"), open);
    owner.batch_execute("CALL queue.maintain()").expect("maintain");
    assert_eq!(privileges(&mut owner, ""), before);
}

/// In a dump, the right of a role that was dropped is a number, which can be that of another role elsewhere.
#[test]
fn maintain_deletes_the_rights_of_roles_that_were_dropped() {
    let cluster = started("dump-gone");
    let mut client = cluster.connect();
    client.batch_execute("CREATE ROLE gone; CREATE ROLE web").expect("roles");
    client.batch_execute("SELECT queue.grant_worker('gone'), queue.grant_producer('web')").expect("rights");
    client.batch_execute("DROP OWNED BY gone").expect("drop");
    client.batch_execute("CALL queue.maintain()").expect("it does not give them back");
    client.batch_execute("DROP ROLE gone").expect("drop");
    assert_eq!(ask::<i64>(&mut client, "SELECT count(*) FROM queue.rights"), 2);
    client.batch_execute("CALL queue.maintain()").expect("maintain");
    assert_eq!(ask::<String>(&mut client, "SELECT string_agg(role::text, ' ') FROM queue.rights"), "web");
}

/// They run as the owner, and would assign columns of a table whose types have code of another role.
#[test]
fn the_trigger_functions_of_tasks_work_for_no_other_table() {
    let cluster = started("triggers");
    let mut owner = as_owner(&cluster, "postgres");
    owner.batch_execute("CREATE TABLE public.mine (LIKE queue.tasks)").expect("a table");
    for (function, when) in [("task_arrives", "BEFORE INSERT"), ("tasks_inserted", "AFTER INSERT")] {
        let attach = format!(
            "CREATE TRIGGER mine {when} ON public.mine FOR EACH ROW EXECUTE FUNCTION queue_internal.{function}()"
        );
        owner.batch_execute(&attach).expect("attach");
        let insert = "INSERT INTO public.mine (id, queue, state, run_at, payload, attempt, token, priority, admission, weight,
                          updated_at, created_at)
                      VALUES (1, 'q', 'waiting', now(), '{}', 0, 0, 0, 0, 1, now(), now())";
        let refused = owner.batch_execute(insert).expect_err(function);
        let message = refused.as_db_error().expect("an error of the server").message().to_owned();
        assert_eq!(message, "this trigger function is for queue.tasks alone");
        owner.batch_execute("DROP TRIGGER mine ON public.mine").expect("detach");
    }
}
