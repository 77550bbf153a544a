//! Load and trouble, as the real exporter and the real Prometheus see them.

use postgres::Client;
use queue_ext_tests::{SOON, brief, eventually};
use serde_json::Value;

use super::stack::{Stack, text};
use super::{cluster, files, run};

/// Tasks in each state, ends of each kind, expired leases, and a call that falls back to SQL.
const LOAD: &str = "
    SELECT queue.create('mail'), queue.create('web');
    SELECT count(queue.push('mail')) FROM generate_series(1, 40);
    SELECT queue.push('mail', delay => '1 hour'), queue.push('mail', group_key => 'g'), queue.push('mail', group_key => 'g');
    SELECT queue.push('web', after => ARRAY[queue.push('web', key => 'first')]);
    SELECT count(queue.complete(id, token)) FROM queue.claim('1 hour', 'mail', 20);
    SELECT count(queue.fail(id, token, 'no', permanent => true)) FROM queue.claim('1 hour', 'mail', 3);
    SELECT count(queue.cancel(id)) FROM (SELECT id FROM queue.tasks WHERE queue = 'mail' AND state = 'queued' LIMIT 2) AS t;
    SELECT FROM queue.claim('1 hour', 'mail', 5, worker => 'one');
    SELECT FROM queue.claim('1 second', 'default', 1);";

/// The values of the dashboard's variables.
fn filled(expression: &str) -> String {
    let all = expression.replace("$database", ".*").replace("$queue", ".*");
    all.replace("$__rate_interval", "10s")
}

/// The panels of the dashboard: title, and queries.
fn panels() -> Vec<(String, Vec<String>)> {
    let board: Value = serde_json::from_str(&text("grafana.json")).expect("JSON");
    let panels = board["panels"].as_array().expect("panels");
    let expression = |target: &Value| target["expr"].as_str().expect("a query").to_owned();
    panels
        .iter()
        .map(|panel| {
            let targets = panel["targets"].as_array().expect("targets");
            (panel["title"].as_str().expect("a title").to_owned(), targets.iter().map(expression).collect())
        })
        .collect()
}

fn number(client: &mut Client, query: &str) -> f64 {
    client.query_one(&format!("SELECT ({query})::float8"), &[]).expect(query).get(0)
}

#[test]
fn prometheus_reads_the_metrics_and_alerts_on_failures() {
    if brief() {
        return;
    }
    let mut cluster = cluster("metrics");
    let mut client = cluster.connect();
    run(&mut client, LOAD);
    let mut stack = Stack::start(&cluster);
    sees_what_there_is(&stack, &mut client);
    every_panel_has_data(&stack);
    // At first there were no metrics, and an alert reported that.
    eventually("no alert fires", SOON, || stack.query("ALERTS{alertstate=\"firing\"}").is_empty());

    run(
        &mut client,
        "SELECT queue.create('late'), queue.create('asleep'), queue.pause('asleep');
         SELECT queue.push('late', run_at => now() - interval '11 minutes'),
                queue.push('asleep', run_at => now() - interval '2 hours');
         SELECT count(queue.push('web')) FROM generate_series(1, 10);
         SELECT count(queue.fail(id, token, 'no', permanent => true)) FROM queue.claim('1 hour', 'web', 10);
         SELECT count(queue.push('web')) FROM generate_series(1, 20);
         SELECT count(*) FROM queue.claim('10 ms', 'web', 20);
         CREATE FUNCTION own() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
         CREATE TRIGGER own BEFORE INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION own();
         SELECT queue.push('web')",
    );
    // An increase is visible only after the first value.
    let altered = "queue_calls_fallback_total{reason=\"altered\"}";
    eventually("the core's calls are counted", SOON, || stack.value(altered).is_some());
    run(
        &mut client,
        "SELECT count(queue.push('web')) FROM generate_series(1, 2000); DROP TRIGGER own ON queue.tasks",
    );
    await_alerts(
        &stack,
        &["QueueTasksLate", "QueuePausedForLong", "QueueTasksFail", "QueueLeasesExpire", "QueueFastPathLost"],
    );
    let late = stack.query("ALERTS{alertname=\"QueueTasksLate\", alertstate=\"firing\"}");
    assert_eq!((late.len(), &late[0]["metric"]["queue"]), (1, &Value::from("late")), "not the paused one");
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim('1 hour', 'late')");
    eventually("nothing is late any more", SOON, || !stack.fires("QueueTasksLate"));

    // The launcher occupies the only slot, so the worker cannot start.
    run(&mut client, "SELECT FROM queue.claim('1 hour', 'mail')");
    run(&mut client, "ALTER SYSTEM SET max_worker_processes = 1");
    drop(client);
    cluster.stop("fast");
    cluster.launch();
    let mut client = cluster.connect();
    run(
        &mut client,
        "UPDATE queue.tasks SET lease_until = now() - interval '5 minutes' WHERE state = 'running';
         DO $$ DECLARE day record; BEGIN
             FOR day IN SELECT relname FROM pg_class WHERE relnamespace = 'queue'::regnamespace AND relkind = 'r'
                        AND relname > 'history_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD') AND relname ~ '^history_\\d'
             LOOP EXECUTE format('DROP TABLE queue.%I', day.relname); END LOOP; END $$",
    );
    await_alerts(&stack, &["QueueWorkerMissing", "QueueLeasesOverdue", "QueuePartitionsMissing"]);
    run(&mut client, "CALL queue.maintain()");
    eventually("leases and partitions are well", SOON, || {
        !stack.fires("QueueLeasesOverdue") && !stack.fires("QueuePartitionsMissing")
    });
    assert!(stack.fires("QueueWorkerMissing"));

    // The exporter repeats its last values.
    drop(client);
    cluster.stop("immediate");
    await_alerts(&stack, &["QueueMetricsOld"]);
    stack.stop_exporter();
    await_alerts(&stack, &["QueueMetricsMissing"]);
}

