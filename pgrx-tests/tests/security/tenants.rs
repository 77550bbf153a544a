//! Rights for one queue only: tasks in other queues can neither be read nor changed nor guessed, by a query, a
//! function in it, an error, a public function natively or in SQL, or a cached plan of another role.

use std::collections::BTreeSet;

use super::verbs::{Stock, VERBS, commits};
use super::{NO_WORKER, attempt, cluster, column, login, number, refusal, run};
use postgres::Client;
use queue_ext_tests::Cluster;
use queue_ext_tests::cluster::major_version;

/// The roles that have a right for "acme" only.
const ROLES: [&str; 3] = ["acme_producer", "acme_worker", "acme_operator"];

struct Tenants {
    cluster: Cluster,
    admin: Client,
    bolt: Stock,
}

/// Two queues with one of everything, the history in its partitions, and then rights for each alone.
fn tenants(name: &str) -> Tenants {
    let cluster = cluster(name, NO_WORKER);
    let mut admin = cluster.connect();
    run(&mut admin, "SELECT queue.push('default'); ");
    run(&mut admin, "CALL queue.maintain()");
    // In the partition of the day, and in that for days without one.
    run(
        &mut admin,
        "INSERT INTO queue.history (id, queue, state, priority, run_at, attempt, token, created_at, finished_at, payload)
         SELECT 1000 + n, 'bolt', 'completed', 0, now(), 1, 1, now(), '2020-01-01', '\"bolt\"' FROM generate_series(1, 3) AS n",
    );
    Stock::make(&mut admin, "acme", "acme");
    let bolt = Stock::make(&mut admin, "bolt", "bolt");
    for tenant in ["acme", "bolt"] {
        for kind in ["producer", "worker", "operator"] {
            run(
                &mut admin,
                &format!(
                    "CREATE ROLE {tenant}_{kind} LOGIN; SELECT queue.grant_{kind}('{tenant}_{kind}', '{tenant}')"
                ),
            );
        }
    }
    // Expired leases, due schedules, and keys whose key_ttl has passed.
    run(
        &mut admin,
        "UPDATE queue.tasks SET lease_until = now() WHERE key = 'asked';
         UPDATE queue.schedules SET next_run_at = now(); UPDATE queue_internal.keys SET expires_at = now() WHERE key = 'done'",
    );
    Tenants { cluster, admin, bolt }
}

#[test]
fn nothing_of_another_queue_can_be_read_nor_shown_to_a_function_in_the_query() {
    let mut tenants = tenants("security-reads");
    shows_nothing_of_bolt(&mut tenants);
    // And the view of all tasks as it is for PostgreSQL 14.
    let script = std::fs::read_to_string("../sql/views.sql").expect("the views");
    let choice = script.split_once("DO $$").and_then(|(_, rest)| rest.split_once("$$;")).expect("a choice").0;
    run(&mut tenants.admin, "ALTER VIEW queue.all_tasks RESET (security_invoker)");
    run(&mut tenants.admin, &format!("DO $${}$$", choice.replace("150000", "990000")));
    shows_nothing_of_bolt(&mut tenants);
    let rows = number(&mut login(&tenants.cluster, "acme_operator"), "SELECT count(*) FROM queue.all_tasks");
    let all = number(&mut tenants.admin, "SELECT count(*) FROM queue.all_tasks WHERE queue = 'acme'");
    assert!(rows > 0 && rows == all, "{rows} of {all}");
}

