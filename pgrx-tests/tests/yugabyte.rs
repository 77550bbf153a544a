//! The edition for YugabyteDB on PostgreSQL: its rules, checked with PostgreSQL's parser, and its buckets. The suites
//! `regress`, `isolation` and `policies` test its functions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use postgres::Client;
use queue_ext_tests::cluster::{home, run_folder};
use queue_ext_tests::{Cluster, Edition, SOON, WOKEN, Worker, brief, eventually, number, run, stalls};

const BUCKETS: usize = 8;

fn script() -> PathBuf {
    Edition::Yugabyte.script().expect("it is a script")
}

/// The findings of the linter for a script, one a line.
fn lint(script: &Path) -> Vec<String> {
    let done = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("dialect.py"))
        .arg(script)
        .env("PYTHONPATH", home().join("lint"))
        .output()
        .expect("run dialect.py");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(said.contains(" functions with "), "{said}{}", String::from_utf8_lossy(&done.stderr));
    let lines: Vec<String> =
        said.lines().skip(1).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    assert_eq!(done.status.success(), lines.is_empty(), "{said}");
    lines
}

#[test]
fn the_script_has_nothing_that_yugabytedb_lacks() {
    // The result does not depend on the version.
    if !brief() {
        assert_eq!(lint(&script()), [""; 0]);
    }
}

/// A rule, and a statement that breaks it.
const BROKEN: [(&str, &str); 21] = [
    ("lock-table", "LOCK TABLE queue.tasks"),
    ("lock-table", "DO LANGUAGE plpgsql 'BEGIN EXECUTE ''LOCK TABLE queue.tasks''; END'"),
    ("notify", "NOTIFY queue_default"),
    (
        "transition-tables",
        "CREATE TRIGGER t AFTER INSERT ON queue.tasks REFERENCING NEW TABLE AS n EXECUTE FUNCTION f()",
    ),
    ("inheritance", "CREATE TABLE queue.more () INHERITS (queue.tasks)"),
    ("exclusion", "CREATE TABLE queue.spans (s int4range, EXCLUDE USING gist (s WITH &&))"),
    ("index-method", "CREATE INDEX i ON queue.history_default USING brin (finished_at)"),
    ("generated", "CREATE TABLE queue.twice (a int, b int GENERATED ALWAYS AS (a * 2) STORED)"),
    ("deferrable", "CREATE TABLE queue.later (a int UNIQUE DEFERRABLE)"),
    ("foreign-key", "CREATE TABLE queue.child (q text REFERENCES queue.queues)"),
    ("unlogged", "CREATE UNLOGGED TABLE queue.fast (a int)"),
    ("rule", "CREATE RULE r AS ON INSERT TO queue.stats DO INSTEAD NOTHING"),
    ("system-column", "SELECT t.ctid FROM queue.tasks AS t"),
    ("merge", "MERGE INTO queue.queues AS q USING queue.tasks AS t ON false WHEN MATCHED THEN DELETE"),
    ("hot-tablet", "CREATE INDEX i ON queue.tasks (queue, priority)"),
    ("hot-tablet", "CREATE INDEX i ON queue.history_default (finished_at)"),
    ("sequence-cache", "CREATE SEQUENCE queue.slow CACHE 1"),
    ("sequence-cache", "CREATE TABLE queue.named (id bigint GENERATED ALWAYS AS IDENTITY)"),
    (
        "bucket",
        "SELECT t.id FROM queue.tasks AS t WHERE t.queue = 'a' AND t.admission < 2 ORDER BY t.priority LIMIT 1",
    ),
    ("advisory-lock", "SELECT pg_try_advisory_xact_lock(1)"),
    ("notify", "SELECT pg_notify('a', 'b')"),
];

