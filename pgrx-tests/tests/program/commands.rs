//! `queue work` with commands.

use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use postgres::Client;
use queue_ext_tests::{Cluster, PgBouncer, SOON, brief, cluster, eventually, number, pgbouncer, run};
use serde_json::{Value, json};

use super::run::{self as program, Worker, call};

/// A server with the queue `mail`, whose tasks are retried after an hour.
pub fn start(name: &str) -> (Cluster, Client) {
    let cluster = Cluster::start(&format!("program-{name}"));
    let mut client = cluster.connect();
    run(
        &mut client,
        r#"SELECT queue.create('mail', '{"backoff": {"kind": "fixed", "base": "1 hour", "jitter": 0}}')"#,
    );
    run(&mut client, "CREATE TABLE ran (task bigint, attempt integer)");
    (cluster, client)
}

pub fn push(client: &mut Client, payload: &Value) -> i64 {
    let query = "SELECT queue.push('mail', $1)";
    client.query_one(query, &[payload]).unwrap_or_else(|error| panic!("{error:?}")).get(0)
}

/// The task as JSON.
pub fn task(client: &mut Client, id: i64) -> Value {
    client.query_one("SELECT to_jsonb(t) FROM queue.get($1) AS t", &[&id]).expect("the task").get(0)
}

/// Waits until a task is in a state. A queued task has to have failed before, so that a new one is not taken for it.
pub fn await_state(client: &mut Client, id: i64, state: &str) -> Value {
    let mut found = Value::Null;
    eventually(&format!("task {id} is {state}"), SOON, || {
        found = task(client, id);
        found["state"] == state && (state != "queued" || found["errors"] != Value::Null)
    });
    found
}

fn running(client: &mut Client) -> i64 {
    number(client, "SELECT count(*) FROM queue.tasks WHERE state = 'running'")
}