fn shows_nothing_of_bolt(tenants: &mut Tenants) {
    let mut seen = BTreeSet::new();
    let mut looked = 0;
    for role in ROLES {
        let columns = column(
            &mut tenants.admin,
            &format!(
                "SELECT a.attrelid::regclass || ' ' || a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
                 WHERE c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
                   AND c.relkind IN ('r', 'p', 'v') AND a.attnum > 0
                   AND has_column_privilege('{role}', c.oid, a.attnum, 'SELECT')"
            ),
        );
        let mut client = login(&tenants.cluster, role);
        // So cheap that the planner would ask it before anything else.
        run(
            &mut client,
            "CREATE TEMP SEQUENCE seen;
             CREATE FUNCTION pg_temp.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS
             'BEGIN IF $1 ~* ''bolt'' THEN PERFORM nextval(''seen''); END IF; RETURN true; END'",
        );
        for name in &columns {
            let (relation, column) = name.split_once(' ').expect("a relation and a column");
            run(&mut client, "ALTER SEQUENCE seen RESTART");
            looked += number(
                &mut client,
                &format!("SELECT count(*) FROM {relation} AS r WHERE pg_temp.leak(r.{column}::text)"),
            );
            if number(&mut client, "SELECT count(*) FROM seen WHERE is_called") > 0 {
                seen.insert(name.clone());
            }
        }
    }
    assert_eq!(seen, BTreeSet::new(), "seen of a foreign queue");
    assert!(looked > 100, "there was much to see: {looked}");
}

#[test]
fn without_row_security_in_a_session_its_role_sees_no_more_and_has_the_same_rights() {
    let tenants = tenants("security-row-security");
    for fast_path in ["on", "off"] {
        let as_role = |role: &str, statement: &str| {
            let mut client = login(&tenants.cluster, role);
            run(&mut client, &format!("SET row_security = off; SET queue.fast_path = {fast_path}"));
            attempt(&mut client, statement).map_err(|(code, _)| code)
        };
        for (role, statement) in [
            ("acme_operator", "SELECT FROM queue.tasks"),
            ("acme_operator", "SELECT FROM queue.all_tasks"),
            ("acme_operator", "SELECT FROM queue.history"),
            ("acme_producer", "INSERT INTO queue.tasks (queue) VALUES ('bolt')"),
            ("acme_producer", "SELECT queue.push('bolt')"),
            ("acme_worker", "SELECT queue.claim('1 minute', 'bolt')"),
        ] {
            assert_eq!(as_role(role, statement), Err("42501".to_owned()), "{role}: {statement}");
        }
        for (role, statement) in [
            ("acme_producer", "SELECT queue.push('acme')"),
            ("acme_worker", "SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'acme')"),
            ("acme_operator", "SELECT queue.push('acme'), queue.pause('acme')"),
        ] {
            assert_eq!(as_role(role, statement), Ok(()), "{role}: {statement}");
        }
    }
}

/// All rows of the queue "bolt", wherever they are.
fn of_bolt(admin: &mut Client) -> String {
    let tables = column(
        admin,
        "SELECT format('SELECT %L || r::text AS line FROM %s AS r WHERE r.%I = ''bolt''', c.oid::regclass, c.oid::regclass,
                       a.attname)
         FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
         WHERE c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND c.relkind IN ('r', 'p')
           AND NOT c.relispartition
           AND a.attname = CASE c.relname WHEN 'queues' THEN 'name' ELSE 'queue' END",
    );
    column(admin, &format!("{} ORDER BY 1", tables.join(" UNION ALL "))).join("\n")
}

