//! What happens to the outcomes of `queue work` while the server does not take them.

use std::path::PathBuf;
use std::time::Duration;

use postgres::Client;
use queue_ext_tests::{Cluster, SOON, eventually, number, relay, run, text};
use serde_json::json;

use super::commands::{await_state, push, start, task};
use super::run::{self as program, KilledOnFailure, Worker, program_for};

/// Makes the server refuse every completion with this SQLSTATE, until `mend`.
fn break_completions(client: &mut Client, sqlstate: &str) {
    refuse(client, &format!("RAISE 'refused by a test' USING ERRCODE = '{sqlstate}';"));
    run(
        client,
        "CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON queue.history FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
}

/// Leaves the trigger in place: to drop it would lock tables in another order than the completions that are under way.
fn mend(client: &mut Client) {
    refuse(client, "");
}

fn refuse(client: &mut Client, first: &str) {
    run(
        client,
        &format!(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN {first} RETURN NEW; END $$"
        ),
    );
}

fn push_many(client: &mut Client, count: i64) {
    run(client, &format!("SELECT FROM queue.push_many('mail', array_fill('1'::jsonb, '{{{count}}}'))"));
}

fn await_completions(client: &mut Client, count: i64) {
    let done =
        "SELECT count(*) FROM queue.history WHERE state = 'completed' AND attempt = 1 AND errors IS NULL";
    eventually("all are completed by their first attempt", SOON, || number(client, done) == count);
}

fn sessions(client: &mut Client) -> i64 {
    number(client, "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ ':[0-9]+$'")
}

#[test]
fn an_error_that_is_not_about_the_outcomes_costs_none_of_them() {
    let (cluster, mut client) = start("refused-for-a-while");
    for (sqlstate, count) in [("53100", 20), ("XX000", 40)] {
        break_completions(&mut client, sqlstate);
        let options = ["mail", "--concurrency", "20", "--result", "json", "--", "echo", "1"];
        let mut worker = Worker::start(&cluster, &options);
        push_many(&mut client, 20);
        std::thread::sleep(Duration::from_secs(20));
        mend(&mut client);
        await_completions(&mut client, count);
        assert_eq!(worker.end(), Some(0));
        let log = worker.log();
        assert!(log.contains(sqlstate), "{log}");
        // The message of an error in a trigger can contain a part of a payload.
        assert!(!log.contains("refused by a test"), "{log}");
    }
}

#[test]
fn a_refused_report_is_logged_without_the_message_of_the_error() {
    let (cluster, mut client) = start("refused-log");
    refuse(&mut client, "PERFORM (NEW.payload ->> 'number')::integer;");
    run(
        &mut client,
        "CREATE TRIGGER refuse BEFORE INSERT ON queue.dead_letters FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let id = push(&mut client, &json!({"number": "s3cret"}));
    let mut worker = Worker::start(&cluster, &["mail", "--verbose", "--", "bash", "-c", "exit 65"]);
    eventually("the refusal is logged", SOON, || worker.log().contains("22P02"));
    mend(&mut client);
    await_state(&mut client, id, "failed");
    assert_eq!(worker.end(), Some(0));
    assert!(!worker.log().contains("s3cret"), "{}", worker.log());
}

#[test]
fn a_refused_completion_is_a_failed_attempt_and_costs_no_connection() {
    let (cluster, mut client) = start("refused-completion");
    break_completions(&mut client, "P0001");
    for (results, what) in [("none", "completion"), ("json", "result")] {
        let mut worker = Worker::start(&cluster, &["mail", "--result", results, "--", "echo", "1"]);
        let pids = "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE application_name ~ ':[0-9]+$'";
        let before = text(&mut client, pids);
        let id = push(&mut client, &json!(1));
        let error = await_state(&mut client, id, "queued")["errors"][0]["error"].clone();
        assert_eq!(error, format!("the server refused the {what}: refused by a test"));
        assert_eq!(text(&mut client, pids), before);
        assert_eq!(worker.end(), Some(0));
        eventually("its sessions end", SOON, || sessions(&mut client) == 0);
    }
}

#[test]
fn an_error_text_that_the_database_cannot_encode_is_stored_in_ascii() {
    let (cluster, mut client) = start("latin1");
    run(&mut client, "CREATE DATABASE latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
    let mut client = cluster.connect_to("latin1");
    run(&mut client, "CREATE EXTENSION queue_ext");
    run(&mut client, "SELECT queue.create('mail')");
    let id = push(&mut client, &json!(1));
    let mut command = program_for(&cluster);
    command.env("PGDATABASE", "latin1");
    let _worker = Worker::run(command, &["mail", "--", "bash", "-c", "printf 'no ☃ 😀' >&2; exit 65"]);
    let error = await_state(&mut client, id, "failed")["errors"][0].clone();
    assert_eq!(error["error"], "exited with code 65\nno \\u2603 \\ud83d\\ude00");
    assert_eq!(error["details"], json!({"exit_code": 65}));
}

#[test]
fn nothing_is_claimed_before_all_connections_are_open() {
    let (cluster, mut client) = start("connection-limit");
    run(&mut client, "CREATE ROLE few LOGIN CONNECTION LIMIT 2; SELECT queue.grant_worker('few')");
    let id = push(&mut client, &json!(1));
    let mut command = program_for(&cluster);
    command.env("PGUSER", "few").args(["work", "mail", "--", "true"]);
    let mut worker = command.spawn().expect("start the worker");
    let _killed = KilledOnFailure(worker.id());
    eventually("it has two connections", SOON, || sessions(&mut client) == 2);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(task(&mut client, id)["attempt"], 0);
    run(&mut client, "ALTER ROLE few CONNECTION LIMIT 3");
    assert_eq!(await_state(&mut client, id, "completed")["attempt"], 1);
    worker.kill().expect("kill");
    worker.wait().expect("its end");
}

#[test]
fn claims_stop_while_outcomes_cannot_be_reported() {
    let (cluster, mut client) = start("unreported");
    break_completions(&mut client, "53100");
    push_many(&mut client, 60);
    let mut worker = Worker::start(&cluster, &["mail", "--concurrency", "2", "--", "true"]);
    std::thread::sleep(Duration::from_secs(5));
    let claimed = number(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'running'");
    assert!((20..=22).contains(&claimed), "{claimed} are claimed");
    mend(&mut client);
    await_completions(&mut client, 60);
    assert_eq!(worker.end(), Some(0));
}

/// A worker on this many tasks, whose commands end when the file `go` is in the folder.
fn start_held(cluster: &Cluster, client: &mut Client, tasks: i64) -> (Worker, PathBuf) {
    push_many(client, tasks);
    let mut command = program_for(cluster);
    let folder = cluster.folder().join("held");
    std::fs::create_dir_all(&folder).expect("a folder");
    command.current_dir(&folder);
    let script = "until [ -e go ]; do sleep 0.1; done";
    let options = ["mail", "--concurrency", &tasks.to_string(), "--", "bash", "-c", script];
    let worker = Worker::run(command, &options);
    let running = "SELECT count(*) FROM queue.tasks WHERE state = 'running'";
    eventually("all run", SOON, || number(client, running) == tasks);
    (worker, folder)
}

#[test]
fn locked_tasks_cost_no_outcome_of_others_when_the_worker_ends() {
    let (cluster, mut client) = start("locked-at-the-end");
    let (mut worker, folder) = start_held(&cluster, &mut client, 24);
    let mut locking = cluster.connect();
    run(&mut locking, "BEGIN; SELECT FROM queue.tasks WHERE id % 3 = 0 FOR UPDATE");
    worker.signal(libc::SIGTERM);
    eventually("it waits", SOON, || worker.log().contains("waiting for handlers"));
    std::fs::write(folder.join("go"), "").expect("write");
    assert_eq!(worker.await_end(), Some(1));
    assert!(worker.log().contains("the outcomes of 8 tasks could not be reported"));
    await_completions(&mut client, 16);
}

#[test]
fn a_locked_task_does_not_delay_the_outcomes_of_others() {
    let (cluster, mut client) = start("locked");
    let (mut worker, folder) = start_held(&cluster, &mut client, 21);
    let locked = number(&mut client, "SELECT min(id) + 10 FROM queue.tasks");
    let mut locking = cluster.connect();
    run(&mut locking, &format!("BEGIN; SELECT FROM queue.tasks WHERE id = {locked} FOR UPDATE"));
    std::fs::write(folder.join("go"), "").expect("write");
    let done = "SELECT count(*) FROM queue.history WHERE state = 'completed'";
    eventually("the others complete", Duration::from_secs(20), || number(&mut client, done) == 20);
    // Later ones need not wait either.
    push_many(&mut client, 5);
    eventually("later ones complete", Duration::from_secs(20), || number(&mut client, done) == 25);
    run(&mut locking, "COMMIT");
    await_completions(&mut client, 26);
    assert_eq!(worker.end(), Some(0));
    assert!(worker.log().contains("55P03"), "{}", worker.log());
}

#[test]
fn a_statement_without_an_answer_leaves_no_session() {
    let (cluster, mut client) = start("no-answer");
    let id = push(&mut client, &json!(1));
    // The heartbeat waits a second for its answer.
    let mut worker =
        Worker::start(&cluster, &["mail", "--concurrency", "1", "--heartbeat", "300ms", "--", "sleep", "10"]);
    await_state_running(&mut client, id);
    let mut locking = cluster.connect();
    run(&mut locking, "BEGIN; LOCK TABLE queue.tasks");
    for _ in 0..8 {
        std::thread::sleep(Duration::from_secs(1));
        let open = sessions(&mut client);
        assert!(open <= 3, "{open} sessions");
    }
    run(&mut locking, "ROLLBACK");
    assert_eq!(await_state(&mut client, id, "completed")["attempt"], 1);
    assert_eq!(worker.end(), Some(0));
}

fn await_state_running(client: &mut Client, id: i64) {
    eventually("it runs", SOON, || task(client, id)["state"] == "running");
}

#[test]
fn a_revoked_right_is_reported_with_the_outcomes_that_it_costs() {
    for heartbeat in ["10s", "200ms"] {
        let (cluster, mut client) = start(&format!("revoked-{heartbeat}"));
        run(
            &mut client,
            "SELECT queue.create('other'); CREATE ROLE ann LOGIN;
             SELECT queue.grant_worker('ann', 'mail'), queue.grant_worker('ann', 'other')",
        );
        let ids: [i64; 2] = [push(&mut client, &json!(1)), push(&mut client, &json!(1))];
        let mut worker = worker_of(&cluster, "ann", heartbeat);
        ids.into_iter().for_each(|id| await_state_running(&mut client, id));
        run(&mut client, "SELECT queue.revoke_worker('ann', 'mail')");
        assert_eq!(worker.await_end(), Some(1));
        let log = worker.log();
        let warnings = log.lines().filter(|line| line.contains(" warn ") && line.contains(" queue=mail"));
        let lost: usize = warnings
            .filter_map(|line| line.split_once(" tasks=")?.1.split(' ').next()?.parse::<usize>().ok())
            .sum();
        assert_eq!(lost, 2, "{log}");
    }
}

/// The claim finds out, too, and ends the worker while the heartbeat still asks about one queue after the other.
#[test]
fn rights_revoked_on_many_queues_are_all_reported_before_the_worker_ends() {
    let (cluster, mut client) = start("revoked-many");
    let queues: Vec<String> = (1..=9).map(|number| format!("mail_{number}")).collect();
    // It keeps one, and with it the right to call the verbs.
    run(
        &mut client,
        "CREATE ROLE ann LOGIN; SELECT queue.create('other'), queue.grant_worker('ann', 'other')",
    );
    for queue in &queues {
        run(
            &mut client,
            &format!(
                "SELECT queue.create('{queue}'), queue.push('{queue}', '1'), queue.grant_worker('ann', '{queue}')"
            ),
        );
    }
    relay::open(&cluster, 5499, |_| {
        let slow = || {
            std::thread::sleep(Duration::from_millis(50));
            true
        };
        [Box::new(slow), Box::new(|| true)]
    });
    let mut command = program_for(&cluster);
    command.env("PGUSER", "ann").env("PGPORT", "5499");
    let mut options: Vec<&str> = queues.iter().map(String::as_str).collect();
    options.extend(["--concurrency", "9", "--heartbeat", "200ms", "--", "sleep", "600"]);
    let mut worker = Worker::run(command, &options);
    eventually("all tasks run", SOON, || {
        number(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'running'") == 9
    });
    run(
        &mut client,
        "SELECT count(queue.revoke_worker('ann', name)) FROM queue.queues WHERE name LIKE 'mail\\__'",
    );
    assert_eq!(worker.await_end(), Some(1));
    let log = worker.log();
    let lost = log.lines().filter(|line| line.contains("the right on the queue is lost"));
    assert_eq!(lost.filter(|line| line.contains(" tasks=1")).count(), queues.len(), "{log}");
}

fn worker_of(cluster: &Cluster, role: &str, heartbeat: &str) -> Worker {
    let mut command = program_for(cluster);
    command.env("PGUSER", role);
    let options = ["mail", "other", "--heartbeat", heartbeat, "--", "sleep", "3"];
    Worker::run(command, &options)
}

/// An error of the login can have the SQLSTATE of a value that is not valid. It is no answer to a report or a heartbeat.
#[test]
fn a_login_that_the_server_refuses_is_an_outage() {
    let (cluster, mut client) = start("refused-login");
    run(&mut client, "SELECT queue.configure('mail', '{\"lease\": \"20 seconds\", \"max_attempts\": 1}')");
    run(
        &mut client,
        "CREATE ROLE app; CREATE ROLE worker LOGIN; GRANT app TO worker; SELECT queue.grant_worker('app', 'mail')",
    );
    let settings = "options='-c role=app' user=worker";
    let url = format!("{settings} dbname=postgres host={}", cluster.folder().display());
    let options = ["mail", "--url", &url, "--concurrency", "20", "--heartbeat", "0.5s", "--", "sleep", "3"];
    let mut worker = Worker::run(program_for(&cluster), &options);
    push_many(&mut client, 20);
    eventually("they run", SOON, || {
        number(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'running'") == 20
    });
    run(&mut client, "ALTER ROLE app RENAME TO away");
    run(&mut client, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'worker'");
    eventually("the outage is logged", SOON, || worker.log().contains("22023"));
    // Longer than the commands take: their outcomes wait, too.
    std::thread::sleep(Duration::from_secs(5));
    run(&mut client, "ALTER ROLE away RENAME TO app");
    await_completions(&mut client, 20);
    assert_eq!(worker.end(), Some(0));
    let log = worker.log();
    // Each reason once: the login's, and that of a statement that was under way.
    assert!(log.matches("the server cannot be used").count() <= 2, "{log}");
    assert!(!log.contains("does not extend"), "{log}");
}

#[test]
fn a_lease_that_is_too_long_ends_the_worker_with_the_reason() {
    let (cluster, _client) = start("too-long");
    let refused = program::call(&cluster, &["work", "mail", "--lease", "100000d", "--", "true"]);
    assert!(refused.errors.contains("queue.max_lease"), "{}", refused.errors);
}