#[test]
fn reports_that_take_too_long_together_are_sent_apart() {
    let (cluster, mut client) = start("slow-reports");
    // Each completion takes so long that many in one statement are too many.
    run(
        &mut client,
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN NEW; END $$;
         CREATE TRIGGER dawdle BEFORE INSERT ON queue.history FOR EACH ROW EXECUTE FUNCTION dawdle();
         CREATE ROLE hasty LOGIN; SELECT queue.grant_worker('hasty'); ALTER ROLE hasty SET statement_timeout = '500ms'",
    );
    let ids: Vec<i64> = (0..20).map(|_| push(&mut client, &json!(1))).collect();
    let mut command = program::program_for(&cluster);
    command.env("PGUSER", "hasty");
    // All end at the same time: when the last one has begun.
    run(&mut client, "CREATE TABLE begun (); GRANT ALL ON begun TO hasty");
    let script = "psql -XqAt -c 'INSERT INTO begun DEFAULT VALUES' > /dev/null
                  until [ \"$(psql -XqAt -c 'SELECT count(*) FROM begun')\" -ge 20 ]; do sleep 0.1; done; echo 1";
    let bin = cluster.programs().display();
    command.env("PATH", format!("{bin}:{}", std::env::var("PATH").expect("PATH")));
    let _worker = Worker::run(
        command,
        &["mail", "--concurrency", "20", "--result", "json", "--", "bash", "-c", script],
    );
    for id in ids {
        assert_eq!(await_state(&mut client, id, "completed")["attempt"], 1);
    }
}

#[test]
fn the_exit_code_decides_how_an_attempt_ended() {
    let (cluster, mut client) = start("codes");
    let script = "read -r code; echo \"code $code\" >&2; [ $code = 200 ] && kill -9 $$; exit $code";
    let _worker = Worker::start(&cluster, &["mail", "--discard-code", "65,66", "--", "bash", "-c", script]);
    let codes = [0, 1, 65, 66, 75, 137, 200];
    let ids = codes.map(|code| push(&mut client, &json!(code)));
    for (code, id) in codes.into_iter().zip(ids) {
        let state = match code {
            0 => "completed",
            65 | 66 => "failed",
            _ => "queued",
        };
        let found = await_state(&mut client, id, state);
        let error = &found["errors"][0];
        match code {
            0 => assert_eq!(found["errors"], Value::Null),
            200 => {
                assert_eq!(error["error"], "killed by signal 9\ncode 200");
                assert_eq!(error["details"], json!({"signal": 9}));
            }
            _ => {
                assert_eq!(error["error"], format!("exited with code {code}\ncode {code}"));
                assert_eq!(error["details"], json!({"exit_code": code}));
            }
        }
    }
}

#[test]
fn a_command_gets_the_task_and_returns_its_result() {
    let (cluster, mut client) = start("results");
    let push_one = "SELECT queue.push('mail', '{\"a\": [1.10, \"ü\"]}', kind => 'welcome', max_attempts => 7, headers => '{\"trace\": \"x\"}')";
    let id = number(&mut client, push_one);
    let script = r#"printf '{"payload": %s, "environment": "%s"}' "$(cat)" \
        "$QUEUE_TASK_ID $QUEUE_TASK_QUEUE $QUEUE_TASK_KIND $QUEUE_TASK_ATTEMPT $QUEUE_TASK_MAX_ATTEMPTS ${#QUEUE_TASK_TOKEN}""#;
    let worker = Worker::start(&cluster, &["mail", "--result", "json", "--", "bash", "-c", script]);
    let found = await_state(&mut client, id, "completed");
    let token = number(&mut client, &format!("SELECT length(token::text)::bigint FROM queue.get({id})"));
    assert_eq!(
        found["result"],
        json!({"payload": {"a": [1.10, "ü"]}, "environment": format!("{id} mail welcome 1 7 {token}")})
    );
    drop(worker);

    let text_id = push(&mut client, &json!("a \"quoted\" text\n"));
    let worker = Worker::start(&cluster, &["mail", "--result", "text", "--", "cat"]);
    assert_eq!(await_state(&mut client, text_id, "completed")["result"], r#""a \"quoted\" text\n""#);
    drop(worker);
}

#[test]
fn a_result_that_cannot_be_stored_is_a_failure_of_its_task_alone() {
    let (cluster, mut client) = start("bad-results");
    let deep = "[".repeat(200) + &"]".repeat(200);
    let outputs = ["{", "'", "\"\\u0000\"", "1e400000", "[1]", "", "1e400", deep.as_str()];
    run(&mut client, "SELECT queue.pause('mail')");
    let ids = outputs.map(|output| push(&mut client, &json!({"output": output})));
    let large = push(&mut client, &json!({"large": true}));
    let script = r#"import json, os, sys
payload = json.load(sys.stdin)
sys.stdout.write('"' + 'x' * 3000000 + '"' if 'large' in payload else payload['output'])"#;
    let _worker = Worker::start(&cluster, &["mail", "--result", "json", "--", "python3", "-c", script]);
    // All of them together, so that some are reported together.
    run(&mut client, "SELECT queue.resume('mail')");
    for (output, id) in outputs.into_iter().zip(ids) {
        match output {
            "[1]" => assert_eq!(await_state(&mut client, id, "completed")["result"], json!([1])),
            "" => assert_eq!(await_state(&mut client, id, "completed")["result"], Value::Null),
            // More than fits into the types of this test.
            _ if output == "1e400" || output == deep.as_str() => {
                let stored = "SELECT result = $2::text::jsonb FROM queue.history WHERE id = $1";
                eventually(output, SOON, || {
                    client.query_opt(stored, &[&id, &output]).expect("read").is_some_and(|row| row.get(0))
                });
            }
            _ => {
                let error = &await_state(&mut client, id, "queued")["errors"][0]["error"];
                let says = if ["{", "'"].contains(&output) {
                    "the result is not JSON"
                } else {
                    "the server refused the result"
                };
                let also = error.as_str().is_some_and(|error| error.contains("not JSON"));
                assert!(
                    also || error.as_str().is_some_and(|error| error.contains(says)),
                    "{output}: {error}"
                );
            }
        }
    }
    let error = await_state(&mut client, large, "queued")["errors"][0]["error"].clone();
    assert_eq!(error, "the result has more than 1 MB");
}

#[test]
fn a_command_may_write_much_and_need_not_read() {
    let (cluster, mut client) = start("output");
    let id = push(&mut client, &json!("x".repeat(5_000_000)));
    // The input is not read, both outputs are larger than a pipe, and the error has only the end.
    let script = "yes out | head -c 3000000; yes err | head -c 3000000 >&2; printf 'the end' >&2; exit 1";
    let mut command = program::program_for(&cluster);
    command.args(["work", "mail", "--", "bash", "-c", script]);
    let child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start the worker");
    let pid = child.id() as i32;
    let _killed = program::KilledOnFailure(child.id());
    let reader = std::thread::spawn(move || child.wait_with_output().expect("its output"));
    let found = await_state(&mut client, id, "queued");
    let error = found["errors"][0]["error"].as_str().expect("an error").to_owned();
    assert!(error.starts_with("exited with code 1\n") && error.ends_with("err\nthe end"), "{error}");
    assert!(error.len() < 9000, "{} bytes", error.len());
    cluster::signal(pid, libc::SIGTERM);
    let output = reader.join().expect("its output");
    assert_eq!(output.stdout.len(), 3_000_000, "the command's output is the output of queue");
    assert!(output.stderr.len() > 3_000_000, "its errors are, too");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("xxxx"), "no payload in the log");
}

#[test]
fn a_log_that_nobody_reads_costs_no_lease() {
    let (cluster, mut client) = start("unread");
    run(&mut client, r#"SELECT queue.configure('mail', '{"lease": "2 s"}')"#);
    let id = push(&mut client, &json!(1));
    let mut command = program::program_for(&cluster);
    command.args(["work", "mail", "--verbose", "--", "bash", "-c", "yes >&2 & sleep 6; kill $!"]);
    let mut child = command.spawn().expect("start the worker");
    let _killed = program::KilledOnFailure(child.id());
    let found = await_state(&mut client, id, "completed");
    assert_eq!((&found["attempt"], &found["errors"]), (&json!(1), &Value::Null));
    child.kill().expect("kill");
    child.wait().expect("its end");
}

#[test]
fn a_cancelled_command_is_asked_to_stop_and_then_killed() {
    let (cluster, mut client) = start("cancel");
    let script = "read -r what; [ $what = 2 ] && trap '' TERM; [ $what = 3 ] && trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let options = ["mail", "--heartbeat", "200ms", "--kill-after", "1s", "--", "bash", "-c", script];
    let _worker = Worker::start(&cluster, &options);
    let ids = [1, 2, 3].map(|what| push(&mut client, &json!(what)));
    eventually("they run", SOON, || running(&mut client) == 3);
    std::thread::sleep(Duration::from_millis(500));
    for id in ids {
        call(&cluster, &["cancel", &id.to_string()]).text();
    }
    // The third one finished although it was asked to stop.
    for (id, state) in ids.into_iter().zip(["cancelled", "cancelled", "completed"]) {
        await_state(&mut client, id, state);
    }
}

#[test]
fn a_command_whose_lease_is_lost_is_stopped_and_not_reported() {
    let (cluster, mut client) = start("lost");
    let word = format!("300.{}", std::process::id());
    let options = ["mail", "--heartbeat", "200ms", "--verbose", "--", "sleep", &word];
    let worker = Worker::start(&cluster, &options);
    let id = push(&mut client, &json!(1));

    // The worker and its guard have the word among their arguments, too.
    eventually("it runs", SOON, || program::processes_with(&word) == 3);
    run(&mut client, &format!("SELECT queue.pause('mail'); SELECT queue.end_lease({id})"));
    eventually("it was stopped", SOON, || program::processes_with(&word) == 2);
    let found = await_state(&mut client, id, "queued");
    assert_eq!(found["errors"].as_array().map(Vec::len), Some(1), "{found}");
    assert_eq!(found["errors"][0]["error"], "lease ended by an operator");
    eventually("the log has the reason", SOON, || worker.log().contains("reason=lost"));
}

#[test]
fn a_lease_that_becomes_shorter_than_the_heartbeat_is_kept() {
    let (cluster, mut client) = start("shorter");
    run(&mut client, r#"SELECT queue.configure('mail', '{"lease": "1 minute"}')"#);
    let go = cluster.folder().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.1; done", go.display());
    let _worker = Worker::start(&cluster, &["mail", "--heartbeat", "6s", "--", "bash", "-c", &script]);
    let id = push(&mut client, &json!(1));
    eventually("it runs", SOON, || running(&mut client) == 1);
    run(&mut client, r#"SELECT queue.configure('mail', '{"lease": "4 s"}')"#);
    let held = "SELECT count(*) FROM queue.tasks WHERE state = 'running' AND attempt = 1 AND lease_until";
    let short = format!("{held} < clock_timestamp() + interval '5 s'");
    eventually("its lease is shorter", SOON, || number(&mut client, &short) == 1);
    let end = number(&mut client, "SELECT extract(epoch FROM lease_until)::bigint FROM queue.tasks");
    let later = format!("{held} > to_timestamp({end} + 8)");
    eventually("it is extended again and again", SOON, || number(&mut client, &later) == 1);
    std::fs::write(&go, "").expect("write");
    assert_eq!(await_state(&mut client, id, "completed")["attempt"], 1);
}

#[test]
fn an_attempt_has_a_limit() {
    let (cluster, mut client) = start("limit");
    let id = push(&mut client, &json!(1));
    let _worker = Worker::start(&cluster, &["mail", "--timeout", "500ms", "--", "sleep", "300"]);
    let found = await_state(&mut client, id, "queued");
    assert_eq!(found["errors"][0]["error"], "stopped after 500ms, the limit of --timeout");
}

#[test]
fn a_command_can_end_its_task_in_its_own_transaction() {
    let (cluster, mut client) = start("own");
    let psql = queue_ext_tests::cluster::bindir().join("psql");
    let script = format!(
        "kind=$(cat); case $kind in 1) end=\"complete($QUEUE_TASK_ID, $QUEUE_TASK_TOKEN, '7')\";; \
         2) end=\"fail($QUEUE_TASK_ID, $QUEUE_TASK_TOKEN, 'mine', '2 hours')\";; \
         3) end=\"release($QUEUE_TASK_ID, $QUEUE_TASK_TOKEN, '3 hours')\";; esac; \
         {} -Xqc \"INSERT INTO ran VALUES ($QUEUE_TASK_ID, $QUEUE_TASK_ATTEMPT)\" -c \"SELECT queue.$end\" --single-transaction >/dev/null",
        psql.display()
    );
    let mut worker = Worker::start(&cluster, &["mail", "--", "bash", "-c", &script]);
    let ids = [1, 2, 3].map(|what| push(&mut client, &json!(what)));
    assert_eq!(await_state(&mut client, ids[0], "completed")["result"], 7);
    let failed = await_state(&mut client, ids[1], "queued");
    assert_eq!(failed["errors"].as_array().map(Vec::len), Some(1), "{failed}");

    let released = format!(
        "SELECT count(*) FROM queue.get({}) WHERE attempt = 0 AND run_at > now() + interval '2 h'",
        ids[2]
    );
    eventually("the third one is released", SOON, || number(&mut client, &released) == 1);
    assert_eq!(worker.end(), Some(0));
    assert_eq!(number(&mut client, "SELECT count(*) FROM ran"), 3);
    // The first completion can wait for the partitions of the history, and is then repeated.
    let log = worker.log();
    assert!(!log.contains("refused") && !log.contains(" error "), "{log}");
}

#[test]
fn what_a_command_leaves_behind_is_killed() {
    let (cluster, mut client) = start("grandchildren");
    let word = format!("301.{}", std::process::id());
    let id = push(&mut client, &json!(1));
    let script = format!("sleep {word} & setsid true; exit 0");
    let _worker = Worker::start(&cluster, &["mail", "--result", "text", "--", "bash", "-c", &script]);
    await_state(&mut client, id, "completed");
    eventually("the grandchild is gone", SOON, || program::processes_with(&word) == 0);
}

#[test]
fn kill_9_leaves_no_command_running_and_another_worker_continues() {
    let (cluster, mut client) = start("kill-9");
    run(&mut client, r#"SELECT queue.configure('mail', '{"lease": "3 s"}')"#);
    let word = format!("302.{}", std::process::id());
    let tasks = if brief() { 20 } else { 100 };
    let all = format!("SELECT count(queue.push('mail', to_jsonb(n))) FROM generate_series(1, {tasks}) AS n");
    run(&mut client, &all);
    let script = format!("sleep {word} & sleep {word}");
    let worker = Worker::start(&cluster, &["mail", "--concurrency", "100", "--", "bash", "-c", &script]);
    eventually("all of them run, and their children", SOON, || program::processes_with(&word) == 2 * tasks);
    worker.signal(libc::SIGKILL);
    eventually("none of them runs", SOON, || program::processes_with(&word) == 0);
    drop(worker);
    let mut worker = Worker::start(&cluster, &["mail", "--concurrency", "10", "--", "true"]);
    let completed = "SELECT count(*) FROM queue.history WHERE state = 'completed' AND attempt >= 2";
    eventually("all of them complete", SOON, || number(&mut client, completed) == tasks as i64);
    assert_eq!(worker.end(), Some(0));
}

#[test]
fn sigterm_lets_handlers_finish_and_gives_back_the_others() {
    let (cluster, mut client) = start("sigterm");
    let script = "read -r seconds; [ $seconds = 31 ] && trap '' TERM; sleep $seconds & wait; sleep $seconds";
    let options = ["mail", "--shutdown-timeout", "4s", "--kill-after", "1s", "--", "bash", "-c", script];
    let mut worker = Worker::start(&cluster, &options);
    let ids = [0.5, 30.0, 31.0].map(|seconds| push(&mut client, &json!(seconds as u32)));
    eventually("they run", SOON, || running(&mut client) >= 2);
    let later = push(&mut client, &json!(0));
    await_state(&mut client, later, "completed");
    worker.signal(libc::SIGTERM);
    let began = Instant::now();
    let after = push(&mut client, &json!(0));
    assert_eq!(worker.await_end(), Some(0));
    assert!(began.elapsed() >= Duration::from_secs(4), "it did not wait");
    await_state(&mut client, ids[0], "completed");
    for id in &ids[1..] {
        let found = task(&mut client, *id);
        assert_eq!(
            (&found["state"], &found["attempt"], &found["errors"]),
            (&json!("queued"), &json!(0), &Value::Null)
        );
    }
    assert_eq!(task(&mut client, after)["attempt"], 0, "it claimed after the signal");
}

#[test]
fn a_command_that_the_service_manager_ends_with_the_worker_costs_no_attempt() {
    let (cluster, mut client) = start("manager");
    run(&mut client, "CREATE TABLE pids (task bigint, pid integer)");
    // Many programs catch the signal and exit with a code that stands for it.
    let script = r#"read -r code; [ $code = 0 ] || trap "exit $code" TERM
        psql -qXc "INSERT INTO pids VALUES ($QUEUE_TASK_ID, $$)"
        [ $code != 0 ] || exec sleep 300
        sleep 300 & wait"#;
    let mut worker = Worker::start(&cluster, &["mail", "--", "bash", "-c", script]);
    let stopped = [0, 143, 130].map(|code| push(&mut client, &json!(code)));
    let pid = |client: &mut Client, task: i64| {
        let pids = "SELECT pid FROM pids WHERE task = $1";
        let mut pid = 0;
        eventually("it runs", SOON, || {
            pid = client.query_opt(pids, &[&task]).expect("read the process").map_or(0, |row| row.get(0));
            pid > 0
        });
        pid
    };
    let pids = stopped.map(|id| pid(&mut client, id));
    // Before the end of the worker, a signal is a failure of the command.
    for (code, error) in [(0, "killed by signal 15"), (143, "exited with code 143")] {
        let failed = push(&mut client, &json!(code));
        cluster::signal(pid(&mut client, failed), libc::SIGTERM);
        let found = await_state(&mut client, failed, "queued");
        assert_eq!(found["errors"][0]["error"], error);
    }
    worker.signal(libc::SIGTERM);
    eventually("it waits", SOON, || worker.log().contains("waiting for handlers"));
    pids.into_iter().for_each(|pid| cluster::signal(pid, libc::SIGTERM));
    assert_eq!(worker.await_end(), Some(0));
    for id in stopped {
        let found = task(&mut client, id);
        assert_eq!(
            (&found["state"], &found["attempt"], &found["errors"]),
            (&json!("queued"), &json!(0), &Value::Null)
        );
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let (cluster, mut client) = start("second");
    let word = format!("303.{}", std::process::id());
    let mut worker =
        Worker::start(&cluster, &["mail", "--", "bash", "-c", &format!("trap '' TERM; sleep {word}")]);
    let id = push(&mut client, &json!(1));
    // Not only claimed: a task whose command has not begun is given back at the first signal.
    eventually("it runs", SOON, || program::processes_with(&word) == 1);
    let began = Instant::now();
    worker.signal(libc::SIGTERM);
    eventually("it waits", SOON, || worker.log().contains("waiting for handlers"));
    assert_eq!(worker.end(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(
        (task(&mut client, id)["state"].clone(), task(&mut client, id)["attempt"].clone()),
        (json!("queued"), json!(0))
    );
}

#[test]
fn a_waiting_worker_ends_at_once_and_leaves_no_session() {
    let (cluster, mut client) = start("waiting");
    let mut worker = Worker::start(&cluster, &["mail", "--name", "w", "--", "true"]);
    let waiting = "SELECT count(*) FROM queue.workers WHERE worker = 'w' AND waiting = 1";
    eventually("it waits", SOON, || number(&mut client, waiting) == 1);
    let began = Instant::now();
    assert_eq!(worker.end(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'w'";
    eventually("its sessions end", SOON, || number(&mut client, sessions) == 0);
}

#[test]
fn a_claim_that_waits_for_a_lock_while_the_worker_ends_takes_no_task() {
    let (cluster, mut client) = start("locked-claim");
    let ids: Vec<i64> = (0..3).map(|_| push(&mut client, &json!(1))).collect();
    let mut locking = cluster.connect();
    run(&mut locking, "BEGIN; LOCK TABLE queue.tasks");
    let mut worker = program::program_for(&cluster);
    let mut worker =
        worker.args(["work", "mail", "--name", "w", "--", "true"]).spawn().expect("start the worker");
    let _killed = program::KilledOnFailure(worker.id());
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'w'";
    let blocked = format!("{sessions} AND wait_event_type = 'Lock' AND query LIKE '%queue.claim%'");
    eventually("the claim waits for the lock", SOON, || number(&mut client, &blocked) == 1);
    cluster::signal(worker.id() as i32, libc::SIGTERM);
    assert_eq!(worker.wait().expect("its end").code(), Some(0));
    run(&mut locking, "ROLLBACK");
    eventually("its sessions end", SOON, || number(&mut client, sessions) == 0);
    for id in ids {
        let found = task(&mut client, id);
        assert_eq!((&found["state"], &found["attempt"]), (&json!("queued"), &json!(0)));
    }
}

#[test]
fn each_task_runs_once_while_the_server_restarts_and_connections_break() {
    let (mut cluster, mut client) = start("outage");
    let ran = cluster.folder().join("ran");
    let script = format!("echo $QUEUE_TASK_ID >> {}; sleep 0.3", ran.display());
    let mut worker =
        Worker::start(&cluster, &["mail", "--concurrency", "5", "--name", "w", "--", "bash", "-c", &script]);
    run(&mut client, "SELECT count(queue.push('mail', to_jsonb(n))) FROM generate_series(1, 60) AS n");
    let done =
        |client: &mut Client| number(client, "SELECT count(*) FROM queue.history WHERE state = 'completed'");
    for _ in 0..4 {
        run(
            &mut client,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'w'",
        );
        std::thread::sleep(Duration::from_millis(300));
    }
    cluster.stop("fast");
    cluster.launch();
    let mut client = cluster.connect();
    eventually("all of them complete", SOON, || done(&mut client) == 60);
    assert_eq!(worker.end(), Some(0));
    let lines = std::fs::read_to_string(&ran).expect("what ran");
    assert_eq!(lines.lines().count(), 60, "some ran twice");
    let log = worker.log();
    assert!(log.contains("the server cannot be used") && log.contains("the server answers again"), "{log}");
}

#[test]
fn it_works_through_a_pooler_in_transaction_mode() {
    let (cluster, mut client) = start("pooler");
    let bouncer = PgBouncer::start(&cluster, 4, "");
    let pooled = || {
        let mut command = program::program_for(&cluster);
        command.env("PGPORT", pgbouncer::PORT.to_string());
        command
    };
    let options = ["mail", "--concurrency", "5", "--heartbeat", "200ms", "--", "sleep", "0.3"];
    let mut workers = [Worker::run(pooled(), &options), Worker::run(pooled(), &options)];
    run(&mut client, "SELECT count(queue.push('mail', to_jsonb(n))) FROM generate_series(1, 40) AS n");
    let done = "SELECT count(*) FROM queue.history WHERE state = 'completed' AND attempt = 1";
    eventually("all of them complete", SOON, || number(&mut client, done) == 40);
    for worker in &mut workers {
        assert_eq!(worker.end(), Some(0));
        assert!(!worker.log().contains("cannot be used"), "{}", worker.log());
    }
    // PgBouncer 1.18 does not survive a client that closes the connection of its cancel request too early.
    run(&mut bouncer.connect(), "SELECT 1");
}

#[test]
fn errors_that_no_retry_helps_end_the_worker() {
    let (cluster, mut client) = start("final");
    call(&cluster, &["work", "nope", "--", "true"]).refusal(1, "QX002");
    call(&cluster, &["work", "mail", "--", "no-such-command"]).refusal(2, "there is no such command");
    run(&mut client, "CREATE ROLE nobody LOGIN");
    run(&mut client, "CREATE DATABASE empty");
    for (variable, value, code) in
        [("PGUSER", "nobody", "42501"), ("PGDATABASE", "empty", "3F000"), ("PGDATABASE", "gone", "3D000")]
    {
        let mut command = program::program_for(&cluster);
        command.env(variable, value).args(["work", "mail", "--", "true"]);
        program::answer(command, "").refusal(1, code);
    }
    let mut worker = Worker::start(&cluster, &["mail", "--", "true"]);
    run(&mut client, "SELECT queue.drop('mail')");
    assert_eq!(worker.await_end(), Some(1));
    assert!(worker.log().contains("QX002"), "{}", worker.log());
}

#[test]
fn log_lines_can_be_json() {
    let (cluster, mut client) = start("log");
    let id = push(&mut client, &json!({"secret": "payload"}));
    let mut command = program::program_for(&cluster);
    command.args(["work", "mail", "--log", "json", "--verbose", "--", "false"]);
    let child = command.spawn().expect("start the worker");
    let _killed = program::KilledOnFailure(child.id());
    await_state(&mut client, id, "queued");
    cluster::signal(child.id() as i32, libc::SIGTERM);
    let log = String::from_utf8(child.wait_with_output().expect("its output").stderr).expect("text");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let failed = lines.iter().find(|line| line["message"] == "failed").expect("the failure");
    assert_eq!((&failed["task"], &failed["error"]), (&json!(id), &json!("exited with code 1")));
    assert!(!log.contains("secret"), "{log}");
}

/// In a container, a process whose parent has ended becomes a child of the first process. PR_SET_CHILD_SUBREAPER makes the worker the
/// new parent here, as if it were that first process.
#[test]
fn what_a_command_leaves_does_not_stay_as_a_zombie() {
    let (cluster, mut client) = start("orphans");
    let mut command = program::program_for(&cluster);
    // SAFETY: touches no memory.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    let script = "(sleep 1000; true) & (sleep 1000; true) & echo done";
    let mut worker = Worker::run(command, &["mail", "--result", "text", "--", "bash", "-c", script]);
    let children = |worker: &Worker| {
        let list = format!("/proc/{0}/task/{0}/children", worker.pid());
        std::fs::read_to_string(list).expect("its children").split_whitespace().count()
    };
    let guard = children(&worker);
    for _ in 0..5 {
        let id = push(&mut client, &json!(1));
        await_state(&mut client, id, "completed");
    }
    eventually("only the guard is left", SOON, || children(&worker) == guard);
    assert_eq!(worker.end(), Some(0));
}
