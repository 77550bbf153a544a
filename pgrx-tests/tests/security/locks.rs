//! PostgreSQL takes the lock of some commands before it checks the privilege. A command that is going to be refused
//! must not wait for that lock, because every later session would wait behind it.

use super::{NO_WORKER, attempt, cluster, column, login, number, run};
use postgres::Client;
use queue_ext_tests::{Cluster, SOON, Settings, eventually};

/// The commands of a role with a right for one queue. It owns "plain", "parted" and the index on it, a publication
/// and an extension.
const REFUSED: [&str; 49] = [
    "CREATE RULE r AS ON INSERT TO queue.tasks DO NOTHING",
    "CREATE OR REPLACE RULE r AS ON SELECT TO queue.all_tasks DO INSTEAD SELECT 1",
    "CREATE TRIGGER t BEFORE INSERT ON queue.tasks EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE OR REPLACE TRIGGER t AFTER INSERT ON queue.tasks
     FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON queue.tasks
     FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    // Foreign keys in every syntactic position.
    "CREATE TABLE x (id bigint REFERENCES queue.tasks)",
    "CREATE TABLE x (id bigint, FOREIGN KEY (id) REFERENCES queue.tasks (id))",
    "CREATE TABLE IF NOT EXISTS x (id bigint REFERENCES queue.tasks)",
    "CREATE TEMP TABLE x (id bigint REFERENCES queue.tasks)",
    "CREATE TABLE x PARTITION OF parted (id REFERENCES queue.tasks) DEFAULT",
    "ALTER TABLE plain ADD FOREIGN KEY (id) REFERENCES queue.tasks",
    "ALTER TABLE plain ADD more integer, ADD CONSTRAINT f FOREIGN KEY (id) REFERENCES queue.tasks (id) NOT VALID",
    "ALTER TABLE plain ADD task bigint REFERENCES queue.tasks",
    "ALTER TABLE IF EXISTS plain ADD COLUMN IF NOT EXISTS task bigint REFERENCES queue.tasks",
    "CREATE SCHEMA x CREATE TABLE x (id bigint REFERENCES queue.tasks)",
    // Children and partitions.
    "CREATE TABLE x () INHERITS (queue.tasks)",
    "ALTER TABLE plain INHERIT queue.tasks",
    "CREATE TABLE x PARTITION OF queue.tasks DEFAULT",
    "CREATE TABLE x PARTITION OF queue.history DEFAULT",
    "ALTER TABLE parted ATTACH PARTITION queue.tasks DEFAULT",
    "ALTER TABLE parted DETACH PARTITION queue.tasks",
    "ALTER INDEX parted_index ATTACH PARTITION queue.tasks_pkey",
    // Of any kind, because PostgreSQL checks the kind only when it has the lock.
    "ALTER INDEX queue.tasks_pkey DEPENDS ON EXTENSION plpgsql",
    "ALTER INDEX queue.tasks DEPENDS ON EXTENSION plpgsql",
    "ALTER MATERIALIZED VIEW queue.tasks DEPENDS ON EXTENSION plpgsql",
    "ALTER MATERIALIZED VIEW queue.all_tasks NO DEPENDS ON EXTENSION plpgsql",
    // The lock that autovacuum has: to wait for it would end a vacuum again and again.
    "COMMENT ON TABLE queue.tasks IS 'x'",
    "COMMENT ON INDEX queue.tasks IS 'x'",
    "COMMENT ON COLUMN queue.tasks.id IS 'x'",
    "CREATE STATISTICS x ON id, queue FROM queue.tasks",
    "CREATE PUBLICATION x FOR TABLE queue.tasks",
    "ALTER PUBLICATION mine ADD TABLE queue.tasks",
    "ALTER PUBLICATION mine SET TABLE queue.tasks",
    "ALTER EXTENSION plpgsql ADD TABLE queue.tasks",
    "ALTER EXTENSION plpgsql DROP TABLE queue.tasks",
    // The worker and every waiting session hold a lock on the extension in each of their transactions.
    "DROP EXTENSION queue_ext CASCADE",
    "DROP EXTENSION IF EXISTS missing, queue_ext",
    "ALTER EXTENSION queue_ext UPDATE",
    "ALTER EXTENSION queue_ext SET SCHEMA a_producer",
    "ALTER EXTENSION queue_ext DROP TABLE queue.tasks",
    "ALTER FUNCTION f() DEPENDS ON EXTENSION queue_ext",
    "ALTER FUNCTION f() NO DEPENDS ON EXTENSION queue_ext",
    // From within, and found by the path.
    "DO $$ BEGIN EXECUTE 'CREATE RULE r AS ON INSERT TO queue.tasks DO NOTHING'; END $$",
    "SET LOCAL search_path = pg_temp, queue; CREATE RULE r AS ON INSERT TO tasks DO NOTHING",
    "SET LOCAL search_path = a_producer, queue; ALTER TABLE plain ADD FOREIGN KEY (id) REFERENCES tasks",
    // Catalogues that every session reads. For these not even a right for a queue is needed.
    "CREATE RULE r AS ON INSERT TO pg_class DO NOTHING",
    "CREATE TRIGGER t BEFORE INSERT ON pg_class EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE TABLE x (id oid REFERENCES pg_class (oid))",
    "ALTER INDEX pg_class DEPENDS ON EXTENSION plpgsql",
];