#[test]
fn nothing_of_another_queue_can_be_changed_by_any_function_or_statement() {
    let Tenants { admin, bolt, .. } = &mut tenants("security-writes");
    let before = of_bolt(admin);
    assert!(before.lines().count() > 15, "{before}");
    let mut statements: Vec<String> =
        VERBS.iter().filter(|verb| !commits(verb.2)).map(|verb| bolt.fill_in(verb.2)).collect();
    for table in column(
        admin,
        "SELECT c.oid::regclass::text FROM pg_class AS c WHERE c.relkind IN ('r', 'p') AND c.relname <> 'queues'
         AND c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)",
    ) {
        statements.push(format!("UPDATE {table} SET queue = 'bolt'"));
        statements.push(format!("UPDATE {table} SET queue = 'acme'"));
        statements.push(format!("UPDATE {table} SET queue = 'acme' WHERE queue = 'bolt'"));
        statements.push(format!("DELETE FROM {table}"));
        statements.push(format!("INSERT INTO {table} SELECT * FROM {table}"));
        statements.push(format!("INSERT INTO {table} (queue) VALUES ('bolt')"));
    }
    statements.extend(
        [
            "UPDATE queue.queues SET name = 'bolt'",
            "UPDATE queue.queues SET paused_at = now()",
            "DELETE FROM queue.queues",
            "UPDATE queue.tasks SET payload = '0', priority = 1, run_at = now()",
            "UPDATE queue.tasks SET payload = '0', priority = 1, run_at = now() WHERE state = 'queued'",
            "UPDATE queue.tasks SET token = 7",
            "UPDATE queue.schedules SET payload = '0'",
            "CALL queue.cancel_where('{\"all\": true}')",
            "CALL queue.redrive_where('{\"all\": true}')",
            "CALL queue.purge_where('{\"all\": true}')",
            "CALL queue.reprioritise_where('{\"all\": true}', 7)",
            "CALL queue.move_where('{\"all\": true}', 'acme')",
            "CALL queue.move_where('{\"all\": true}', 'bolt')",
            "SELECT queue_internal.reap(1000)",
            "SELECT queue_internal.retire_keys(1000)",
            "SELECT queue_internal.retire_group_starts(1000)",
            "SELECT queue_internal.fire_schedules(NULL, '0')",
        ]
        .map(str::to_owned),
    );
    let mut worked = 0;
    for fast_path in ["on", "off"] {
        for role in ROLES {
            for statement in &statements {
                run(
                    admin,
                    &format!(
                        "BEGIN; SET LOCAL queue.fast_path = {fast_path}; SAVEPOINT s; SET LOCAL ROLE {role}"
                    ),
                );
                match admin.batch_execute(statement) {
                    Ok(()) => worked += 1,
                    Err(error) => {
                        // Undone with its savepoint; and never refused because the server broke.
                        let (code, said) = refusal(&error);
                        let clear =
                            ["22", "23", "2F", "42", "55", "QX"].iter().any(|class| code.starts_with(class));
                        assert!(clear, "{role}: {statement}: {code} {said}");
                        run(admin, "ROLLBACK TO s");
                    }
                }
                run(admin, "RESET ROLE");
                assert_eq!(of_bolt(admin), before, "{role}: {statement}");
                run(admin, "ROLLBACK");
            }
        }
    }
    assert!(worked > 20, "some of it can be done, with what is one's own: {worked}");
}

