//! Plans. A session keeps the plan of a statement, which it may have made while the tables were empty. Whatever fills up
//! later, and is none of the statement's business, must cost it nothing. This runs everything that queues do in one session,
//! fills all tables from another, and runs everything again with auto_explain, which says how many rows each part of each plan
//! reads.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use queue_ext_tests::cluster::{Cluster, bindir, pg_config};
use queue_ext_tests::{Edition, Worker, number, run};
use serde_json::Value;

/// The first five plans of a statement are made for its arguments, the next one stays.
const ROUNDS: usize = 7;

/// No part of a plan may read more rows. fill.sql adds 4,000 of each kind, and many.sql needs up to 1,800 of one kind.
const MOST: u64 = 2_500;

/// Statements that read everything because that is their task: the first group of a queue, a smaller limit of groups, reports
/// for people, bulk changes by a filter, and the search for expired leases.
const READ_ALL: [&str; 8] = [
    "generate_series(0, 4095)",
    "FROM queue_internal.locks AS l WHERE l.queue = lock_claimed.queue",
    "queue.stats",
    // queue.stats and queue.workers, where they count: count_tables and running_tasks.
    "AS number, min(t.run_at) FILTER",
    "t.state = 'running' AND coalesce(t.queue",
    "'warning'",
    "t.id > $1 AND t.id <=",
    "array_agg(t.id ORDER BY t.lease_until DESC)",
];

/// Adds up what a plan and its parts read that is too much.
fn too_much(plan: &Value, path: &str, found: &mut Vec<(u64, String)>) {
    let number = |name: &str| plan[name].as_f64().unwrap_or(0.0);
    let rows =
        number("Actual Rows") + number("Rows Removed by Filter") + number("Rows Removed by Index Recheck");
    let rows = (rows * number("Actual Loops")) as u64;
    let word = |name: &str| plan[name].as_str().unwrap_or_default();
    let part = format!("{path} > {} {}{}", word("Node Type"), word("Index Name"), word("Relation Name"));
    if rows > MOST {
        found.push((rows, format!("{part} {} {}", word("Index Cond"), word("Filter"))));
    }
    for part_of in plan["Plans"].as_array().into_iter().flatten() {
        too_much(part_of, &part, found);
    }
}

/// Without it there are no plans to look at.
fn has_auto_explain() -> bool {
    let has = Path::new(&pg_config("--pkglibdir")).join("auto_explain.so").exists();
    if !has {
        println!("skipped: this server comes without auto_explain");
    }
    has
}

/// From here on, psql prints the plan of each statement.
const EXPLAIN: &str = "LOAD 'auto_explain';
               SET auto_explain.log_min_duration = 0;
               SET auto_explain.log_nested_statements = on;
               SET auto_explain.log_analyze = on;
               SET auto_explain.log_timing = off;
               SET auto_explain.log_format = json;
               SET auto_explain.log_level = notice;
               SET client_min_messages = notice;\n";