/// For these PostgreSQL itself checks the privilege first, or takes a weak lock.
const REFUSED_FIRST: [&str; 35] = [
    "CREATE INDEX ON queue.tasks (id)",
    "CREATE POLICY p ON queue.tasks",
    "CREATE OR REPLACE VIEW queue.all_tasks AS SELECT 1 AS id",
    "CREATE TABLE x (LIKE queue.tasks INCLUDING ALL)",
    "CREATE SEQUENCE x OWNED BY queue.tasks.id",
    "CREATE VIEW x AS SELECT FROM queue.tasks; LOCK TABLE x IN ACCESS EXCLUSIVE MODE",
    "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON plain FROM queue.tasks
     FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "ALTER TABLE queue.tasks ADD x integer",
    "ALTER TABLE queue.tasks ADD FOREIGN KEY (id) REFERENCES queue.history",
    "ALTER TABLE queue.tasks RENAME TO x",
    "ALTER TABLE queue.tasks RENAME id TO x",
    "ALTER TABLE queue.tasks SET SCHEMA a_producer",
    "ALTER TABLE queue.tasks OWNER TO a_producer",
    "ALTER TABLE plain NO INHERIT queue.tasks",
    "ALTER INDEX queue.tasks_pkey RENAME TO x",
    "ALTER TRIGGER tasks_inserted ON queue.tasks RENAME TO x",
    "ALTER TRIGGER tasks_inserted ON queue.tasks DEPENDS ON EXTENSION plpgsql",
    "ALTER SEQUENCE queue.tasks_id_seq RESTART",
    "ALTER VIEW queue.all_tasks SET (security_barrier = true)",
    "ALTER FUNCTION queue.push DEPENDS ON EXTENSION plpgsql",
    "ALTER SCHEMA queue RENAME TO x",
    "DROP TRIGGER tasks_inserted ON queue.tasks",
    "DROP RULE \"_RETURN\" ON queue.all_tasks",
    "DROP TABLE queue.tasks CASCADE",
    "DROP INDEX queue.tasks_pkey",
    "DROP VIEW queue.all_tasks",
    "DROP SCHEMA queue CASCADE",
    "COMMENT ON TRIGGER tasks_inserted ON queue.tasks IS 'x'",
    "TRUNCATE queue.tasks",
    "LOCK TABLE queue.tasks IN SHARE MODE",
    "CLUSTER queue.tasks USING tasks_pkey",
    "REINDEX TABLE queue.tasks",
    "REINDEX INDEX queue.tasks_pkey",
    "REFRESH MATERIALIZED VIEW queue.tasks",
    "SELECT FROM queue.tasks FOR UPDATE",
];

