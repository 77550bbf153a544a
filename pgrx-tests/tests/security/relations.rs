//! The privileges of every kind of role on every object. The expected privileges are in tables, which must list every
//! object.

use std::collections::{BTreeMap, BTreeSet};

use super::verbs::Stock;
use super::{NO_WORKER, attempt, cluster, column, login, run};
use postgres::{Client, NoTls};
use queue_ext_tests::cluster::major_version;
use queue_ext_tests::edition::OWNER;
use queue_ext_tests::{Cluster, Edition, Worker};

/// The roles, and the letters that stand for them.
const ROLES: [(&str, char); 7] = [
    ("nobody", '-'),
    ("producer", 'P'),
    ("worker", 'W'),
    ("operator", 'O'),
    ("monitor", 'M'),
    ("owner", '*'),
    ("postgres", '*'),
];

/// The privileges on a table, view or sequence: r SELECT, a INSERT, w UPDATE, d DELETE, U USAGE; in parentheses those
/// on some columns only, see COLUMNS. Row-level policies limit a role to the rows of its queues. Only the owner has
/// any other privilege.
#[rustfmt::skip]
const RELATIONS: &[(&str, &str, &str, &str, &str)] = &[
    // name                producer  worker  operator  monitor
    ("queue.tasks",        "(a)",    "",     "r(a)",   ""),
    ("queue.history",      "",       "",     "r",      ""),
    ("queue.dead_letters", "",       "",     "r",      ""),
    ("queue.queues",       "",       "",     "r",      ""),
    ("queue.schedules",    "",       "",     "r",      ""),
    ("queue.bindings",     "",       "",     "r",      ""),
    ("queue.handlers",     "",       "",     "r",      ""),
    ("queue.all_tasks",    "",       "",     "r",      ""),
    ("queue.stats",        "",       "",     "r",      "r"),
    ("queue.workers",      "",       "",     "r",      "r"),
    ("queue.batches",      "",       "",     "r",      "r"),
    ("queue.dependencies", "",       "",     "r",      "r"),
    ("queue.failing_schedules", "",  "",     "r",      "r"),
    ("queue.failing_handlers", "",   "",     "r",      "r"),
    ("queue.due_schedules", "",      "",     "r",      "r"),
    ("queue.delayed_events", "",     "",     "r",      "r"),
    ("queue.tasks_id_seq", "U",      "",     "U",      ""),
    // In the SQL-only edition.
    ("queue.maintained",   "",       "",     "r",      "r"),
];

/// The columns, where it is only some: those that a push sets.
const COLUMNS: &[(&str, &str, &str, &str)] = &[
    (
        "producer",
        "queue.tasks",
        "INSERT",
        "backoff group_key headers key kind lease max_attempts payload priority queue run_at start_by timeout weight",
    ),
    (
        "operator",
        "queue.tasks",
        "INSERT",
        "backoff group_key headers key kind lease max_attempts payload priority queue run_at start_by timeout weight",
    ),
];

/// Everything else: schemas, types, and the functions of queue_internal.
const OTHERS: &[(&str, &str)] = &[
    ("schema queue: USAGE", "PWOM*"),
    ("schema queue_internal: USAGE", "WO*"),
    ("type queue.claimed_task: USAGE", "WO*"),
    // Policies and views call these with the privileges of the role that reads.
    ("queue_internal.has_right", "-PWOM*"),
    ("queue_internal.queues_with_right", "-PWOM*"),
    ("queue_internal.caller", "-PWOM*"),
    ("queue_internal.counted", "-PWOM*"),
    ("queue_internal.counted_at", "-PWOM*"),
    ("queue_internal.count_tables", "-PWOM*"),
    ("queue_internal.running_tasks", "-PWOM*"),
    ("queue_internal.waiting_workers", "-PWOM*"),
    ("queue_internal.handler_name", "-PWOM*"),
    ("queue_internal.handler_named", "-PWOM*"),
    ("queue_internal.is_handler", "-PWOM*"),
    // In the conditions of triggers.
    ("queue_internal.how_inserted", "-PWOM*"),
    ("queue_internal.buckets", "-PWOM*"),
    ("queue_internal.check_arrival", "-PWOM*"),
    // Procedures call these as their caller, because a procedure that commits cannot run as the owner.
    ("queue_internal.check_wait", "WO*"),
    ("queue_internal.check_wait_result", "WO*"),
    ("queue_internal.first_ready", "WO*"),
    ("queue_internal.wait_deadline", "WO*"),
    ("queue_internal.outcome", "WO*"),
    ("queue_internal.try_commit", "WO*"),
    ("queue_internal.in_batches", "O*"),
    ("queue_internal.next_batch", "O*"),
    // In the SQL-only edition.
    ("queue_internal.first_pause", "WO*"),
    ("queue_internal.moment_of_call", "WO*"),
    ("queue_internal.next_pause", "WO*"),
    ("queue_internal.is_finished", "WO*"),
    ("queue_internal.may_commit", "WO*"),
];