#[test]
fn errors_do_not_distinguish_hidden_from_missing_queues() {
    let tenants = tenants("security-errors");
    let nothing = Stock::missing("none");
    let mut refused = 0;
    for role in ROLES {
        for fast_path in ["on", "off"] {
            let mut client = login(&tenants.cluster, role);
            run(&mut client, &format!("SET queue.fast_path = {fast_path}"));
            for (name, _, call) in VERBS.iter().filter(|verb| !commits(verb.2)) {
                let blank = |stock: &Stock, client: &mut Client| {
                    attempt(client, &stock.fill_in(call))
                        .map_err(|(code, said)| (code, stock.blank_out(&said)))
                };
                let hidden = blank(&tenants.bolt, &mut client);
                refused += i32::from(hidden.is_err());
                assert_eq!(hidden, blank(&nothing, &mut client), "{role}: {name}");
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn a_cached_plan_shows_each_role_only_its_own_rows() {
    let Tenants { admin, bolt, .. } = &mut tenants("security-plans");
    run(
        admin,
        "SET plan_cache_mode = force_generic_plan;
         PREPARE tasks AS SELECT DISTINCT queue FROM queue.tasks;
         PREPARE everything AS SELECT DISTINCT queue FROM queue.all_tasks AS a WHERE a.payload <> '0'",
    );
    let get = bolt.fill_in("SELECT queue.get(QUEUED)");
    let claim = "SELECT queue.claim('1 minute', 'bolt')";
    for role in ["postgres", "acme_operator", "bolt_operator", "acme_operator", "owner", "acme_operator"] {
        run(admin, &format!("SET ROLE {role}"));
        let own: &[&str] = match role {
            "acme_operator" => &["acme"],
            "bolt_operator" => &["bolt"],
            _ => &["acme", "bolt", "default"],
        };
        for plan in ["tasks", "everything"] {
            let mut rows: Vec<String> = Vec::new();
            for message in admin.simple_query(&format!("EXECUTE {plan}")).expect("execute") {
                if let postgres::SimpleQueryMessage::Row(row) = message {
                    rows.extend(row.get(0).map(str::to_owned));
                }
            }
            rows.sort();
            assert_eq!(rows, own, "{role}: {plan}");
        }
        for call in [get.as_str(), claim] {
            assert_eq!(attempt(admin, call).is_ok(), own.contains(&"bolt"), "{role}: {call}");
        }
        run(admin, "RESET ROLE");
    }
}

#[test]
fn a_parallel_query_shows_a_role_only_its_own_rows() {
    let Tenants { cluster, admin, .. } = &mut tenants("security-parallel");
    let force = if major_version() < 16 { "force_parallel_mode" } else { "debug_parallel_query" };
    let settings = format!(
        "SET {force} = on; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0"
    );
    for view in ["tasks", "all_tasks", "history", "dead_letters", "workers", "queues", "stats"] {
        let name = if view == "queues" { "name" } else { "queue" };
        for (role, own) in [("acme_operator", "acme"), ("bolt_operator", "bolt")] {
            // A new session each time: rights that were read before are not read again.
            let mut client = login(cluster, role);
            run(&mut client, &settings);
            let found = column(&mut client, &format!("SELECT DISTINCT {name} FROM queue.{view}"));
            assert!(found.iter().all(|queue| queue == own), "{role}: {view}: {found:?}");
        }
    }
    run(admin, &format!("SET ROLE acme_operator; {settings}"));
    let plan = column(admin, "EXPLAIN SELECT DISTINCT queue FROM queue.tasks").join("\n");
    assert!(plan.contains("Gather"), "{plan}");
}

#[test]
fn the_newest_tasks_of_all_are_found_along_indexes_by_every_role() {
    let Tenants { admin, .. } = &mut tenants("security-newest");
    run(admin, "SELECT queue.push_many('acme', array_fill('{}'::jsonb, ARRAY[20000])); ANALYZE queue.tasks");
    for role in ["acme_operator", "owner", "postgres"] {
        run(admin, &format!("SET ROLE {role}"));
        let plan =
            column(admin, "EXPLAIN SELECT * FROM queue.all_tasks ORDER BY id DESC LIMIT 100").join("\n");
        assert!(plan.contains("Index Scan Backward using tasks_pkey"), "{role}: {plan}");
        run(admin, "RESET ROLE");
    }
}

#[test]
fn the_scan_start_of_a_session_reveals_no_task_of_another_queue() {
    let Tenants { cluster, admin, .. } = &mut tenants("security-remembered");
    run(
        admin,
        "INSERT INTO queue.tasks (id, queue) SELECT 7654320000 + n, 'bolt' FROM generate_series(1, 300) AS n;
         SELECT queue.push('bolt', after => ARRAY[7654320000 + n]) FROM generate_series(1, 300) AS n",
    );
    let mut worker = login(cluster, "acme_worker");
    run(&mut worker, "SET queue.fast_path = off");
    for _ in 0..3 {
        run(&mut worker, "SELECT queue.claim(queue => 'acme', max_tasks => 100)");
    }
    let kept = column(&mut worker, "SELECT current_setting('queue_sweep.q' || md5('acme'))").join("");
    assert!(kept.contains(':') && !kept.contains("76543"), "{kept}");
}
