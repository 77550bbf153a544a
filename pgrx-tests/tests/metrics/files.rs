//! The files: both exporters report the same, the queries run and cost little, and the rules pass their tests.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use postgres::Client;
use postgres::types::Type;
use queue_ext_tests::{Cluster, Settings, brief};
use serde_json::Value;

use super::stack::{fetched, file, output, text, yaml};
use super::{cluster, monitor, run};

/// Whatever has a label has few values: there are as many series as queues, times a handful.
const LABELS: [&str; 6] = ["check", "outcome", "queue", "reason", "state", "table"];

/// One metric in either format: help, labels, column, query.
#[derive(Debug, PartialEq)]
pub struct Metric {
    help: String,
    labels: Vec<String>,
    values: Vec<String>,
    query: String,
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a string: {value}")).to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn strings(value: &Value) -> Vec<String> {
    list(value).iter().map(string).collect()
}

/// The metrics of a collector file for sql_exporter, and which of them are counters. As its own reader does, it
/// takes no key that it does not know.
fn collector(name: &str) -> (BTreeMap<String, Metric>, BTreeSet<String>) {
    let source = yaml(name);
    let known = ["collector_name", "min_interval", "metrics", "queries"];
    assert!(source.as_object().expect("a map").keys().all(|key| known.contains(&key.as_str())), "{name}");
    let queries: BTreeMap<String, String> = list(&source["queries"])
        .iter()
        .map(|query| (string(&query["query_name"]), string(&query["query"])))
        .collect();
    let (mut metrics, mut counters) = (BTreeMap::new(), BTreeSet::new());
    for metric in list(&source["metrics"]) {
        let known = ["metric_name", "type", "help", "key_labels", "values", "query_ref"];
        assert!(
            metric.as_object().expect("a map").keys().all(|key| known.contains(&key.as_str())),
            "{metric}"
        );
        let name = string(&metric["metric_name"]);
        match metric["type"].as_str() {
            Some("counter") => assert!(counters.insert(name.clone())),
            other => assert_eq!(other, Some("gauge"), "{name}"),
        }
        let query = queries[metric["query_ref"].as_str().expect("a query")].clone();
        let (labels, values) = (strings(&metric["key_labels"]), strings(&metric["values"]));
        let metric = Metric { help: string(&metric["help"]), labels, values, query };
        assert!(metrics.insert(name.clone(), metric).is_none(), "{name} is there twice");
    }
    (metrics, counters)
}

/// Of both collector files.
pub fn metrics() -> (BTreeMap<String, Metric>, BTreeSet<String>) {
    let (mut metrics, mut counters) = collector("queue.collector.yml");
    let (more, other) = collector("queue_health.collector.yml");
    metrics.extend(more);
    counters.extend(other);
    (metrics, counters)
}

/// Runs the query of a metric and returns it as Prometheus gets it.
fn expose(client: &mut Client, name: &str, metric: &Metric, counter: bool) -> String {
    let kind = if counter { "counter" } else { "gauge" };
    let mut lines = format!("# HELP {name} {}\n# TYPE {name} {kind}\n", metric.help);
    let statement = client.prepare(&metric.query).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    let kind_of = |column: &String| {
        let found = statement.columns().iter().find(|it| it.name() == column);
        found.unwrap_or_else(|| panic!("{name} lacks the column {column}")).type_().clone()
    };
    metric.labels.iter().for_each(|label| assert_eq!(kind_of(label), Type::TEXT, "{name}: {label}"));
    let [value] = metric.values.as_slice() else { panic!("{name} has {:?}", metric.values) };
    assert_eq!(kind_of(value), Type::FLOAT8, "{name}: {value}");
    for row in client.query(&statement, &[]).expect(name) {
        let labels: Vec<_> = metric
            .labels
            .iter()
            .map(|label| format!("{label}=\"{}\"", row.get::<_, String>(label.as_str())))
            .collect();
        lines += &format!("{name}{{{}}} {}\n", labels.join(","), row.get::<_, f64>(value.as_str()));
    }
    lines
}