fn await_alerts(stack: &Stack, alerts: &[&str]) {
    for alert in alerts {
        eventually(&format!("{alert} fires"), SOON, || stack.fires(alert));
    }
}

/// Prometheus has each metric that the files name and no other, with numbers that are those of the tables.
fn sees_what_there_is(stack: &Stack, client: &mut Client) {
    let (metrics, _) = files::metrics();
    let names: Vec<String> = metrics.into_keys().collect();
    let mut found = Vec::<String>::new();
    eventually(&format!("{names:?} are there"), SOON, || {
        let data = stack.api("label/__name__/values").unwrap_or_default();
        found = serde_json::from_value(data).unwrap_or_default();
        found.retain(|name| name.contains("queue_"));
        found == names
    });
    let labels: Vec<String> = serde_json::from_value(stack.api("labels").expect("labels")).expect("strings");
    for label in ["col", "driver", "sql_job", "user"] {
        assert!(!labels.iter().any(|it| it == label), "{label} was to be dropped");
    }
    let same = [
        (
            "queue_tasks{queue=\"mail\",state=\"queued\"}",
            "SELECT queued FROM queue.stats WHERE queue = 'mail'",
        ),
        ("queue_tasks{queue=\"mail\",state=\"running\"}", "5"),
        ("queue_tasks{queue=\"mail\",state=\"scheduled\"}", "1"),
        ("queue_tasks{queue=\"mail\",state=\"blocked\"}", "1"),
        ("queue_tasks{queue=\"web\",state=\"waiting\"}", "1"),
        ("queue_tasks{queue=\"mail\",state=\"dead\"}", "SELECT count(*) FROM queue.dead_letters"),
        ("queue_ended_lately{queue=\"mail\",outcome=\"completed\"}", "20"),
        ("queue_ended_lately{queue=\"mail\",outcome=\"cancelled\"}", "2"),
        ("queue_ended_lately{queue=\"mail\",outcome=\"failed\"}", "3"),
        (
            "queue_pushed_total",
            "SELECT n_tup_ins FROM pg_stat_user_tables WHERE relid = 'queue.tasks'::regclass",
        ),
        ("queue_ended_total", "25"),
        ("queue_workers{queue=\"mail\"}", "1"),
        ("queue_engine_loaded + queue_worker_running", "2"),
        ("queue_table_bytes{table=\"dead_letters\"}", "SELECT pg_total_relation_size('queue.dead_letters')"),
        ("sum(queue_health_status)", "0"),
        ("count(queue_health_status)", "SELECT count(DISTINCT name) FROM queue.health()"),
    ];
    for (expression, query) in same {
        let expected = number(client, query);
        eventually(&format!("{expression} is {expected}"), SOON, || {
            stack.value(expression) == Some(expected)
        });
    }
    let old = stack.value("time() - queue_sampled_timestamp_seconds").expect("the time");
    assert!((-1.0..60.0).contains(&old), "read {old} seconds ago");
}

fn every_panel_has_data(stack: &Stack) {
    let panels = panels();
    assert!(panels.len() > 10);
    for (title, queries) in panels {
        assert!(!queries.is_empty(), "{title}");
        for query in queries {
            eventually(&format!("{title}: {query} has data"), SOON, || {
                !stack.query(&filled(&query)).is_empty()
            });
        }
    }
    // Those that the variables offer.
    let offered = stack.api("label/queue/values?match[]=queue_tasks").expect("queues");
    assert_eq!(offered, serde_json::json!(["default", "mail", "web"]));
}
