//! queue.health(): each trouble is caused, is named while it lasts, and is gone when it is over.

use postgres::{Client, NoTls};
use queue_ext_tests::{Cluster, SOON, Settings, eventually, run};

const CHECKS: [&str; 13] = [
    "version",
    "engine",
    "worker",
    "lanes",
    "due tasks",
    "leases",
    "events",
    "batches",
    "schedules",
    "handlers",
    "dead letters",
    "horizon",
    "partitions",
];

fn with_settings(name: &str, preload: bool, extra: &'static str) -> Cluster {
    let cluster = Cluster::installed(name, &Settings { preload, extra });
    cluster
}

/// The status, detail and hint of the rows of a check. If `strict`, with thresholds that are exceeded at once; other
/// objects, such as the worker, may then be reported for a moment.
fn check(client: &mut Client, name: &str, strict: bool) -> Vec<[String; 3]> {
    let thresholds = if strict { "'1 ms', '1 ms', '1 ms', 1" } else { "" };
    let query =
        format!("SELECT status, detail, coalesce(hint, '') FROM queue.health({thresholds}) WHERE name = $1");
    let rows = client.query(&query, &[&name]).expect("health");
    assert!(!rows.is_empty(), "{name}");
    rows.iter().map(|row| std::array::from_fn(|i| row.get(i))).collect()
}

fn is_ok_now(client: &mut Client, name: &str, strict: bool) -> bool {
    check(client, name, strict).iter().all(|[status, ..]| status == "ok")
}

fn is_ok(client: &mut Client, name: &str) {
    eventually(&format!("{name} is well"), SOON, || is_ok_now(client, name, true));
}

/// The check reports the problem and the remedy in these words.
fn complains(client: &mut Client, name: &str, status: &str, detail: &str, hint: &str) {
    eventually(&format!("{name} complains"), SOON, || {
        check(client, name, true)
            .iter()
            .any(|row| row[0] == status && row[1].contains(detail) && row[2].contains(hint))
    });
}

#[test]
fn a_healthy_server_reports_ok_to_pg_monitor() {
    let mut cluster = with_settings("health-good", true, "");
    cluster.await_worker("postgres");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.push('default'); CREATE ROLE monitor LOGIN IN ROLE pg_monitor; SET ROLE monitor",
    );
    let rows = client.query("SELECT name, status, hint FROM queue.health()", &[]).expect("health");
    let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, CHECKS);
    for row in &rows {
        let (name, status, hint): (String, String, Option<String>) = (row.get(0), row.get(1), row.get(2));
        assert_eq!((status.as_str(), hint), ("ok", None), "{name}");
    }
    let nulls =
        client.query("SELECT FROM queue.health(NULL, NULL, NULL, NULL, NULL) WHERE status = 'ok'", &[]);
    assert_eq!(nulls.expect("health").len(), CHECKS.len(), "null is the default");
}

#[test]
fn a_missing_library_or_worker_is_reported() {
    let cluster = with_settings("health-bare", false, "");
    let mut client = cluster.connect();
    complains(&mut client, "engine", "warning", "not preloaded", "shared_preload_libraries");
    complains(&mut client, "worker", "warning", "library is not preloaded", "CALL queue.maintain()");

    let cluster = with_settings("health-no-lanes", true, "queue.lanes = 0");
    complains(&mut cluster.connect(), "engine", "warning", "queue.lanes is 0", "restart");

    // The launcher occupies the only slot for a worker process.
    let cluster = with_settings(
        "health-no-worker",
        true,
        "max_worker_processes = 1\nmax_logical_replication_workers = 0",
    );
    complains(
        &mut cluster.connect(),
        "worker",
        "critical",
        "there is no background worker",
        "max_worker_processes",
    );

    let mut cluster = with_settings("health-worker-off", true, "");
    cluster.await_worker("postgres");
    let mut client = cluster.connect();
    is_ok(&mut client, "worker");
    run(&mut client, "ALTER SYSTEM SET queue.worker_enabled = off");
    run(&mut client, "SELECT pg_reload_conf()");
    complains(&mut client, "worker", "warning", "worker_enabled is off", "CALL queue.maintain()");
    run(&mut client, "ALTER SYSTEM RESET queue.worker_enabled");
    run(&mut client, "SELECT pg_reload_conf()");
    is_ok(&mut client, "worker");
}