/// Queue "a", and a role that may push to it and owns a few things.
pub fn producer(cluster: &Cluster) -> Client {
    let mut admin = cluster.connect();
    run(
        &mut admin,
        "SELECT queue.create('a'); CREATE ROLE a_producer LOGIN; SELECT queue.grant_producer('a_producer', 'a');
         CREATE SCHEMA AUTHORIZATION a_producer; GRANT CREATE ON DATABASE postgres TO a_producer;
         UPDATE pg_extension SET extowner = 'a_producer'::regrole WHERE extname = 'plpgsql'",
    );
    run(&mut admin, "CALL queue.maintain()");
    run(
        &mut login(cluster, "a_producer"),
        "CREATE TABLE plain (id bigint); CREATE TABLE parted (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
         CREATE INDEX parted_index ON parted (id); CREATE PUBLICATION mine;
         CREATE FUNCTION f() RETURNS integer LANGUAGE sql RETURN 1",
    );
    admin
}

#[test]
fn refused_commands_never_wait_for_a_lock() {
    let mut cluster = cluster("security-locks", "queue.sweep_interval = 1");
    cluster.await_worker("postgres");
    let mut admin = producer(&cluster);
    let worker = cluster.await_worker("postgres");
    let mut open = login(&cluster, "a_producer");
    run(&mut open, "BEGIN; SELECT queue.push('a'); PREPARE p AS DELETE FROM pg_class");
    let mut waiting = cluster.connect();
    run(
        &mut waiting,
        "BEGIN; CREATE FUNCTION pg_temp.f() RETURNS integer LANGUAGE sql RETURN 1;
                       ALTER FUNCTION pg_temp.f() DEPENDS ON EXTENSION queue_ext",
    );
    // The locks of autovacuum, and those of every statement on an index that it may use.
    let mut vacuum = cluster.connect();
    run(
        &mut vacuum,
        "BEGIN; LOCK TABLE queue.tasks, queue.history, queue.all_tasks IN SHARE UPDATE EXCLUSIVE MODE;
         SELECT FROM queue.tasks WHERE id = 0",
    );
    let mut stranger = login(&cluster, "a_producer");
    run(&mut stranger, "SET lock_timeout = '200 ms'");
    let wrong: Vec<String> = REFUSED
        .iter()
        .chain(&REFUSED_FIRST)
        .filter_map(|statement| match attempt(&mut stranger, statement) {
            Err((code, _)) if code == "42501" || code != "55P03" && REFUSED_FIRST.contains(statement) => None,
            other => Some(format!("{statement}: {other:?}")),
        })
        .collect();
    assert_eq!(wrong, [""; 0]);
    // Without any timeout; meanwhile other sessions are not blocked.
    run(&mut stranger, "RESET lock_timeout");
    attempt(&mut stranger, REFUSED[0]).expect_err("it has no right");
    let id = number(&mut admin, "SELECT queue.push('default')");
    run(&mut admin, "SELECT queue.claim('20 ms', 'default')");
    let state = format!("SELECT state FROM queue.tasks WHERE id = {id}");
    eventually("the worker ends a lease", SOON, || column(&mut admin, &state) == ["queued"]);
    assert_eq!(cluster.await_worker("postgres"), worker, "the worker was never restarted");
    run(&mut open, "COMMIT");
}

