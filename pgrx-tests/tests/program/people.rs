//! The commands for people.

use std::io::{BufRead, BufReader};

use queue_ext_tests::{Edition, SOON, Worker, eventually, number, run, text};
use serde_json::{Value, json};

use super::commands::{start, task};
use super::run::{KilledOnFailure, answer, call, program, program_for};

#[test]
fn push_passes_every_option_of_queue_push() {
    let (cluster, mut client) = start("push");
    let first = call(&cluster, &["push", "mail"]).text().parse::<i64>().expect("an id");
    assert_eq!(task(&mut client, first)["payload"], json!({}));
    let options = [
        "push",
        "mail",
        r#"{"to": "ada"}"#,
        "--json",
        "--kind",
        "welcome",
        "--delay",
        "90m",
        "--priority",
        "-5",
        "--key",
        "k",
        "--on-duplicate",
        "error",
        "--key-ttl",
        "1h",
        "--key-ttl-from",
        "push",
        "--group-key",
        "g",
        "--max-attempts",
        "3",
        "--backoff",
        r#"{"kind": "fixed"}"#,
        "--headers",
        r#"{"a": "b"}"#,
        "--after",
        &first.to_string(),
        "--on-predecessor-failure",
        "continue",
        "--lease",
        "5m",
        "--timeout",
        "1h",
        "--ttl",
        "2days",
        "--weight",
        "1",
    ];
    let id = call(&cluster, &options).json()["id"].as_i64().expect("an id");
    let found = task(&mut client, id);
    for (name, value) in [
        ("payload", json!({"to": "ada"})),
        ("kind", json!("welcome")),
        ("priority", json!(-5)),
        ("key", json!("k")),
        ("group_key", json!("g")),
        ("max_attempts", json!(3)),
        ("headers", json!({"a": "b"})),
        ("state", json!("waiting")),
        ("lease", json!("00:05:00")),
        ("timeout", json!("01:00:00")),
    ] {
        assert_eq!(found[name], value, "{name}");
    }
    let delayed = format!(
        "SELECT run_at > now() + interval '80 min' AND start_by > now() + interval '47 h' FROM queue.get({id})"
    );
    assert!(client.query_one(&delayed, &[]).expect("the task").get::<_, bool>(0));
    call(&cluster, &options).refusal(1, "QX004");
    call(&cluster, &["push", "mail", "{", "--json"]).refusal(1, "the payload is not JSON");
    call(&cluster, &["push", "nope"]).refusal(1, "HINT");
    call(&cluster, &["push", "mail", "--delay", "soon"]).refusal(2, "10s");
    let at = call(
        &cluster,
        &["push", "mail", "--run-at", "2030-01-31T12:00:00Z", "--start-by", "2031-01-01T00:00:00Z"],
    );
    let query = format!("SELECT run_at::date::text FROM queue.get({})", at.text());
    assert_eq!(text(&mut client, &query), "2030-01-31");
}