#[test]
fn both_exporters_report_the_same_as_pg_monitor() {
    if brief() {
        return;
    }
    let (metrics, counters) = metrics();
    let source = yaml("prometheus-sql-exporter.yml");
    let mut debian = BTreeMap::new();
    for metric in list(&source["jobs"]).iter().flat_map(|job| list(&job["queries"])) {
        let query = string(&source["queries"][string(&metric["query_ref"])]);
        let (labels, values) = (strings(&metric["labels"]), strings(&metric["values"]));
        debian
            .insert(string(&metric["name"]), Metric { help: string(&metric["help"]), labels, values, query });
    }
    assert_eq!(debian, metrics, "Debian's exporter tells something else");

    let cluster = cluster("metrics-files");
    let mut owner = cluster.connect();
    // A call with a key falls back to SQL, so that there is a reason to count.
    run(
        &mut owner,
        "SELECT queue.push('default', key => 'a'); SELECT count(queue.push('default')) FROM generate_series(1, 999)",
    );
    let mut client = monitor(&cluster);
    let mut all = String::new();
    for (name, metric) in &metrics {
        assert!(name.starts_with("queue_"), "{name}");
        assert_eq!(name.ends_with("_total"), counters.contains(name), "{name}");
        metric.labels.iter().for_each(|label| assert!(LABELS.contains(&label.as_str()), "{name}: {label}"));
        let lines = expose(&mut client, name, metric, counters.contains(name));
        assert!(lines.lines().count() > 2, "no series of {name}");
        all += &lines;
    }
    lint(&all);
    for table in ["tasks", "history", "dead_letters", "all_tasks", "queues", "rights"] {
        let refusal = client.query(&format!("SELECT FROM queue.{table}"), &[]).expect_err(table);
        assert_eq!(refusal.code().expect("an SQLSTATE").code(), "42501", "{table}");
    }
}

/// Prometheus's own opinion of names, types and help.
fn lint(exposition: &str) {
    let mut promtool = Command::new(fetched("usr/bin/promtool"));
    let mut child = promtool
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start promtool");
    child.stdin.take().expect("its input").write_all(exposition.as_bytes()).expect("write");
    let done = child.wait_with_output().expect("promtool");
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success() && said.is_empty(), "{}\n{exposition}", String::from_utf8_lossy(&said));
}

#[test]
fn the_queries_of_every_scrape_read_no_tasks() {
    if brief() {
        return;
    }
    let cluster = cluster("metrics-cheap");
    run(&mut cluster.connect(), "SELECT count(queue.push('default')) FROM generate_series(1, 5000)");
    // The first read counts the tables.
    run(&mut monitor(&cluster), "SELECT FROM queue.stats");
    let mut client = monitor(&cluster);
    let tasks_read = |client: &mut Client| {
        let mut transaction = client.transaction().expect("begin");
        for file in ["queue.collector.yml", "queue_health.collector.yml"] {
            for metric in collector(file).0.values() {
                transaction.query(&metric.query, &[]).expect("query");
            }
        }
        let query = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'queue.tasks'::regclass";
        transaction.query_one(query, &[]).expect("statistics").get::<_, i64>(0)
    };
    let read = tasks_read(&mut client);
    assert!(read < 100, "{read} tasks were read");
    // And that is something that can be seen.
    run(&mut client, "SET queue.fast_path = off");
    let read = tasks_read(&mut client);
    assert!(read >= 5000, "{read} tasks were read");
}

#[test]
fn a_server_without_the_library_reports_that_and_everything_else() {
    if brief() {
        return;
    }
    let bare = Settings { preload: false, extra: "" };
    let cluster = Cluster::start_with("metrics-bare", &bare);
    run(&mut cluster.connect(), "CREATE EXTENSION queue_ext; SELECT queue.push('default')");
    let mut client = cluster.connect();
    let (metrics, counters) = metrics();
    let mut all = String::new();
    for (name, metric) in &metrics {
        all += &expose(&mut client, name, metric, counters.contains(name));
    }
    for line in [
        "queue_engine_loaded{} 0",
        "queue_worker_running{} 0",
        "queue_health_status{check=\"engine\"} 1",
        "queue_tasks{queue=\"default\",state=\"queued\"} 1",
    ] {
        assert!(all.lines().any(|told| told == line), "{line}:\n{all}");
    }
}

#[test]
fn the_alert_rules_pass_their_tests() {
    if brief() {
        return;
    }
    let promtool = |arguments: &[&str], name: &str| {
        output(Command::new(fetched("usr/bin/promtool")).args(arguments).arg(file(name)))
    };
    promtool(&["check", "config"], "prometheus.yml");
    promtool(&["test", "rules"], "alerts.test.yml");
    let tests = text("alerts.test.yml");
    let rules = yaml("alerts.yml");
    let rules = list(&rules["groups"][0]["rules"]);
    assert!(!rules.is_empty());
    for rule in rules {
        let name = string(&rule["alert"]);
        assert!(tests.contains(&format!("ALERTS{{alertname=\"{name}\"")), "no test lets {name} fire");
        let annotations = &rule["annotations"];
        assert!(annotations["summary"].is_string() && annotations["description"].is_string(), "{name}");
    }
    // Every column of a query is used by a metric.
    let (metrics, _) = metrics();
    let said = [text("alerts.yml"), text("grafana.json")].concat();
    let asked = said.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| {
        word.starts_with("queue_") && word.ends_with(|c: char| c.is_ascii_lowercase()) && *word != "queue_ext"
    });
    for word in asked {
        assert!(metrics.contains_key(word), "{word} is no metric");
    }
}