#[test]
fn breaking_each_rule_is_detected() {
    if brief() {
        return;
    }
    // Alone, and where it fits into a body, there too, deep inside.
    let folder = run_folder("yugabyte-dialect");
    std::fs::create_dir_all(&folder).expect("create the folder");
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("write a script");
        path
    };
    let rules = |lines: &[String]| -> BTreeMap<String, usize> {
        let mut rules = BTreeMap::new();
        for line in lines {
            *rules.entry(line.split(':').next().expect("a rule").to_owned()).or_default() += 1;
        }
        rules
    };
    let mut bodies = String::new();
    let mut expected: BTreeSet<&str> = BTreeSet::new();
    for (n, (rule, statement)) in BROKEN.iter().enumerate() {
        let alone = write("alone.sql", format!("{statement};\n"));
        assert_eq!(rules(&lint(&alone)).get(*rule), Some(&1), "{statement}");
        if !statement.starts_with("CREATE SEQUENCE")
            && !statement.starts_with("DO ")
            && !statement.contains("IDENTITY")
        {
            let statement =
                statement.replacen("SELECT", "PERFORM", usize::from(statement.starts_with("SELECT")));
            bodies += &format!(
                "CREATE FUNCTION f{n}() RETURNS void LANGUAGE plpgsql AS $$
                 BEGIN FOR i IN 1 .. 2 LOOP IF i > 1 THEN {statement}; END IF; END LOOP; END $$;\n"
            );
            expected.insert(rule);
        }
    }
    let found = rules(&lint(&write("bodies.sql", bodies)));
    let found: BTreeSet<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(found, expected, "in the bodies of functions");
    // The edition that this one is made of breaks several.
    let portable = rules(&lint(&Edition::SqlOnly.script().expect("it is a script")));
    for rule in ["lock-table", "transition-tables", "index-method", "hot-tablet", "sequence-cache"] {
        assert!(portable.contains_key(rule), "{rule}: {portable:?}");
    }
}

#[test]
fn tasks_are_spread_over_buckets_and_found_in_all_of_them() {
    if brief() {
        return;
    }
    let cluster = Edition::Yugabyte.cluster("buckets", Worker::Off);
    Edition::Yugabyte.install(&cluster, "postgres");
    let mut client = cluster.connect();
    spread(&mut client);
    fanned_out(&mut client);
    ordered_in_a_bucket(&mut client);
    low_water(&mut client);
    everybody_gets_his_own(&cluster);
}

fn spread(client: &mut Client) {
    run(client, "SELECT queue.push('default', to_jsonb(n)) FROM generate_series(1, 800) AS n");
    let rows =
        client.query("SELECT bucket, count(*) FROM queue.tasks GROUP BY bucket", &[]).expect("buckets");
    assert_eq!(rows.len(), BUCKETS);
    assert!(rows.iter().all(|row| (50..200).contains(&row.get::<_, i64>(1))), "{rows:?}");
    // The first bucket that a claim reads is random.
    let rows = client
        .query(
            "SELECT DISTINCT t.bucket FROM generate_series(1, 100), queue.claim() AS c JOIN queue.tasks AS t USING (id)",
            &[],
        )
        .expect("claim");
    let one_call = rows.len();
    let mut buckets = BTreeSet::new();
    for _ in 0..60 {
        let row = client
            .query_one(
                "SELECT (SELECT t.bucket FROM queue.tasks AS t WHERE t.id = c.id) FROM queue.claim() AS c",
                &[],
            )
            .expect("claim");
        buckets.insert(row.get::<_, i16>(0));
    }
    assert_eq!(buckets.len(), BUCKETS, "one call saw {one_call}");
    // One claim takes from several, without passing over any.
    let rest = number(client, "SELECT count(*) FROM queue.tasks WHERE state = 'queued'");
    assert_eq!(number(client, "SELECT count(*) FROM queue.claim(max_tasks => 1000)"), rest);
    run(client, "DELETE FROM queue.tasks");
}