#[test]
fn push_reads_standard_input() {
    let (cluster, mut client) = start("lines");
    let pushed = |arguments: &[&str], input: &str| {
        let mut command = program_for(&cluster);
        command.arg("push").arg("mail").args(arguments);
        answer(command, input)
    };
    let id = pushed(&["-"], "{\"a\":\n 1}").text().parse().expect("an id");
    assert_eq!(task(&mut client, id)["payload"], json!({"a": 1}));
    let lines: String = (1..=2500).map(|n| format!("{{\"n\": {n}}}\n")).collect();
    assert_eq!(pushed(&["--lines", "--json", "--kind", "bulk"], &lines).json(), json!({"tasks": 2500}));
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue.tasks WHERE kind = 'bulk'"), 2500);
    // The second is JSON that the server refuses, and says why.
    for (kind, last, why) in
        [("bad", "{", "line 2501 is not JSON"), ("refused", r#""\u0000""#, "lines 2001 to 2501: ")]
    {
        let bad = pushed(&["--lines", "--kind", kind], &format!("{lines}{last}\n"));
        bad.refusal(1, why);
        assert!(bad.errors.contains("2000 tasks"), "{}", bad.errors);
        let query = format!("SELECT count(*) FROM queue.tasks WHERE kind = '{kind}'");
        assert_eq!(number(&mut client, &query), 2000);
    }
    assert_eq!(pushed(&["--lines"], "").text(), "0 tasks");

    run(
        &mut client,
        "CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RETURN CASE WHEN NEW.kind IS DISTINCT FROM 'unwanted' THEN NEW END; END $$;
         CREATE TRIGGER suppress BEFORE INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION suppress()",
    );
    pushed(&["1", "--kind", "unwanted"], "").refusal(1, "suppressed");
    assert_eq!(pushed(&["--lines", "--kind", "unwanted"], "1\n2\n").text(), "0 tasks");
}

#[test]
fn get_shows_json_that_rust_cannot_represent() {
    let (cluster, mut client) = start("numbers");
    let (large, deep) = ("9".repeat(400), format!("{}{}", "[".repeat(300), "]".repeat(300)));
    let push = format!(
        "SELECT queue.push('mail', '{{\"exact\": 1.10, \"large\": {large}, \"deep\": {deep}}}', headers => '{{\"n\": {large}}}')"
    );
    let id = number(&mut client, &push).to_string();
    run(
        &mut client,
        &format!(
            "SELECT queue.fail(id, token, 'no', details => '{{\"n\": {large}}}') FROM queue.claim(queue => 'mail')"
        ),
    );
    for options in [&["get", &id][..], &["get", &id, "--json"]] {
        let shown = call(&cluster, options);
        for text in ["\"exact\": 1.10", &format!("\"large\": {large}"), &deep, &format!("{{\"n\": {large}}}")]
        {
            assert!(shown.text().contains(text), "{text} in {}", shown.output);
        }
    }
}

#[test]
fn get_cancel_redrive_pause_and_resume_do_what_their_functions_do() {
    let (cluster, mut client) = start("people");
    let id = call(&cluster, &["push", "mail", "1", "--max-attempts", "1"]).text().to_owned();
    run(
        &mut client,
        "SELECT queue.fail(id, token, E'no\\n\\x1b[2Jroute', details => '{\"a\": 1}') FROM queue.claim(queue => 'mail')",
    );
    assert_eq!(call(&cluster, &["get", &id, "--json"]).json()["state"], "failed");
    let shown = call(&cluster, &["get", &id]);
    assert!(
        shown.text().contains("error of attempt 1") && shown.text().contains("    no\n"),
        "{}",
        shown.output
    );
    assert!(!shown.output.contains('\u{1b}'), "a terminal would obey what a worker wrote");
    assert_eq!(call(&cluster, &["redrive", "mail", "--json"]).json(), json!({"queue": "mail", "tasks": 1}));
    assert_eq!(call(&cluster, &["pause", "mail", "--json"]).json(), json!({"queue": "mail", "paused": true}));
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue.queues WHERE paused_at IS NOT NULL"), 1);
    assert_eq!(call(&cluster, &["resume", "mail"]).text(), "mail is not paused");
    let cancelled = call(&cluster, &["cancel", &id, "99", "--json"]);
    cancelled.refusal(1, "QX003");
    assert_eq!(cancelled.output.trim(), format!("{{\"id\":{id},\"state\":\"cancelled\"}}"));
    call(&cluster, &["get", "99"]).refusal(1, "QX003");
    call(&cluster, &["get", "x"]).refusal(2, "invalid value");
}

#[test]
fn health_has_exit_codes_for_monitors() {
    let (cluster, mut client) = start("health");
    assert_eq!(call(&cluster, &["health", "--json"]).json()[0]["status"], "ok");
    run(
        &mut client,
        "SELECT queue.push('mail', max_attempts => 1); SELECT queue.fail(id, token, 'x') FROM queue.claim(queue => 'mail')",
    );
    let found = call(&cluster, &["health", "--failed", "0"]);
    assert_eq!(found.code, 1, "{}{}", found.output, found.errors);
    assert!(found.output.contains("warning"), "{}", found.output);
    let mut command = program();
    command.args(["health", "--url", "host=/nonexistent"]);
    answer(command, "").refusal(2, "cannot connect");
}

#[test]
fn top_prints_once_without_a_terminal() {
    let (cluster, mut client) = start("top");
    run(
        &mut client,
        "SELECT queue.push_many('mail', ARRAY['1', '2']::jsonb[]); SELECT FROM queue.claim(queue => 'mail', worker => 'w1')",
    );
    let found = call(&cluster, &["top", "--json"]).json();
    let queue = found["queues"]
        .as_array()
        .expect("queues")
        .iter()
        .find(|queue| queue["queue"] == "mail")
        .expect("mail");
    assert_eq!((&queue["queued"], &queue["running"]), (&json!(1), &json!(1)));
    assert_eq!(found["workers"][0]["worker"], "w1");
    let shown = call(&cluster, &["top"]);
    assert!(shown.text().contains("w1") && shown.text().contains("oldest due"), "{}", shown.output);
    assert!(!shown.text().contains("counted"), "{}", shown.output);
}

#[test]
fn top_says_when_the_sql_only_edition_counted_many_tasks() {
    let cluster = Edition::SqlOnly.cluster("top-counted", Worker::On);
    Edition::SqlOnly.install(&cluster, "postgres");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.push('default')");
    run(
        &mut client,
        "INSERT INTO queue_internal.counts SELECT c.*, q.created_at FROM queue_internal.count_tables('{default}') AS c JOIN queue.queues AS q ON q.name = c.queue;
         UPDATE queue_internal.maintenance SET counted_at = now(), counting = '1 hour'",
    );
    run(&mut client, "SELECT queue.push('default')");
    let shown = call(&cluster, &["top"]);
    assert!(shown.text().contains("tasks as counted by queue.maintain() at "), "{}", shown.output);
    let found = call(&cluster, &["top", "--json"]).json();
    assert_eq!(found["queues"][0]["queued"], json!(1), "{found}");
}

#[test]
fn tail_prints_what_happens_to_tasks() {
    let (cluster, mut client) = start("tail");
    let mut command = program_for(&cluster);
    let mut process = command.args(["tail", "mail", "--json"]).spawn().expect("start it");
    let _killed = KilledOnFailure(process.id());
    let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
    let mut next = || -> Value {
        let line = lines.next().expect("a line").expect("text");
        serde_json::from_str(&line).unwrap_or_else(|why| panic!("{why}: {line}"))
    };
    std::thread::sleep(std::time::Duration::from_secs(1));
    run(&mut client, "SELECT queue.push('default'); SELECT queue.push('mail', kind => 'welcome')");
    let added = next();
    assert_eq!(
        (&added["event"], &added["queue"], &added["kind"]),
        (&json!("added"), &json!("mail"), &json!("welcome"))
    );
    run(
        &mut client,
        "SELECT queue.fail(id, token, 'no route', '0') FROM queue.claim(queue => 'mail', worker => 'w1')",
    );
    let mut seen = Vec::new();
    while seen.last() != Some(&json!("attempt failed")) {
        seen.push(next()["event"].clone());
    }
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim(queue => 'mail', worker => 'w1')");
    let mut seen = Vec::new();
    while seen.last() != Some(&json!("completed")) {
        seen.push(next()["event"].clone());
    }
    assert_eq!(seen, [json!("claimed"), json!("completed")]);
    queue_ext_tests::cluster::signal(process.id() as i32, libc::SIGINT);
    assert_eq!(process.wait().expect("its end").code(), Some(0));
    call(&cluster, &["tail", "nope"]).refusal(1, "does not exist");

    // It ends with its reader, although nothing more happens.
    let mut command = program_for(&cluster);
    let mut process = command.args(["tail", "mail", "--since", "1h"]).spawn().expect("start it");
    let _killed = KilledOnFailure(process.id());
    let mut output = BufReader::new(process.stdout.take().expect("its output"));
    assert!(output.read_line(&mut String::new()).expect("a line") > 0);
    drop(output);
    let mut ended = || process.try_wait().expect("its state");
    eventually("queue tail ends with its reader", SOON, || ended().is_some());
}

#[test]
fn there_are_completions_and_help() {
    for shell in ["bash", "zsh", "fish"] {
        let mut command = program();
        command.args(["completions", shell]);
        let script = answer(command, "");
        assert!(script.text().contains("redrive"), "{shell}");
    }
    for command_line in [&["--help"][..], &["work", "--help"], &["push", "--help"], &["dashboard", "--help"]]
    {
        let mut command = program();
        command.args(command_line).env("USER", "ann");
        let help = answer(command, "");
        assert!(help.text().contains("queue"), "{command_line:?}");
    }
    let mut command = program();
    command.arg("wrok");
    answer(command, "").refusal(2, "work");
}
