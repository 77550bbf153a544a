//! `queue work` with requests.

use queue_ext_tests::{SOON, eventually, number, run};
use serde_json::{Value, json};

use super::commands::{await_state, push, start, task};
use super::http::Server;
use super::run::{Worker, call};

#[test]
fn a_request_has_the_task_and_its_trace() {
    let (cluster, mut client) = start("request");
    let server = Server::start();
    let query = "SELECT queue.push('mail', '{\"do\": \"ok\"}', kind => 'welcome', \
                 headers => '{\"traceparent\": \"00-1-2-01\", \"baggage\": \"a=b\", \"secret\": \"x\"}')";
    let id = number(&mut client, query);
    let options =
        ["mail", "--http", &server.url(), "--header", "Authorization: Bearer t", "--result", "json"];
    let _worker = Worker::start(&cluster, &options);
    assert_eq!(await_state(&mut client, id, "completed")["result"], json!({"answer": 42}));
    let head = server.requests("ok")[0].head.clone();
    let token = number(&mut client, &format!("SELECT token FROM queue.get({id})"));
    for line in [
        "post /hooks/mail?a=b http/1.1".to_owned(),
        "content-type: application/json".to_owned(),
        "authorization: bearer t".to_owned(),
        format!("queue-task-id: {id}"),
        format!("queue-task-token: {token}"),
        "queue-task-queue: mail".to_owned(),
        "queue-task-kind: welcome".to_owned(),
        "queue-task-attempt: 1".to_owned(),
        format!("idempotency-key: {id}"),
        "traceparent: 00-1-2-01".to_owned(),
        "baggage: a=b".to_owned(),
    ] {
        assert!(head.lines().any(|found| found == line), "{line} in {head}");
    }
    assert!(!head.contains("secret"));
}

#[test]
fn the_status_decides_how_an_attempt_ended() {
    let (cluster, mut client) = start("status");
    let server = Server::start();
    let asked =
        ["created", "500", "422", "302", "429 seconds", "503 date", "not json", "huge", "close", "half"];
    let ids = asked.map(|what| push(&mut client, &json!({"do": what})));
    let _worker = Worker::start(&cluster, &["mail", "--http", &server.url(), "--result", "json"]);
    for (what, id) in asked.into_iter().zip(ids) {
        let (state, status, says) = match what {
            "created" => ("completed", Value::Null, ""),
            "422" => ("failed", json!(422), "the response was 422 Unprocessable Entity\nno such address"),
            "500" => ("queued", json!(500), "the response was 500 Internal Server Error\nno disk left"),
            "302" => ("queued", json!(302), "redirections are not followed"),
            "429 seconds" => ("queued", json!(429), "the response was 429"),
            "503 date" => ("queued", json!(503), "the response was 503"),
            "not json" => ("queued", Value::Null, "the result is not JSON"),
            "huge" => ("queued", Value::Null, "more than 1 MB"),
            "close" => ("queued", Value::Null, "no response"),
            _ => ("queued", Value::Null, "the response is incomplete"),
        };
        let found = await_state(&mut client, id, state);
        let error = &found["errors"][0];
        assert_eq!(error["details"]["status"], status, "{what}: {error}");
        assert!(error["error"].as_str().unwrap_or_default().contains(says), "{what}: {error}");
        // The backoff is an hour.
        let wait = "SELECT round(extract(epoch FROM run_at - now()) / 600)::bigint FROM queue.get";
        if state == "queued" {
            let expected = if what == "503 date" { 12 } else { 6 };
            assert_eq!(number(&mut client, &format!("{wait}({id})")), expected, "{what}");
        }
    }
    assert_eq!(server.requests("302").len(), 1);
}

#[test]
fn a_server_that_refuses_is_a_failure() {
    let (cluster, mut client) = start("refused");
    let closed =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
    let id = push(&mut client, &json!({"do": "ok"}));
    let _worker = Worker::start(&cluster, &["mail", "--http", &format!("http://{closed}/")]);
    let error = await_state(&mut client, id, "queued")["errors"][0]["error"].clone();
    assert!(error.as_str().is_some_and(|error| error.contains("refused")), "{error}");
}

#[test]
fn a_stop_aborts_the_request() {
    let (cluster, mut client) = start("abort");
    let server = Server::start();
    let options = ["mail", "--http", &server.url(), "--heartbeat", "200ms", "--shutdown-timeout", "1s"];
    let mut worker = Worker::start(&cluster, &options);
    let ids = [1, 2].map(|_| push(&mut client, &json!({"do": "hang"})));
    eventually("both hang", SOON, || server.requests("hang").len() == 2);
    run(&mut client, &format!("SELECT queue.cancel({})", ids[0]));
    await_state(&mut client, ids[0], "cancelled");
    eventually("the request is aborted", SOON, || server.hung_up() == 1);
    assert_eq!(worker.end(), Some(0));
    eventually("the other one, too", SOON, || server.hung_up() == 2);
    let found = task(&mut client, ids[1]);
    assert_eq!((&found["state"], &found["attempt"]), (&json!("queued"), &json!(0)));
}

#[test]
fn wrong_addresses_and_headers_are_refused() {
    let (cluster, _) = start("wrong");
    call(&cluster, &["work", "mail", "--http", "ftp://x/"]).refusal(2, "not an http or https URL");
    for port in ["80800", "8o8o"] {
        for host in ["127.0.0.1", "[::1]"] {
            let address = format!("http://{host}:{port}/hook");
            call(&cluster, &["work", "mail", "--http", &address]).refusal(2, "the port is not a number");
        }
    }
    call(&cluster, &["work", "mail", "--header", "A: b", "--", "true"]).refusal(2, "--header is for --http");
    call(&cluster, &["work", "mail", "--http", "http://a:b@x/"]).refusal(2, "Authorization");
    call(&cluster, &["work", "mail", "--http", "http://x/", "--header", "A b: c"])
        .refusal(2, "not NAME:VALUE");
}
