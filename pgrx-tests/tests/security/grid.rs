//! Every role against every object. What is expected stands in tables, which must name all there is.

use std::collections::{BTreeMap, BTreeSet};

use crate::verbs::{Stock, VERBS, commits, in_catalog};
use crate::{NO_WORKER, attempt, cluster, column, login, number, refusal, run};
use postgres::Client;
use queue_ext_tests::cluster::major_version;

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

/// What each role may do with a table, view or sequence: r SELECT, a INSERT, w UPDATE, d DELETE, U USAGE; in
/// parentheses what it may do with some columns only, see COLUMNS. Everything else is the owner's.
#[rustfmt::skip]
const RELATIONS: &[(&str, &str, &str, &str, &str)] = &[
    // name                           producer  worker    operator   monitor
    ("queue.tasks",                    "(raw)",  "rd(w)",  "rawd",    ""),
    ("queue.history",                  "(r)",    "a(r)",   "rawd",    ""),
    ("queue.history_default",          "",       "",       "",        ""),
    ("queue.history_DAY",              "",       "",       "",        ""),
    ("queue.dead_letters",             "(r)",    "a(r)",   "rawd",    ""),
    ("queue.queues",                   "r",      "r",      "rawd",    ""),
    ("queue.schedules",                "",       "",       "rawd",    ""),
    ("queue.bindings",                 "r",      "",       "rawd",    ""),
    ("queue.rights",                   "",       "",       "",        ""),
    ("queue_internal.guarded",         "",       "",       "",        ""),
    ("queue.all_tasks",                "",       "",       "r",       ""),
    ("queue.stats",                    "",       "",       "r",       "r"),
    ("queue.workers",                  "",       "",       "r",       "r"),
    ("queue.failing_schedules",        "",       "",       "r",       "r"),
    ("queue.tasks_id_seq",             "U",      "",       "rU",      ""),
    ("queue_internal.keys",            "raw",    "rwd",    "rawd",    ""),
    ("queue_internal.dependencies",    "ra",     "rd(w)",  "rad(w)",  ""),
    ("queue_internal.signals",         "a",      "rawd",   "rawd",    ""),
    ("queue_internal.signals_id_seq",  "",       "r",      "r",       ""),
    ("queue_internal.slots",           "",       "rw",     "rawd",    ""),
    ("queue_internal.token_mark",      "",       "",       "",        ""),
    ("queue_internal.tokens",          "",       "rw",     "rawd",    ""),
];

/// The columns, where it is only some.
const COLUMNS: &[(&str, &str, &str, &str)] = &[
    ("producer", "queue.tasks", "SELECT", "gate group_key id queue run_at state"),
    (
        "producer",
        "queue.tasks",
        "INSERT",
        "backoff group_key headers key max_attempts payload priority queue run_at state",
    ),
    ("producer", "queue.tasks", "UPDATE", "gate headers payload priority run_at updated_at"),
    ("producer", "queue.history", "SELECT", "id queue"),
    ("producer", "queue.dead_letters", "SELECT", "id queue"),
    (
        "worker",
        "queue.tasks",
        "UPDATE",
        "attempt claimed_at errors gate lease_until progress run_at state token updated_at worker",
    ),
    ("worker", "queue.history", "SELECT", "id queue state"),
    ("worker", "queue_internal.dependencies", "UPDATE", "predecessor_queue"),
    ("operator", "queue_internal.dependencies", "UPDATE", "predecessor_queue"),
    ("worker", "queue.dead_letters", "SELECT", "id queue"),
];

/// The rest, as the catalog would print it: schemas, the one type, and what queue_internal is made of. Its
/// functions run with the rights of who calls them; those of its triggers are nobody's to attach elsewhere.
const OTHERS: &[(&str, &str)] = &[
    ("schema queue: USAGE", "PWOM*"),
    ("schema queue: CREATE", "*"),
    ("schema queue_internal: USAGE", "PWO*"),
    ("schema queue_internal: CREATE", "*"),
    ("type queue.claimed_task: USAGE", "WO*"),
    ("type queue_internal.mark: USAGE", "*"),
    ("type queue_internal.passed_level: USAGE", "*"),
    ("queue_internal, every other function: EXECUTE", "PWO*"),
    ("queue_internal, every trigger's function: EXECUTE", "*"),
    // What queue.stats calls. It answers nobody who may not read the view: tests/counters.rs.
    ("queue_internal.counted: EXECUTE", "-PWOM*"),
];