/// The native edition and the SQL-only one, with a right of each kind for all queues.
fn editions(name: &str) -> [(Cluster, Client, Edition); 2] {
    [Edition::FastPath, Edition::SqlOnly].map(|edition| {
        let (cluster, mut owner) = if edition == Edition::FastPath {
            let cluster = cluster(name, NO_WORKER);
            let owner = login(&cluster, "owner");
            (cluster, owner)
        } else {
            let cluster = edition.cluster(name, Worker::Off);
            edition.install(&cluster, "postgres");
            run(
                &mut cluster.connect(),
                "CREATE ROLE nobody; CREATE ROLE producer; CREATE ROLE worker; CREATE ROLE operator;
                 CREATE ROLE monitor; GRANT pg_monitor TO monitor",
            );
            let owner = cluster.config("postgres").user(OWNER).connect(NoTls).expect("connect");
            (cluster, owner)
        };
        Stock::make(&mut owner, "mail", "marked");
        // With the partitions of the history there before the rights.
        run(&mut owner, "CALL queue.maintain()");
        run(
            &mut owner,
            "SELECT queue.grant_producer('producer'), queue.grant_worker('worker'), queue.grant_operator('operator')",
        );
        (cluster, owner, edition)
    })
}

fn roles(edition: Edition) -> [(&'static str, char); 7] {
    ROLES.map(|(name, letter)| {
        (if name == "owner" && edition == Edition::SqlOnly { OWNER } else { name }, letter)
    })
}

/// The privileges of a role on a relation, in the letters of the table.
fn privileges(client: &mut Client, role: &str, relation: &str, sequence: bool) -> String {
    let kinds: &[(&str, char)] = if sequence {
        &[("SELECT", 'r'), ("UPDATE", 'w'), ("USAGE", 'U')]
    } else {
        &[
            ("SELECT", 'r'),
            ("INSERT", 'a'),
            ("UPDATE", 'w'),
            ("DELETE", 'd'),
            ("TRUNCATE", 'D'),
            ("REFERENCES", 'x'),
            ("TRIGGER", 't'),
            ("MAINTAIN", 'm'),
        ]
    };
    // PostgreSQL has MAINTAIN from 17 on.
    let kinds = if major_version() < 17 && !sequence { &kinds[..kinds.len() - 1] } else { kinds };
    let mut may = |function: &str, kind: &str| -> bool {
        let query = format!("SELECT {function}('{role}', '{relation}', '{kind}')");
        client.query_one(&query, &[]).expect("look").get(0)
    };
    if sequence {
        return kinds
            .iter()
            .filter(|(kind, _)| may("has_sequence_privilege", kind))
            .map(|(_, letter)| *letter)
            .collect();
    }
    let (mut whole, mut some) = (String::new(), String::new());
    for (kind, letter) in kinds {
        if may("has_table_privilege", kind) {
            whole.push(*letter);
        } else if "rawx".contains(*letter) && may("has_any_column_privilege", kind) {
            some.push(*letter);
        }
    }
    if some.is_empty() { whole } else { format!("{whole}({some})") }
}

#[test]
fn every_relation_has_exactly_the_listed_privileges() {
    let mut named = BTreeSet::new();
    for (_cluster, mut client, edition) in editions("security-relations") {
        let relations = column(
            &mut client,
            "SELECT c.oid::regclass || ' ' || c.relkind::text FROM pg_class AS c
             WHERE c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
               AND c.relkind NOT IN ('i', 'I', 't', 'c') ORDER BY 1",
        );
        let mut wrong = Vec::new();
        for (relation, kind) in relations.iter().filter_map(|line| line.split_once(' ')) {
            let listed = RELATIONS.iter().find(|row| row.0 == relation);
            named.extend(listed.map(|row| row.0));
            let (_, producer, worker, operator, monitor) = listed.unwrap_or(&("", "", "", "", ""));
            let everything = match (kind, major_version()) {
                ("S", _) => "rwU",
                (_, 17..) => "rawdDxtm",
                _ => "rawdDxt",
            };
            for (role, letter) in roles(edition) {
                let expected = match letter {
                    'P' => producer,
                    'W' => worker,
                    'O' => operator,
                    'M' => monitor,
                    '*' => everything,
                    _ => "",
                };
                let found = privileges(&mut client, role, relation, kind == "S");
                if found != expected {
                    wrong.push(format!("{role} may do \"{found}\" with {relation}, and not \"{expected}\""));
                }
            }
        }
        assert!(wrong.is_empty(), "{}: {}", edition.name(), wrong.join("\n"));

        let columns = column(
            &mut client,
            "SELECT concat_ws(', ', x.grantee::regrole, a.attrelid::regclass, x.privilege_type,
                              string_agg(a.attname, ' ' ORDER BY a.attname))
             FROM pg_attribute AS a, aclexplode(a.attacl) AS x
             WHERE a.attrelid IN (SELECT oid FROM pg_class
                                  WHERE relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace))
             GROUP BY x.grantee, a.attrelid, x.privilege_type",
        );
        let expected: BTreeSet<String> = COLUMNS
            .iter()
            .map(|(role, table, kind, names)| format!("{role}, {table}, {kind}, {names}"))
            .collect();
        assert_eq!(BTreeSet::from_iter(columns), expected, "{}", edition.name());
    }
    assert_eq!(named.len(), RELATIONS.len(), "the table names nothing that does not exist");
}