/// One task, in whichever bucket, is found by each claim, and by each wait.
fn fanned_out(client: &mut Client) {
    for bucket in 0..BUCKETS {
        run(client, &format!("INSERT INTO queue.tasks (queue, bucket) VALUES ('default', {bucket})"));
        assert!(client.query_one("CALL queue.wait(timeout => '0')", &[]).expect("wait").get::<_, bool>(0));
        run(client, "SELECT queue.complete(id, token) FROM queue.claim()");
        assert_eq!(number(client, "SELECT count(*) FROM queue.tasks"), 0, "bucket {bucket}");
    }
    assert!(!client.query_one("CALL queue.wait(timeout => '0')", &[]).expect("wait").get::<_, bool>(0));
}

fn ordered_in_a_bucket(client: &mut Client) {
    for ageing in ["null", "\"1 hour\""] {
        run(client, &format!("SELECT queue.configure('default', '{{\"ageing\": {ageing}}}')"));
        run(
            client,
            "INSERT INTO queue.tasks (queue, bucket, priority, run_at)
             SELECT 'default', 3, n % 5, now() - n * interval '1 second' FROM generate_series(1, 50) AS n",
        );
        let sorted = client
            .query_one("SELECT array_agg(id ORDER BY priority, run_at, id) FROM queue.tasks", &[])
            .expect("the order");
        let claimed: Vec<i64> = (0..50).map(|_| number(client, "SELECT id FROM queue.claim()")).collect();
        assert_eq!(sorted.get::<_, Vec<i64>>(0), claimed, "ageing {ageing}");
        run(client, "DELETE FROM queue.tasks");
    }
    run(client, "SELECT queue.configure('default', '{\"ageing\": null}')");
}

/// A task before the scan start of a session is found within seconds, and the scan start hides no later task.
fn low_water(client: &mut Client) {
    let push = |client: &mut Client, age: &str| {
        let query = format!(
            "INSERT INTO queue.tasks (queue, bucket, run_at) VALUES ('default', 0, clock_timestamp() - interval '{age}') RETURNING id"
        );
        number(client, &query)
    };
    let claim = |client: &mut Client| number(client, "SELECT coalesce((SELECT id FROM queue.claim()), 0)");
    // A delayed first task does not move the scan start past later pushes.
    push(client, "-1 hour");
    assert_eq!(claim(client), 0);
    let now = push(client, "0");
    assert_eq!(claim(client), now);
    // The scan start is used: tasks before it are not found at first, as long as there are others.
    let (first, second) = (push(client, "10 seconds"), push(client, "9 seconds"));
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(claim(client), first);
    let marked = Instant::now();
    let early = push(client, "1 minute");
    let next = claim(client);
    assert!(next == second || marked.elapsed() > Duration::from_millis(900), "the mark was not used: {next}");
    eventually("the early one is met", SOON, || next == early || claim(client) == early);
    assert!(stalls::since(marked) < WOKEN, "{:?}", marked.elapsed());
    run(client, "DELETE FROM queue.tasks");
}

/// Eight claimers at once: each task once, and none left.
fn everybody_gets_his_own(cluster: &Cluster) {
    const TASKS: usize = 2000;
    let mut client = cluster.connect();
    run(
        &mut client,
        &format!(
            "SELECT queue.push_many('default', array_fill('{{}}'::jsonb, ARRAY[{TASKS}])); ANALYZE queue.tasks"
        ),
    );
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let mut client = cluster.connect();
            std::thread::spawn(move || {
                let mut mine: Vec<i64> = Vec::new();
                loop {
                    let rows = client
                        .query(
                            "SELECT id, queue.complete(id, token)::text FROM queue.claim(max_tasks => 5)",
                            &[],
                        )
                        .expect("work");
                    if rows.is_empty() {
                        return mine;
                    }
                    mine.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
                }
            })
        })
        .collect();
    let claimed: Vec<i64> =
        threads.into_iter().flat_map(|thread| thread.join().expect("a claimer")).collect();
    assert_eq!(claimed.len(), TASKS);
    assert_eq!(claimed.iter().collect::<BTreeSet<_>>().len(), TASKS, "a task was claimed twice");
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue.tasks"), 0);
}
