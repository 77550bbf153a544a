//! Alterations that only one check of the native functions can notice.

use super::*;

/// Runs a statement in another session, and waits until that session waits for a lock.
fn blocked(
    client: &mut Client,
    mut other: Client,
    statement: &'static str,
) -> std::thread::JoinHandle<Result<Client, postgres::Error>> {
    let pid: i32 = other.query_one("SELECT pg_backend_pid()", &[]).expect("pid").get(0);
    let thread = std::thread::spawn(move || other.batch_execute(statement).map(|()| other));
    eventually("it waits for a lock", SOON, || {
        let query = format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted");
        thread.is_finished() || count(client, &query) > 0
    });
    thread
}

/// The worker leaves before it has made a partition, and the counters stay.
pub fn without_partitions(client: &mut Client) {
    run(client, "ALTER SYSTEM SET queue.worker_enabled = off");
    run(client, "SELECT pg_reload_conf()");
    let workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue_ext worker'";
    eventually("the worker leaves", SOON, || count(client, workers) == 0);
}

/// An index that CREATE INDEX CONCURRENTLY has just begun is an empty file, and may appear after a function has
/// checked the table.
#[test]
fn an_index_that_is_begun_while_a_completion_waits_is_not_written_to() {
    let cluster = cluster("altered-begun");
    let (mut client, mut holder, mut worker) = (cluster.connect(), cluster.connect(), cluster.connect());
    without_partitions(&mut client);
    round(&mut worker, "known before", "");
    run(&mut worker, "SELECT queue.push('default'); SELECT queue.claim('1 hour')");
    let served = verbs(&mut client, "altered");
    run(&mut holder, "BEGIN; UPDATE queue.tasks SET progress = '1'");
    let worker = blocked(
        &mut client,
        worker,
        "SELECT queue.complete(id, token) FROM (SELECT max(id) AS id, 1 AS token FROM queue.tasks) AS t",
    );
    let builder = blocked(
        &mut client,
        cluster.connect(),
        "CREATE INDEX CONCURRENTLY mine ON queue.history_default (queue)",
    );
    run(&mut holder, "COMMIT");
    worker.join().expect("join").expect("completed");
    builder.join().expect("join").expect("built");
    assert_eq!(verbs(&mut client, "altered"), (served.0 + 1, served.1), "completed natively");
    run(&mut client, "SET enable_seqscan = off");
    let by_index = "SELECT count(*) FROM queue.history_default WHERE queue = 'default'";
    assert_eq!(count(&mut client, by_index), 5);
}

/// The extension's own constraint may be replaced by another one, so that their number is the same.
#[test]
fn a_constraint_that_replaces_one_of_the_extension_is_enforced() {
    let cluster = cluster("altered-constraint");
    let mut client = cluster.connect();
    run(&mut client, "ALTER TABLE queue.tasks DROP CONSTRAINT tasks_lease_check");
    round(&mut client, "without a constraint", "");
    let push = "SELECT queue.push('default', priority => 200)";
    for (name, condition, statement) in [
        ("mine", "priority < 100", push),
        ("tasks_lease_check", "priority < 100", push),
        ("mine", "attempt < 1", "SELECT queue.claim('1 hour')"),
    ] {
        run(&mut client, &format!("ALTER TABLE queue.tasks ADD CONSTRAINT {name} CHECK ({condition})"));
        let came_to = ["on", "off"].map(|fast_path| {
            run(&mut client, "DELETE FROM queue.tasks; SELECT queue.push('default')");
            run(&mut client, &format!("SET queue.fast_path = {fast_path}"));
            code(&mut client, statement)
        });
        assert_eq!(came_to, ["23514", "23514"], "{name}: {condition}");
        run(&mut client, &format!("RESET queue.fast_path; ALTER TABLE queue.tasks DROP CONSTRAINT {name}"));
    }
    run(
        &mut client,
        "DELETE FROM queue.tasks;
         ALTER TABLE queue.tasks ADD CONSTRAINT tasks_lease_check CHECK ((state = 'running') = (lease_until IS NOT NULL))",
    );
    round(&mut client, "with its own again", "");
}

/// The library does not use functions or operators from the caller's search_path.
#[test]
fn functions_and_operators_of_the_caller_are_not_called() {
    let cluster = cluster("altered-names");
    let (mut client, mut holder, mut worker) = (cluster.connect(), cluster.connect(), cluster.connect());
    run(
        &mut client,
        "CREATE SCHEMA evil;
         CREATE FUNCTION evil.step(bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint';
         CREATE AGGREGATE evil.count(*) (SFUNC = evil.step, STYPE = bigint, INITCOND = '7')",
    );
    run(
        &mut worker,
        "SELECT queue.push_many('default', '{1, 2}'); SELECT queue.claim('1 hour', max_tasks => 2)",
    );
    run(&mut worker, "SET search_path = evil, pg_catalog");
    // If the row changed while the call waited for its lock, SQL finishes the call.
    run(&mut holder, "BEGIN; UPDATE queue.tasks SET group_key = 'g' WHERE id = 2");
    let worker = blocked(
        &mut client,
        worker,
        "CREATE TEMP TABLE accepted AS SELECT FROM queue.complete_many('{1, 2}', '{1, 1}')",
    );
    run(&mut holder, "COMMIT");
    let mut worker = worker.join().expect("join").expect("completed");
    assert_eq!(count(&mut worker, "SELECT pg_catalog.count(*) FROM accepted"), 2, "both are accepted");
}