fn setup(client: &mut Client) -> Stock {
    let stock = Stock::make(client, "mail", "marked");
    // With the partitions of the history there before the rights.
    run(client, "CALL queue.maintain()");
    run(
        client,
        "SELECT queue.grant_producer('producer'), queue.grant_worker('worker'), queue.grant_operator('operator')",
    );
    stock
}

fn may_call(role: char, allowed: &str) -> bool {
    role == '*' || allowed.contains(role)
}

#[test]
fn every_function_can_be_called_by_whom_the_table_says_and_then_works() {
    let cluster = cluster("security-functions", NO_WORKER);
    let mut owner = login(&cluster, "owner");
    let stock = setup(&mut owner);
    let mut listed = BTreeMap::new();
    for (name, ..) in VERBS {
        *listed.entry((*name).to_owned()).or_default() += 1;
    }
    assert_eq!(in_catalog(&mut owner), listed, "verbs.rs lists every public function, each of its forms");

    let mut wrong = Vec::new();
    for (role, letter) in ROLES {
        let mut client = login(&cluster, role);
        for (name, allowed, call) in VERBS {
            let call = stock.fill_in(call);
            let result = if commits(&call) {
                client.batch_execute(&call).map_err(|error| refusal(&error))
            } else {
                attempt(&mut client, &call)
            };
            // Refused for want of rights, or done; an error of another kind would prove neither.
            let right = match &result {
                Ok(()) => may_call(letter, allowed),
                Err((code, _)) => code == "42501" && !may_call(letter, allowed),
            };
            let execute = format!(
                "SELECT count(*) FROM pg_proc WHERE pronamespace = 'queue'::regnamespace AND proname = '{name}'
                 AND has_function_privilege('{role}', oid, 'EXECUTE') <> {}",
                may_call(letter, allowed)
            );
            if !right || number(&mut owner, &execute) != 0 {
                wrong.push(format!("{role}: {call}: {result:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What a role may do with a relation, in the letters of the table.
fn rights(client: &mut Client, role: &str, relation: &str, sequence: bool) -> String {
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
fn every_relation_can_be_used_by_whom_the_table_says() {
    let cluster = cluster("security-relations", NO_WORKER);
    let mut client = login(&cluster, "owner");
    setup(&mut client);
    let relations = column(
        &mut client,
        "SELECT n.nspname || '.' || c.relname || ' ' || c.relkind::text FROM pg_class AS c
         JOIN pg_namespace AS n ON n.oid = c.relnamespace
         WHERE n.nspname IN ('queue', 'queue_internal') AND c.relkind NOT IN ('i', 'I', 't', 'c') ORDER BY 1",
    );
    let generic = |name: &str| match name.split_once("history_2") {
        Some((schema, day)) if day.len() == 7 => format!("{schema}history_DAY"),
        _ => name.to_owned(),
    };
    let found: BTreeSet<String> =
        relations.iter().filter_map(|line| line.split_once(' ')).map(|(name, _)| generic(name)).collect();
    let listed: BTreeSet<String> = RELATIONS.iter().map(|row| row.0.to_owned()).collect();
    assert_eq!(found, listed, "RELATIONS lists every table, view and sequence");

    let mut wrong = Vec::new();
    for (relation, kind) in relations.iter().filter_map(|line| line.split_once(' ')) {
        let (_, producer, worker, operator, monitor) =
            RELATIONS.iter().find(|row| row.0 == generic(relation)).expect("listed");
        let everything = match (kind, major_version()) {
            ("S", _) => "rwU",
            (_, 17..) => "rawdDxtm",
            _ => "rawdDxt",
        };
        for (role, expected) in [
            ("nobody", ""),
            ("producer", producer),
            ("worker", worker),
            ("operator", operator),
            ("monitor", monitor),
            ("owner", everything),
            ("postgres", everything),
        ] {
            let found = rights(&mut client, role, relation, kind == "S");
            if found != *expected {
                wrong.push(format!("{role} may do \"{found}\" with {relation}, and not \"{expected}\""));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

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
    assert_eq!(BTreeSet::from_iter(columns), expected);
}

#[test]
fn schemas_types_and_internal_functions_are_for_whom_the_table_says() {
    let cluster = cluster("security-others", NO_WORKER);
    let mut client = login(&cluster, "owner");
    setup(&mut client);
    let kinds = column(
        &mut client,
        "SELECT DISTINCT d.classid::regclass::text FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
         WHERE e.extname = 'queue_ext' AND d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass ORDER BY 1",
    );
    assert_eq!(
        kinds,
        ["pg_class", "pg_namespace", "pg_proc", "pg_type"],
        "there is nothing that no table here lists"
    );

    let query = format!(
        "WITH role (name, letter) AS (VALUES {}),
         able (object, letter, able) AS (
             SELECT format('schema %s: %s', n.nspname, k), r.letter, has_schema_privilege(r.name, n.oid, k)
             FROM pg_namespace AS n, role AS r, unnest('{{USAGE, CREATE}}'::text[]) AS k WHERE n.nspname ~ '^queue'
             UNION ALL
             SELECT format('type %s: USAGE', t.oid::regtype), r.letter, has_type_privilege(r.name, t.oid, 'USAGE')
             FROM pg_type AS t JOIN pg_class AS c ON c.oid = t.typrelid AND c.relkind = 'c', role AS r
             WHERE t.typnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
             UNION ALL
             SELECT format('type %s: USAGE', t.oid::regtype), r.letter, has_type_privilege(r.name, t.oid, 'USAGE')
             FROM pg_type AS t, role AS r
             WHERE t.typnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND t.typtype <> 'c' AND t.typelem = 0
             UNION ALL
             SELECT CASE WHEN p.prorettype = 'trigger'::regtype THEN 'queue_internal, every trigger''s function: EXECUTE'
                         WHEN p.proname = 'counted' THEN 'queue_internal.counted: EXECUTE'
                         ELSE 'queue_internal, every other function: EXECUTE' END,
                    r.letter, has_function_privilege(r.name, p.oid, 'EXECUTE')
             FROM pg_proc AS p, role AS r WHERE p.pronamespace = 'queue_internal'::regnamespace)
         SELECT object || ' ' || coalesce(string_agg(DISTINCT letter, '') FILTER (WHERE able), '')
                || coalesce(' but not each for ' || string_agg(DISTINCT letter, '') FILTER (WHERE NOT able AND mixed), '')
         FROM (SELECT a.*, bool_or(able) OVER w <> bool_and(able) OVER w AS mixed FROM able AS a
               WINDOW w AS (PARTITION BY object, letter)) AS a
         GROUP BY object",
        ROLES.map(|(name, letter)| format!("('{name}', '{letter}')")).join(", ")
    );
    let letters = |line: &str| {
        let (object, letters) = line.rsplit_once(' ').expect("two parts");
        (object.to_owned(), letters.chars().collect::<BTreeSet<char>>())
    };
    let found: BTreeMap<_, _> = column(&mut client, &query).iter().map(|line| letters(line)).collect();
    let expected: BTreeMap<_, _> =
        OTHERS.iter().map(|(object, allowed)| letters(&format!("{object} {allowed}"))).collect();
    assert_eq!(found, expected);
}

#[test]
fn no_function_runs_with_more_rights_than_its_caller_has() {
    let cluster = cluster("security-definer", NO_WORKER);
    let mut client = cluster.connect();
    let definers = "SELECT oid::regprocedure::text FROM pg_proc WHERE prosecdef
                    AND pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)";
    assert_eq!(column(&mut client, definers), [""; 0]);
    // Views do, in part: queue.stats and queue.workers, which count.
    let views = "SELECT c.relname::text FROM pg_class AS c WHERE c.relkind IN ('v', 'm')
                 AND c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
                 AND NOT coalesce('security_invoker=true' = ANY (c.reloptions), false) ORDER BY 1";
    assert_eq!(column(&mut client, views), ["failing_schedules", "stats", "workers"]);
    assert_eq!(
        number(&mut client, "SELECT count(*) FROM pg_roles WHERE rolname ~ 'queue'"),
        0,
        "it makes no role"
    );
}

#[test]
fn no_right_lets_a_role_put_code_of_its_own_on_the_tables() {
    let cluster = cluster("security-code", NO_WORKER);
    setup(&mut login(&cluster, "owner"));
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
