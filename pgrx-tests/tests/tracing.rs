//! A trace connects the push of a task with its execution, through the headers: docs/tracing.md and
//! examples/tracing.py.

use std::path::Path;
use std::process::{Command, Stdio};

use postgres::Client;
use queue_ext_tests::cluster::home;
use queue_ext_tests::{Cluster, brief};
use serde_json::Value;

/// Runs the example in a process of its own, and returns the spans that it printed.
fn spans(cluster: &Cluster, what: &str) -> Vec<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/tracing.py");
    let conninfo = format!("host={} user=postgres dbname=postgres", cluster.folder().display());
    let packages =
        std::env::join_paths([home().join("client"), home().join("metrics/python")]).expect("paths");
    let mut command = Command::new("python3");
    command.arg(script).args([what, &conninfo]).env("PYTHONPATH", packages).stdin(Stdio::null());
    let done = command.output().expect("run the example");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let lines = String::from_utf8(done.stdout).expect("UTF-8");
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The spans of this name.
fn named<'a>(spans: &'a [Value], name: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| span["name"] == name).collect()
}

/// A span's messaging attributes: operation, its type, destination and the task's id.
fn says(span: &Value, operation: &str, kind: &str, of: &str, id: i64) {
    let attributes = &span["attributes"];
    assert_eq!(attributes["messaging.system"], "postgresql_queue", "{span}");
    assert_eq!(attributes["messaging.operation.name"], operation, "{span}");
    assert_eq!(attributes["messaging.operation.type"], kind, "{span}");
    assert_eq!(attributes["messaging.destination.name"], "default", "{span}");
    assert_eq!(attributes["messaging.message.id"], id.to_string(), "{span}");
    assert_eq!(span["kind"], format!("SpanKind.{of}"), "{span}");
}

/// The one span that processed a task.
fn processed(spans: &[Value], id: i64) -> &Value {
    let mut all = named(spans, "process default");
    let id = id.to_string();
    all.retain(|span| span["attributes"]["messaging.message.id"] == id.as_str());
    let [one] = all.as_slice() else { panic!("{} spans for {id}", all.len()) };
    one
}

fn id(client: &mut Client, query: &str) -> i64 {
    client.query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}

#[test]
fn spans_of_the_worker_link_to_the_trace_of_the_push() {
    if brief() {
        return;
    }
    let cluster = Cluster::start("tracing");
    let mut client = cluster.connect();
    client.batch_execute("CREATE TABLE orders_shipped (number int NOT NULL)").expect("create");
    let pushed = spans(&cluster, "push");
    let sent = named(&pushed, "send default")[0];
    let first = id(&mut client, "SELECT id FROM queue.tasks");
    says(sent, "send", "send", "PRODUCER", first);
    // As in the convention, written without a library.
    let header: String =
        client.query_one("SELECT headers ->> 'traceparent' FROM queue.tasks", &[]).expect("headers").get(0);
    let context = |span: &Value, key: &str| span["context"][key].as_str().expect(key)[2..].to_owned();
    let sent_as = format!("00-{}-{}-", context(sent, "trace_id"), context(sent, "span_id"));
    assert!(header.starts_with(&sent_as) && header.len() == sent_as.len() + 2, "{header}");
    let by_hand = id(
        &mut client,
        r#"SELECT queue.push('default', '{"number": 8}', headers =>
            '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "shop=7"}')"#,
    );
    let broken = id(
        &mut client,
        r#"SELECT queue.push('default', '{"number": 9}', headers => '{"traceparent": "00-0-0-00", "tracestate": 5}')"#,
    );
    let failing = id(
        &mut client,
        r#"SELECT queue.push('default', '{}', max_attempts => 1, headers =>
            '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00"}')"#,
    );

    let worked = spans(&cluster, "work");
    let task = processed(&worked, first);
    says(task, "process", "process", "CONSUMER", first);
    // A link, and no child: a task may be done much later, or with others, or again.
    assert_eq!(task["parent_id"], Value::Null);
    assert_ne!(task["context"]["trace_id"], sent["context"]["trace_id"]);
    let links = |span: &Value| span["links"].as_array().expect("links").clone();
    assert_eq!(links(task).len(), 1, "{task}");
    assert_eq!(links(task)[0]["context"]["trace_id"], sent["context"]["trace_id"]);
    assert_eq!(links(task)[0]["context"]["span_id"], sent["context"]["span_id"]);
    let acknowledged = named(&worked, "ack default")[0];
    says(acknowledged, "ack", "settle", "CLIENT", first);
    assert_eq!(acknowledged["parent_id"], task["context"]["span_id"]);

    let other = links(processed(&worked, by_hand));
    assert_eq!(other[0]["context"]["trace_id"], "0x0af7651916cd43dd8448eb211c80319c");
    let state = other[0]["context"]["trace_state"].as_str().expect("a state");
    assert!(state.contains("key=shop, value=7"), "{state}");
    assert_eq!(links(processed(&worked, broken)), Vec::<Value>::new(), "what cannot be read is no link");
    let failed = processed(&worked, failing);
    assert_eq!(
        (&failed["status"]["status_code"], &failed["attributes"]["error.type"]),
        (&"ERROR".into(), &"KeyError".into())
    );
    says(named(&worked, "nack default")[0], "nack", "settle", "CLIENT", failing);

    let received = named(&worked, "receive default");
    assert_eq!(received[0]["attributes"]["messaging.batch.message_count"], 4);
    assert_eq!(links(received[0]).len(), 3, "one for each that says where it comes from");
    let shipped = id(&mut client, "SELECT count(*) FROM orders_shipped");
    let dead = id(&mut client, "SELECT id FROM queue.dead_letters");
    assert_eq!((shipped, dead), (3, failing));
    // Wherever a task is, its headers are with it.
    let kept = "SELECT count(*) FROM queue.all_tasks WHERE headers ->> 'traceparent' LIKE '00-%'";
    assert_eq!(id(&mut client, kept), 4);
    assert_eq!(id(&mut client, "SELECT count(queue.redrive('default'))"), 1);
    assert_eq!(id(&mut client, kept), 4);
    assert_eq!(id(&mut client, "SELECT count(*) FROM queue.claim() WHERE headers ? 'traceparent'"), 1);
}