#[test]
fn schemas_types_and_internal_functions_have_exactly_the_listed_privileges() {
    let mut named = BTreeSet::new();
    for (_cluster, mut client, edition) in editions("security-others") {
        let query = format!(
            "WITH role (name, letter) AS (VALUES {}),
             able (object, letter, able) AS (
                 SELECT format('schema %s: %s', n.nspname, k), r.letter, has_schema_privilege(r.name, n.oid, k)
                 FROM pg_namespace AS n, role AS r, unnest('{{USAGE, CREATE}}'::text[]) AS k WHERE n.nspname ~ '^queue'
                 UNION ALL
                 SELECT format('type %s: USAGE', t.oid::regtype), r.letter, has_type_privilege(r.name, t.oid, 'USAGE')
                 FROM pg_type AS t, role AS r
                 WHERE t.typnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND t.typelem = 0
                 UNION ALL
                 SELECT 'queue_internal.' || p.proname, r.letter, has_function_privilege(r.name, p.oid, 'EXECUTE')
                 FROM pg_proc AS p, role AS r WHERE p.pronamespace = 'queue_internal'::regnamespace)
             SELECT object || ' ' || coalesce(string_agg(DISTINCT letter, '') FILTER (WHERE able), '')
             FROM able GROUP BY object",
            roles(edition).map(|(name, letter)| format!("('{name}', '{letter}')")).join(", ")
        );
        let letters = |line: &str| {
            let (object, letters) = line.rsplit_once(' ').expect("two parts");
            (object.to_owned(), letters.chars().collect::<BTreeSet<char>>())
        };
        let listed: BTreeMap<_, _> =
            OTHERS.iter().map(|(object, allowed)| letters(&format!("{object} {allowed}"))).collect();
        for (object, found) in column(&mut client, &query).iter().map(|line| letters(line)) {
            let expected = listed.get(&object).cloned().unwrap_or(BTreeSet::from(['*']));
            assert_eq!(found, expected, "{}: {object}", edition.name());
            named.insert(object);
        }
    }
    for (object, _) in OTHERS {
        assert!(named.contains(*object), "{object} does not exist");
    }
}