#[test]
fn queues_without_a_lane_are_reported() {
    let mut cluster = with_settings("health-lanes", true, "queue.lanes = 1");
    // Calls are counted from then on.
    cluster.await_worker("postgres");
    let mut client = cluster.connect();
    is_ok(&mut client, "lanes");
    run(&mut client, "SELECT queue.create('second'); SELECT queue.push('default'), queue.push('second')");
    run(&mut client, "SELECT queue.claim('1 hour')");
    run(&mut client, "SELECT queue.claim('1 hour', 'second')");
    complains(&mut client, "lanes", "warning", "1 queues", "queue.lanes");
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.tasks WHERE queue = 'second'");
    is_ok(&mut client, "lanes");
}

#[test]
fn problems_with_tasks_are_reported_while_they_last() {
    let cluster = with_settings("health-tasks", true, "queue.worker_enabled = off\nqueue.history_ahead = 2");
    let mut client = cluster.connect();
    assert_eq!(check(&mut client, "partitions", true)[0][1], "no task has finished yet");
    run(&mut client, "SELECT queue.push('default')");
    complains(&mut client, "due tasks", "warning", "queue \"default\": 1 tasks are due", "Start workers");
    run(&mut client, "SELECT queue.push('default'); SELECT queue.claim('1 hour')");
    complains(
        &mut client,
        "due tasks",
        "warning",
        "queue \"default\": 1 tasks are due",
        "Start more workers",
    );
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.tasks WHERE state = 'running'");
    run(&mut client, "SELECT queue.pause('default')");
    complains(&mut client, "due tasks", "warning", "", "queue.resume('default')");
    assert!(is_ok_now(&mut client, "due tasks", false), "ten minutes have not passed");
    run(&mut client, "SELECT queue.resume('default'); SELECT queue.claim('50 ms', worker => 'late')");
    is_ok(&mut client, "due tasks");

    complains(&mut client, "leases", "warning", "a lease of worker \"late\" expired", "SELECT queue.reap()");
    assert!(is_ok_now(&mut client, "leases", false), "a minute has not passed");
    run(&mut client, "CALL queue.maintain()");
    is_ok(&mut client, "leases");

    run(
        &mut client,
        "UPDATE queue.tasks SET run_at = now(); SELECT queue.fail(id, token, 'no', permanent => true) FROM queue.claim('1 hour')",
    );
    complains(&mut client, "dead letters", "warning", "1 tasks failed for good", "queue.redrive('default')");
    assert!(is_ok_now(&mut client, "dead letters", false), "there are not ten");
    run(&mut client, "SELECT queue.redrive('default')");
    is_ok(&mut client, "dead letters");

    is_ok(&mut client, "events");
    run(
        &mut client,
        "SELECT queue.push('default', group_key => 'g');
         UPDATE queue_internal.events SET tries = 8, error = 'not this one'",
    );
    complains(
        &mut client,
        "events",
        "warning",
        "queue \"default\": 1 tasks or groups cannot be unblocked, 1 of them because of an error",
        "WHERE queue = 'default' AND error IS NOT NULL",
    );
    run(&mut client, "CREATE ROLE monitor IN ROLE pg_monitor; SET ROLE monitor");
    complains(&mut client, "events", "warning", "1 tasks or groups cannot be unblocked", "Remove the cause");
    run(&mut client, "RESET ROLE; DROP ROLE monitor");
    run(&mut client, "UPDATE queue_internal.events SET error = NULL");
    complains(&mut client, "events", "warning", "0 of them because of an error", "pg_stat_activity");
    run(&mut client, "CALL queue.maintain()");
    is_ok(&mut client, "events");

    assert!(check(&mut client, "partitions", true)[0][1].starts_with("the last one is for"));
    run(
        &mut client,
        "DO $$ BEGIN EXECUTE format('DROP TABLE queue.%I',
                          'history_' || to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD')); END $$",
    );
    complains(&mut client, "partitions", "warning", "none for tomorrow", "CALL queue.maintain()");
    run(&mut client, "CALL queue.maintain()");
    is_ok(&mut client, "partitions");
}