/// Roles that have the privilege, or whose own objects have such names, are checked only by PostgreSQL.
#[test]
fn commands_that_postgresql_allows_are_allowed() {
    let cluster = cluster("security-locks-allowed", NO_WORKER);
    let mut admin = producer(&cluster);
    let everywhere = [
        "CREATE TABLE x (id bigint REFERENCES queue.tasks)",
        "CREATE TABLE x (); ALTER TABLE x ADD COLUMN task bigint REFERENCES queue.tasks (id)",
        "CREATE TRIGGER t AFTER INSERT ON queue.tasks EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    ];
    let owners = [
        "CREATE RULE r AS ON INSERT TO queue.tasks DO NOTHING",
        "ALTER INDEX queue.tasks_pkey DEPENDS ON EXTENSION plpgsql",
        "COMMENT ON COLUMN queue.tasks.id IS 'x'",
        "CREATE STATISTICS public.x ON id, queue FROM queue.tasks",
        "CREATE PUBLICATION x FOR TABLE queue.tasks",
        "CREATE TABLE x () INHERITS (queue.tasks)",
        "CREATE TABLE x PARTITION OF queue.history FOR VALUES FROM ('2001-01-01') TO ('2001-01-02');
         ALTER TABLE queue.history DETACH PARTITION x",
    ];
    run(&mut admin, "GRANT CREATE ON SCHEMA public TO owner; GRANT CREATE ON DATABASE postgres TO owner");
    for role in ["postgres", "owner"] {
        let mut client = login(&cluster, role);
        for statement in everywhere.iter().chain(&owners) {
            attempt(&mut client, statement)
                .unwrap_or_else(|refused| panic!("{role}: {statement}: {refused:?}"));
        }
    }
    let mut producer = login(&cluster, "a_producer");
    for (grant, statements) in [
        ("REFERENCES", &everywhere[..2]),
        ("REFERENCES (id)", &everywhere[..2]),
        ("TRIGGER", &everywhere[2..]),
    ] {
        for statement in statements {
            run(&mut admin, &format!("GRANT {grant} ON queue.tasks TO a_producer"));
            attempt(&mut producer, statement)
                .unwrap_or_else(|refused| panic!("{grant}: {statement}: {refused:?}"));
            run(&mut admin, &format!("REVOKE {grant} ON queue.tasks FROM a_producer"));
            let (code, _) = attempt(&mut producer, statement).expect_err(statement);
            assert_eq!(code, "42501", "{statement}");
        }
    }
    // Commands that do nothing, and commands on another object of the same name.
    for statement in [
        "CREATE TABLE IF NOT EXISTS plain () INHERITS (queue.tasks)",
        "CREATE TABLE IF NOT EXISTS plain (id bigint REFERENCES queue.tasks)",
        "ALTER TABLE IF EXISTS missing ADD FOREIGN KEY (id) REFERENCES queue.tasks",
        "CREATE TEMP TABLE tasks (id bigint PRIMARY KEY); SET LOCAL search_path = queue, a_producer;
         CREATE RULE r AS ON INSERT TO tasks DO NOTHING; COMMENT ON TABLE tasks IS 'x';
         CREATE TRIGGER t AFTER INSERT ON tasks EXECUTE FUNCTION suppress_redundant_updates_trigger();
         CREATE TEMP TABLE more (id bigint REFERENCES tasks)",
        "CREATE TABLE tasks (id bigint PRIMARY KEY); SET LOCAL search_path = a_producer, queue;
         ALTER TABLE plain ADD FOREIGN KEY (id) REFERENCES tasks",
        "CREATE TABLE self (id bigint PRIMARY KEY REFERENCES self)",
        // IF EXISTS and IF NOT EXISTS.
        "ALTER TABLE plain ADD COLUMN IF NOT EXISTS id bigint REFERENCES queue.tasks",
        "SET LOCAL search_path = a_producer, queue;
         ALTER TABLE plain ADD COLUMN IF NOT EXISTS id bigint REFERENCES tasks (id) CHECK (id > 0), ADD more integer",
        "ALTER TABLE IF EXISTS missing INHERIT queue.tasks;
         ALTER TABLE IF EXISTS missing ATTACH PARTITION queue.tasks DEFAULT",
        "CREATE TEMP TABLE more (id bigint); CREATE TEMP TABLE IF NOT EXISTS more () INHERITS (queue.tasks)",
        // Temporary tables without a schema, and own tables with the name of a catalogue.
        "CREATE TEMP TABLE more (id serial PRIMARY KEY); ALTER TABLE more ADD n serial; COMMENT ON TABLE more IS 'x';
         COMMENT ON COLUMN more.id IS 'x'; CREATE STATISTICS s ON id, n FROM more; DROP STATISTICS s;
         CREATE TEMP TABLE child () INHERITS (more); ALTER TABLE child NO INHERIT more; ALTER TABLE child INHERIT more;
         CREATE RULE r AS ON INSERT TO more DO ALSO NOTIFY more; CREATE TEMP TABLE self (id int PRIMARY KEY REFERENCES self)",
        "SET LOCAL search_path = a_producer, pg_catalog; CREATE TABLE pg_class (id bigint PRIMARY KEY);
         CREATE RULE r AS ON INSERT TO pg_class DO NOTHING; COMMENT ON COLUMN pg_class.id IS 'x';
         CREATE TABLE pg_attribute (id bigint REFERENCES pg_class)",
        "CREATE SCHEMA made CREATE TABLE tasks (id bigint PRIMARY KEY) CREATE TABLE x (id bigint REFERENCES made.tasks)",
        "CREATE VIEW seen AS SELECT 1 AS id; COMMENT ON COLUMN seen.id IS 'x'",
        "COMMENT ON TYPE plain IS NULL; COMMENT ON SCHEMA a_producer IS 'x'",
        "CREATE TABLE child (id bigint NOT NULL); ALTER TABLE parted ATTACH PARTITION child DEFAULT;
         ALTER TABLE parted DETACH PARTITION child; CREATE INDEX ON child (id)",
    ] {
        attempt(&mut producer, statement).unwrap_or_else(|refused| panic!("{statement}: {refused:?}"));
    }
    // Objects that do not exist are reported by the server.
    for (statement, code) in [
        ("CREATE RULE r AS ON INSERT TO queue.missing DO NOTHING", "42P01"),
        ("CREATE RULE r AS ON INSERT TO missing.tasks DO NOTHING", "3F000"),
        ("CREATE RULE r AS ON INSERT TO other.queue.tasks DO NOTHING", "0A000"),
        ("CREATE TABLE x (id bigint REFERENCES missing)", "42P01"),
        ("COMMENT ON COLUMN id IS 'x'", "42601"),
        ("ALTER TABLE missing ADD FOREIGN KEY (id) REFERENCES queue.tasks", "42P01"),
    ] {
        let (found, said) = attempt(&mut producer, statement).expect_err(statement);
        assert_eq!(found, code, "{statement}: {said}");
    }
    assert_eq!(number(&mut admin, "SELECT count(*) FROM queue.tasks"), 0);
}

/// The advice of docs/security.md for servers without the library.
#[test]
fn without_the_library_refused_commands_wait_unless_an_event_trigger_refuses_them() {
    let cluster = Cluster::start_with("security-locks-without", &Settings { preload: false, extra: "" });
    run(&mut cluster.connect(), "CREATE EXTENSION queue_ext");
    let mut admin = producer(&cluster);
    let mut open = login(&cluster, "a_producer");
    run(&mut open, "BEGIN; SELECT queue.push('a')");
    let mut stranger = login(&cluster, "a_producer");
    run(&mut stranger, "SET lock_timeout = '200 ms'");
    let refused = |stranger: &mut Client| attempt(stranger, REFUSED[0]).expect_err("it has no right").0;
    assert_eq!(refused(&mut stranger), "55P03");
    run(
        &mut admin,
        "CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF session_user = 'a_producer' THEN
                 RAISE insufficient_privilege;
             END IF;
         END $$;
         CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION public.refuse()",
    );
    assert_eq!(refused(&mut stranger), "42501");
}