/// The functions that PostgreSQL runs with the rights of the owner. The others that do are entry points in C.
#[test]
fn the_functions_that_run_as_the_owner_are_those_that_the_docs_name() {
    const TRIGGERS: [&str; 2] = ["queue_internal.task_arrives", "queue_internal.tasks_inserted"];
    for (_cluster, mut client, edition) in editions("security-definer") {
        let mut definers = column(
            &mut client,
            "SELECT DISTINCT p.pronamespace::regnamespace || '.' || p.proname FROM pg_proc AS p WHERE p.prosecdef
             AND p.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) ORDER BY 1",
        );
        if edition == Edition::SqlOnly {
            // The public functions, and the functions that their callers may execute, all with a fixed search_path.
            let for_nobody = "SELECT p.oid::regprocedure::text FROM pg_proc AS p WHERE p.prosecdef
                              AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)";
            assert_eq!(column(&mut client, for_nobody), [""; 0]);
            definers.retain(|name| {
                let internal = name.replace("queue_internal.", "");
                !name.starts_with("queue.")
                    && !OTHERS.iter().any(|(object, _)| *object == *name)
                    && !["has_right", "queues_with_right"].contains(&internal.as_str())
            });
            let owners = "SELECT count(*) FROM pg_proc WHERE prosecdef AND proname ~ '^(grant|revoke)_'";
            assert_eq!(super::number(&mut client, owners), 0);
        }
        assert_eq!(definers, TRIGGERS, "{}", edition.name());
        let roles = "SELECT count(*) FROM pg_roles WHERE rolname ~ 'queue'";
        assert_eq!(super::number(&mut client, roles), 0, "it makes no role");
    }
}

#[test]
fn no_right_lets_a_role_attach_code_to_the_tables() {
    let cluster = cluster("security-code", NO_WORKER);
    let mut owner = login(&cluster, "owner");
    Stock::make(&mut owner, "mail", "marked");
    run(
        &mut owner,
        "SELECT queue.grant_producer('producer'), queue.grant_worker('worker'), queue.grant_operator('operator')",
    );
    run(&mut cluster.connect(), "CREATE SCHEMA own; GRANT ALL ON SCHEMA own TO PUBLIC");
    for role in ["producer", "worker", "operator", "monitor"] {
        let mut client = login(&cluster, role);
        run(
            &mut client,
            "CREATE OR REPLACE FUNCTION pg_temp.evil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
             CREATE FUNCTION pg_temp.evil(bigint) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true'",
        );
        for statement in [
            "CREATE TRIGGER evil BEFORE INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION pg_temp.evil()",
            "CREATE TRIGGER evil BEFORE INSERT ON queue.history_default FOR EACH ROW EXECUTE FUNCTION pg_temp.evil()",
            "CREATE RULE evil AS ON INSERT TO queue.schedules DO ALSO SELECT pg_temp.evil(1)",
            "CREATE INDEX evil ON queue.dead_letters ((pg_temp.evil(id)))",
            "CREATE POLICY evil ON queue.tasks USING (pg_temp.evil(id))",
            "ALTER TABLE queue.tasks ADD CHECK (pg_temp.evil(id))",
            "ALTER TABLE queue.tasks ALTER payload SET DEFAULT '1'",
            "ALTER TABLE queue.tasks DISABLE TRIGGER ALL",
            "CREATE TABLE own.child (PRIMARY KEY (id)) INHERITS (queue.tasks)",
            "CREATE TABLE own.reference (id bigint REFERENCES queue.tasks)",
            "CREATE TABLE own.holder (task queue.tasks)",
            "CREATE TABLE own.holder (tasks queue.all_tasks[])",
            "CREATE FUNCTION own.holder(queue.queues) RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "CREATE FUNCTION queue.evil() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "CREATE TABLE queue_internal.evil ()",
            "CREATE CAST (queue.claimed_task AS text) WITH INOUT AS IMPLICIT",
            "TRUNCATE queue.tasks",
            "ALTER EXTENSION queue_ext UPDATE",
            "INSERT INTO queue.rights VALUES (CURRENT_USER::regrole, 'operator', NULL)",
            "UPDATE queue.rights SET queue = NULL",
            "SELECT setval('queue.tasks_id_seq', 1)",
            "SET queue.max_lease = '100d'",
            "SET queue.notify_interval = 1",
        ] {
            let code = attempt(&mut client, statement).expect_err(statement).0;
            assert!(["42501", "55P02"].contains(&code.as_str()), "{role}: {statement}: {code}");
        }
        // The triggers' own functions read the columns of the tables that they are for, unseen.
        for function in column(
            &mut client,
            "SELECT oid::regprocedure::text FROM pg_proc
             WHERE pronamespace = 'queue_internal'::regnamespace AND prorettype = 'trigger'::regtype",
        ) {
            run(&mut client, "CREATE TEMP TABLE IF NOT EXISTS own (a bigint, b bigint)");
            let trigger =
                format!("CREATE TRIGGER evil AFTER DELETE ON own FOR EACH ROW EXECUTE FUNCTION {function}");
            assert_eq!(attempt(&mut client, &trigger).expect_err(&trigger).0, "42501", "{role}: {trigger}");
        }
    }
}