#[test]
fn a_schedule_that_is_late_is_reported() {
    let cluster = with_settings("health-schedules", true, "queue.worker_enabled = off");
    let mut client = cluster.connect();
    is_ok(&mut client, "schedules");
    run(&mut client, "SELECT queue.schedule('report', '@yearly', 'default')");
    run(&mut client, "UPDATE queue.schedules SET next_run_at = now() - interval '90 seconds'");
    let late = ["warning", "queue \"default\": schedules that are due: 1,", "CALL queue.maintain()"];
    complains(&mut client, "schedules", late[0], late[1], late[2]);
    assert!(is_ok_now(&mut client, "schedules", false), "the next queue.maintain() may be in time");
    run(&mut client, "UPDATE queue.schedules SET next_run_at = now() - interval '121 seconds'");
    assert!(!is_ok_now(&mut client, "schedules", false));
    // One that fails is reported as such, and no more.
    run(&mut client, "UPDATE queue.schedules SET last_error = 'no', last_error_at = now()");
    assert_eq!(check(&mut client, "schedules", true).len(), 1);
    complains(
        &mut client,
        "schedules",
        "warning",
        "schedules that could not push their last task: 1",
        "last_error",
    );
    run(&mut client, "UPDATE queue.schedules SET last_error = NULL, last_error_at = NULL");
    run(&mut client, "CALL queue.maintain()");
    is_ok(&mut client, "schedules");
}

#[test]
fn a_session_that_holds_back_vacuum_is_reported() {
    let cluster = with_settings("health-horizon", true, "max_prepared_transactions = 5");
    let mut client = cluster.connect();
    is_ok(&mut client, "horizon");
    let mut config = cluster.config("postgres");
    let mut old = config.application_name("nightly report").connect(NoTls).expect("connect");
    run(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM queue.tasks");
    complains(
        &mut client,
        "horizon",
        "warning",
        "\"nightly report\", idle in transaction) has a transaction open",
        "pg_terminate_backend(",
    );
    assert!(is_ok_now(&mut client, "horizon", false), "ten minutes have not passed");
    run(&mut old, "ROLLBACK");
    is_ok(&mut client, "horizon");
    run(&mut old, "BEGIN; SELECT queue.push('default'); PREPARE TRANSACTION 'forgotten'");
    complains(
        &mut client,
        "horizon",
        "warning",
        "transaction 'forgotten' was prepared",
        "ROLLBACK PREPARED 'forgotten'",
    );
    assert!(is_ok_now(&mut client, "horizon", false), "ten minutes have not passed");
    run(&mut old, "ROLLBACK PREPARED 'forgotten'");
    is_ok(&mut client, "horizon");
}

#[test]
fn standbys_and_slots_that_hold_back_vacuum_are_reported() {
    let mut cluster = with_settings(
        "health-standby",
        true,
        "hot_standby_feedback = on\nwal_receiver_status_interval = 1\nwal_retrieve_retry_interval = 100",
    );
    cluster.await_worker("postgres");
    let mut client = cluster.connect();
    run(&mut client, "SELECT pg_create_physical_replication_slot('kept')");
    let standby = cluster.standby("health-standby-copy");
    let mut there = standby.connect();
    assert_eq!(check(&mut there, "worker", false)[0][..2], ["ok", "a standby has no background worker"]);
    run(&mut there, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM queue.tasks");
    // The oldest that it needs is a transaction of later.
    run(&mut client, "SELECT queue.push('default'); SELECT queue.push('default')");
    let mut held_back = |what: &str, hint: &str| {
        let query = "SELECT count(*) FROM queue.health(held_back => 1)
                     WHERE name = 'horizon' AND status = 'warning' AND detail LIKE $1 || '%' AND hint LIKE $2 || '%'";
        eventually(&format!("{what} is named"), SOON, || {
            client.query_one(query, &[&what, &hint]).expect("health").get::<_, i64>(0) == 1
        });
        assert!(is_ok_now(&mut client, "horizon", false), "there are not a million");
    };
    held_back("standby \"walreceiver\" holds back vacuum by", "End the old query on the standby");
    let mut superuser = standby.connect();
    run(&mut superuser, "ALTER SYSTEM SET primary_slot_name = 'kept'");
    run(&mut superuser, "SELECT pg_reload_conf()");
    held_back(
        "replication slot \"kept\" holds back vacuum by",
        "Let its standby catch up, or drop it: SELECT pg_drop_replication_slot('kept')",
    );
}