/// Runs a script for psql; returns how many plans it printed, and what reads too much.
fn plans_of(cluster: &Cluster, script: &str) -> (usize, Vec<String>) {
    let file = cluster.folder().join("plans.sql");
    std::fs::write(&file, script).expect("write the script");
    let done = Command::new(bindir().join("psql"))
        .args(["-X", "-q", "-o", "/dev/null", "-U", "postgres", "-d", "postgres", "-h"])
        .arg(cluster.folder())
        .arg("-f")
        .arg(&file)
        .output()
        .expect("run psql");
    let said = String::from_utf8_lossy(&done.stderr);
    for line in said.lines().filter(|line| line.contains("ERROR")) {
        println!("{line}");
    }
    let mut plans = 0;
    let mut worst = BTreeMap::new();
    for text in said.split("plan:\n").skip(1) {
        let end = text.find("\n}").expect("the end of a plan") + 2;
        let plan: Value = serde_json::from_str(&text[..end]).expect("a plan");
        let statement =
            plan["Query Text"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        plans += 1;
        if READ_ALL.iter().any(|text| statement.contains(text)) {
            continue;
        }
        let mut found = Vec::new();
        too_much(&plan["Plan"], "", &mut found);
        for (rows, part) in found {
            let of = worst
                .entry(format!("{}\n    {part}", statement.chars().take(300).collect::<String>()))
                .or_insert(0);
            *of = rows.max(*of);
        }
    }
    (plans, worst.iter().map(|(what, rows)| format!("{rows} rows: {what}")).collect())
}

#[test]
fn plans_made_for_empty_tables_stay_good_when_the_tables_fill_up() {
    if !has_auto_explain() {
        return;
    }
    let cluster = Edition::SqlOnly.cluster("plans", Worker::Off);
    let mut client = cluster.connect();
    // ANALYZE would have the session plan anew.
    run(&mut client, "ALTER SYSTEM SET autovacuum = off");
    run(&mut client, "SELECT pg_reload_conf()");
    Edition::SqlOnly.install(&cluster, "postgres");
    run(
        &mut client,
        r#"SELECT queue.create('p', '{"key_ttl": "1 minute", "backoff": {"base": "0"}}'), queue.create('f'),
                  queue.create('g', '{"max_running_per_group": 2, "group_rate_limit": 100, "rate_period": "1 second",
                                      "delayed_head": "pass"}'),
                  queue.create('l', '{"max_running": 50, "rate_limit": 100, "rate_period": "1 second", "ageing": "1 hour"}'),
                  queue.create('h', '{"fair_groups": true}')"#,
    );
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans");
    let psql = format!(
        "'{}' -X -h '{}' -U postgres postgres",
        bindir().join("psql").display(),
        cluster.folder().display()
    );
    let mut script = String::from("SET client_min_messages = error;\n\\set id 1\n\\set token 1\n");
    // Before a round admits tasks of the group, and so deletes the row about it.
    const RETIRE_GROUPS: &str = "SELECT queue_internal.retire_groups();\n";
    script += RETIRE_GROUPS;
    let round = |number: usize| format!("\\set r {number}\n\\i '{}/round.sql'\n", scripts.display());
    (0..ROUNDS).for_each(|number| script += &round(number));
    script += &format!("\\! {psql} -q -v ON_ERROR_STOP=1 -f '{}/fill.sql'\n", scripts.display());
    script += EXPLAIN;
    script += RETIRE_GROUPS;
    script += &round(ROUNDS);
    script += &format!("\\i '{}/many.sql'\n", scripts.display());
    let (plans, worst) = plans_of(&cluster, &script);
    println!("{plans} plans");
    assert!(plans > 5_000, "{plans} plans only");
    assert!(worst.is_empty(), "read too much:\n{}", worst.join("\n"));
}

/// With statistics from when no task ran, the planner expects one running task however many tasks a call is about.
#[test]
fn calls_for_many_tasks_do_not_compare_each_with_each() {
    if !has_auto_explain() {
        return;
    }
    let cluster = Edition::SqlOnly.cluster("many_tasks", Worker::Off);
    let mut client = cluster.connect();
    run(&mut client, "ALTER SYSTEM SET autovacuum = off");
    run(&mut client, "SELECT pg_reload_conf()");
    Edition::SqlOnly.install(&cluster, "postgres");
    run(&mut client, "SELECT queue.push('default', delay => '1 hour') FROM generate_series(1, 5)");
    run(&mut client, "ANALYZE");
    run(
        &mut client,
        "SELECT queue.push_many('default', array_agg('1'::jsonb), keys => array_agg(CASE WHEN i % 3 = 0 THEN i::text END))
         FROM generate_series(1, 1500) AS i",
    );
    let claim = "SELECT array_agg(c.id) AS ids, array_agg(c.token) AS tokens FROM queue.claim(max_tasks => 1500) AS c \\gset\n";
    let script = [
        claim,
        EXPLAIN,
        "SELECT count(*) FROM queue.extend_many(:'ids', :'tokens');
         SELECT count(*) FROM queue.extend_many(:'ids', :'tokens', skip_locked => true);
         SELECT count(*) FROM queue.release_many(:'ids', :'tokens');\n",
        claim,
        "SELECT count(*) FROM queue.fail_many(:'ids', :'tokens', array_fill('x'::text, ARRAY[1500]), permanent => true);
         SELECT queue.redrive('default');\n",
        claim,
        "SELECT count(*) FROM queue.complete_many(:'ids', :'tokens');\n",
    ]
    .concat();
    let (plans, worst) = plans_of(&cluster, &script);
    assert!(plans > 5_000, "{plans} plans only");
    assert!(worst.is_empty(), "read too much:\n{}", worst.join("\n"));
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue.history"), 1500);
}

/// With statistics of an empty table, or of one with a single row, the planner expects one task in it.
#[test]
fn a_claim_reads_what_it_claims_and_returns_it_in_order() {
    if !has_auto_explain() {
        return;
    }
    for rows in [0, 1, 5] {
        let cluster = Edition::SqlOnly.cluster("claim_plan", Worker::Off);
        let mut client = cluster.connect();
        run(&mut client, "ALTER SYSTEM SET autovacuum = off");
        run(&mut client, "SELECT pg_reload_conf()");
        Edition::SqlOnly.install(&cluster, "postgres");
        run(&mut client, &format!("SELECT queue.push('default') FROM generate_series(1, {rows})"));
        run(&mut client, "VACUUM ANALYZE");
        let script = [
            "SELECT count(*) FROM queue.claim(max_tasks => 10);
             SELECT count(queue.push('default', run_at => now() - i * interval '1 second')) FROM generate_series(1, 4000) AS i;
             CREATE TABLE claimed (id bigint, run_at timestamptz, place bigint);\n",
            EXPLAIN,
            "INSERT INTO claimed SELECT c.id, c.run_at, c.ordinality FROM queue.claim(max_tasks => 100) WITH ORDINALITY AS c;
             SELECT count(*) FROM queue.claim(max_tasks => 1);
             SELECT count(*) FROM queue.claim(max_tasks => 1000);\n",
        ]
        .concat();
        let (plans, worst) = plans_of(&cluster, &script);
        assert!(plans > 5, "{plans} plans only");
        assert!(worst.is_empty(), "with statistics of {rows} rows, read too much:\n{}", worst.join("\n"));
        let misplaced = "SELECT count(*) FROM (SELECT place - row_number() OVER (ORDER BY run_at, id) AS off FROM claimed) AS c WHERE off <> 0";
        assert_eq!(number(&mut client, misplaced), 0, "with statistics of {rows} rows");
        assert_eq!(number(&mut client, "SELECT count(*) FROM claimed"), 100);
    }
}
