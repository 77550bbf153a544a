//! All queues share one sequence of ids. No role can write rows about them, so no role can prevent the task of
//! another from ending.

use super::{NO_WORKER, attempt, cluster, column, login, number, run};
use postgres::{Client, NoTls};
use queue_ext_tests::edition::OWNER;
use queue_ext_tests::{Cluster, Edition, SOON, Worker, eventually};

/// Rows that would keep task ID from ending.
const MADE_UP: [&str; 2] = [
    "INSERT INTO queue.history (id, queue, state, priority, run_at, attempt, token, created_at, payload)
     VALUES (ID, 'a', 'completed', 0, now(), 1, 1, now(), '0')",
    "INSERT INTO queue.dead_letters (id, queue, priority, run_at, attempt, token, created_at, payload)
     VALUES (ID, 'a', 0, now(), 1, 1, now(), '0')",
];

/// What a role with all rights for queue "a" could try in order to harm that queue or others.
const REFUSED: [&str; 23] = [
    MADE_UP[0],
    MADE_UP[1],
    "INSERT INTO queue.tasks (id, queue) VALUES (ID, 'a')",
    "INSERT INTO queue.tasks (queue, token) VALUES ('a', 2147483647)",
    "INSERT INTO queue.tasks (queue, state, lease_until) VALUES ('a', 'running', '-infinity')",
    "INSERT INTO queue.tasks (queue) VALUES ('b')",
    "UPDATE queue.tasks SET id = ID WHERE queue = 'a'",
    "UPDATE queue.history SET id = ID WHERE queue = 'a'",
    "UPDATE queue.dead_letters SET id = ID WHERE queue = 'a'",
    "UPDATE queue.tasks SET lease_until = now()",
    "DELETE FROM queue.tasks WHERE queue = 'a'",
    "DELETE FROM queue.history WHERE queue = 'a'",
    "INSERT INTO queue.bindings VALUES ('(', 'a')",
    "UPDATE queue.schedules SET next_run_at = '2020-01-01'",
    "UPDATE queue.queues SET lease = '178000000 years' WHERE name = 'a'",
    "INSERT INTO queue_internal.events (queue, group_key) VALUES ('a', 'g')",
    "INSERT INTO queue.rights VALUES (CURRENT_USER::regrole, 'operator', NULL)",
    "SELECT queue_internal.reap(NULL)",
    "DELETE FROM queue_internal.events",
    "LOCK TABLE queue.tasks IN ROW EXCLUSIVE MODE",
    "LOCK TABLE queue.queues IN ROW SHARE MODE",
    "SELECT FROM queue.tasks FOR UPDATE",
    "SELECT setval('queue.tasks_id_seq', ID)",
];

/// Queues "a" and "b", and roles for "a" alone.
fn two_queues(name: &str, extra: &'static str) -> (Cluster, Client) {
    let cluster = cluster(name, extra);
    let mut admin = cluster.connect();
    fill(&cluster, &mut admin);
    (cluster, admin)
}

fn fill(cluster: &Cluster, admin: &mut Client) {
    run(
        &mut cluster.connect(),
        "CREATE ROLE a_producer LOGIN; CREATE ROLE a_worker LOGIN; CREATE ROLE a_operator LOGIN",
    );
    run(
        admin,
        "SELECT queue.create('a'), queue.create('b'); SELECT queue.push('b'); SELECT queue.purge('b');
         SELECT queue.grant_producer('a_producer', 'a'), queue.grant_worker('a_worker', 'a'),
                queue.grant_operator('a_operator', 'a')",
    );
    run(admin, "CALL queue.maintain()");
}

fn push(client: &mut Client, queue: &str, options: &str) -> i64 {
    number(client, &format!("SELECT queue.push('{queue}'{options})"))
}

/// Tasks of queue b end in every way, whatever the roles for queue a have tried before.
fn tasks_of_b_end(cluster: &Cluster, admin: &mut Client, how: &str) {
    let ids: Vec<i64> = (0..7).map(|_| push(admin, "b", "")).collect();
    run(admin, "SELECT queue.claim('1 hour', 'b', 6)");
    let own = push(admin, "a", "");
    for role in ["a_producer", "a_worker", "a_operator"] {
        let mut forger = login(cluster, role);
        // Those of live tasks, and of one that is still to come.
        for id in ids.iter().chain([&(own + 1)]) {
            for statement in REFUSED.map(|statement| statement.replace("ID", &id.to_string())) {
                let (code, said) = attempt(&mut forger, &statement).expect_err(&statement);
                assert_eq!(code, "42501", "{role}: {statement}: {said}");
            }
        }
    }
    for end in [
        "SELECT queue.complete(ID, 1)",
        "SELECT queue.complete_many('{ID, ID}', '{1, 1}')",
        "SELECT queue.complete_and_claim(ID, 1, queue => 'a')",
        "SELECT queue.fail(ID, 1, 'no', permanent => true)",
        "SELECT queue.cancel(ID); SELECT queue.confirm_cancel(ID, 1)",
        "UPDATE queue.tasks SET lease_until = now() WHERE id = ID; SELECT queue.reap()",
        "SELECT queue.cancel(ID)",
    ]
    .iter()
    .zip(&ids)
    .map(|(end, id)| end.replace("ID", &id.to_string()))
    {
        run(admin, &end);
    }
    let ended = format!(
        "SELECT count(*) FROM queue.all_tasks
         WHERE queue = 'b' AND id BETWEEN {} AND {} AND state IN ('completed', 'cancelled', 'failed')",
        ids[0], ids[6]
    );
    assert_eq!(number(admin, &ended), 7, "{how}");
    run(admin, "SELECT queue.reap(); DELETE FROM queue.tasks");
}

#[test]
fn no_role_can_write_rows_about_a_task_of_another_queue() {
    let (cluster, mut admin) = two_queues("security-ids", NO_WORKER);
    run(&mut admin, "SELECT queue.configure('b', '{\"max_attempts\": 1}')");
    for how in ["SET queue.fast_path = on", "SET queue.fast_path = off"] {
        run(&mut admin, how);
        tasks_of_b_end(&cluster, &mut admin, how);
    }
}

#[test]
fn no_role_can_write_rows_about_a_task_of_another_queue_in_the_sql_only_edition() {
    let cluster = Edition::SqlOnly.cluster("security-ids", Worker::Off);
    Edition::SqlOnly.install(&cluster, "postgres");
    let mut owner = cluster.config("postgres").user(OWNER).connect(NoTls).expect("connect");
    fill(&cluster, &mut owner);
    run(&mut owner, "SELECT queue.configure('b', '{\"max_attempts\": 1}')");
    tasks_of_b_end(&cluster, &mut owner, "SQL-only");
}

#[test]
fn a_worker_of_one_queue_ends_its_tasks_in_every_way() {
    let (cluster, mut admin) = two_queues("security-ends", NO_WORKER);
    for keep in [true, false] {
        run(&mut admin, &format!("SELECT queue.configure('a', '{{\"keep_history\": {keep}}}')"));
        let ids: Vec<i64> = (0..6).map(|_| push(&mut admin, "a", "")).collect();
        let waiting = push(&mut admin, "a", &format!(", after => '{{{}}}'", ids[3]));
        run(
            &mut admin,
            &format!("SELECT queue.cancel({waiting}), queue.push('a', after => '{{{}}}')", ids[0]),
        );
        let mut worker = login(&cluster, "a_worker");
        run(&mut worker, "SELECT queue.claim('1 hour', 'a', 6)");
        run(&mut admin, &format!("SELECT queue.cancel({})", ids[4]));
        run(
            &mut worker,
            &format!(
                "SELECT queue.complete({}, 1, '1'); SELECT queue.complete_many('{{{}, {}}}', '{{1, 1}}');
                 SELECT queue.fail({}, 1, 'no', permanent => true); SELECT queue.confirm_cancel({}, 1);
                 SELECT queue.complete_and_claim({}, 1, queue => 'a')",
                ids[0], ids[2], ids[1], ids[3], ids[4], ids[5]
            ),
        );
        // The task that waited for the first one is the one that the last call claimed.
        assert_eq!(column(&mut admin, "SELECT state FROM queue.tasks WHERE queue = 'a'"), ["running"]);
        let kept = format!("SELECT count(*) FROM queue.history WHERE id BETWEEN {} AND {}", ids[0], ids[5]);
        assert_eq!(number(&mut admin, &kept), if keep { 5 } else { 0 });
        assert_eq!(number(&mut admin, "SELECT count(*) FROM queue.dead_letters"), 1);
        run(&mut admin, "DELETE FROM queue.tasks; DELETE FROM queue.dead_letters");
    }
}

#[test]
fn a_worker_of_all_queues_claims_where_a_task_waits_for_one_that_is_live() {
    let cluster = cluster("security-waits", NO_WORKER);
    let mut admin = cluster.connect();
    run(&mut admin, "SELECT queue.grant_worker('worker')");
    let first = push(&mut admin, "default", "");
    push(&mut admin, "default", &format!(", after => '{{{first}}}'"));
    let mut worker = login(&cluster, "worker");
    assert_eq!(number(&mut worker, "SELECT id FROM queue.claim('1 hour', max_tasks => 9)"), first);
}

#[test]
fn a_task_that_cannot_be_ended_delays_no_other() {
    let (mut cluster, mut admin) = two_queues("security-stuck", "queue.sweep_interval = 1");
    let worker = cluster.await_worker("postgres");
    let mut client = login(&cluster, "a_worker");
    // Only the owner can make that up.
    let made_up = |number: usize, id: i64| MADE_UP[number].replace("ID", &id.to_string());
    // A lease that expires without an attempt left, and a task that is to be cancelled because of its predecessor.
    let stuck = push(&mut admin, "a", ", max_attempts => 1, priority => -1");
    run(&mut client, "SELECT queue.claim('1 hour', 'a')");
    let failing = push(&mut admin, "a", "");
    let waiting = push(&mut admin, "a", &format!(", after => '{{{failing}}}'"));
    run(&mut admin, &made_up(1, stuck));
    run(&mut admin, &made_up(0, waiting));
    run(&mut admin, &format!("UPDATE queue.tasks SET lease_until = now() WHERE id = {stuck}"));
    run(&mut admin, &format!("SELECT queue.cancel({failing})"));
    for _ in 0..2 {
        let first = push(&mut admin, "b", "");
        run(&mut admin, "SELECT queue.claim('20 ms', 'b')");
        let state = format!("SELECT state FROM queue.tasks WHERE id = {first}");
        eventually("a lease of the other queue is ended", SOON, || column(&mut admin, &state) == ["queued"]);
        let next = push(&mut admin, "b", &format!(", after => '{{{first}}}'"));
        // A task that was just requeued can be visible a moment before it can be claimed.
        let complete = "SELECT queue.complete(id, token) FROM queue.claim('1 hour', 'b')";
        eventually("it is completed", SOON, || admin.execute(complete, &[]).expect(complete) == 1);
        let state = format!("SELECT state FROM queue.tasks WHERE id = {next}");
        eventually("what waited in the other queue goes on", SOON, || {
            column(&mut admin, &state) == ["queued"]
        });
        run(&mut admin, "SELECT queue.purge('b')");
    }
    assert_eq!(cluster.await_worker("postgres"), worker, "the worker was never restarted");
    for warning in [
        format!(
            "WARNING:  the lease of task {stuck} expired, but its attempt cannot be ended: duplicate key"
        ),
        format!("WARNING:  task {waiting} of queue \"a\" cannot be unblocked: duplicate key"),
    ] {
        eventually(&warning, SOON, || cluster.log().contains(&warning));
    }
    let named = "SELECT detail FROM queue.health(overdue_for => '1 ms') WHERE name = 'leases'";
    assert!(column(&mut admin, named)[0].starts_with("queue \"a\": a lease of worker"), "health names it");
    // By hand it is the same; and the other tasks of the queue are handed out.
    run(&mut admin, "SELECT queue.reap()");
    run(&mut admin, "CALL queue.maintain()");
    for fast_path in ["on", "off"] {
        let id = push(&mut admin, "a", "");
        run(&mut admin, &format!("SET queue.fast_path = {fast_path}"));
        assert_eq!(number(&mut admin, "SELECT id FROM queue.claim('1 hour', 'a')"), id, "{fast_path}");
    }
    // When nothing is in its way any more, it ends.
    run(&mut admin, &format!("DELETE FROM queue.dead_letters WHERE id = {stuck}"));
    let state = format!("SELECT state FROM queue.get({stuck})");
    eventually("it is ended", SOON, || {
        run(&mut admin, "SELECT queue.reap()");
        column(&mut admin, &state) == ["failed"]
    });
    // An event that could not be processed is due again after a pause.
    run(&mut admin, &format!("DELETE FROM queue.history WHERE id = {waiting}"));
    run(&mut admin, "UPDATE queue_internal.events SET due_at = '-infinity'");
    let state = format!("SELECT state FROM queue.get({waiting})");
    eventually("its event is processed", SOON, || {
        run(&mut admin, "CALL queue.maintain()");
        column(&mut admin, &state) == ["cancelled"]
    });
}

/// The outcome of a locked predecessor is unknown; that of others is not.
#[test]
fn a_task_that_waits_for_a_lock_hides_no_other() {
    let (cluster, mut admin) = two_queues("security-hidden", NO_WORKER);
    let first = push(&mut admin, "a", "");
    let mut holder = cluster.connect();
    run(&mut holder, "BEGIN");
    assert_eq!(number(&mut holder, "SELECT id FROM queue.claim('1 hour', 'a')"), first);
    (0..60).for_each(|_| _ = push(&mut admin, "a", &format!(", after => '{{{first}}}'")));
    let grouped = push(&mut admin, "a", ", group_key => 'g'");
    assert_eq!(number(&mut admin, "SELECT id FROM queue.claim('1 hour', 'a')"), grouped);
}

#[test]
fn a_producer_inserts_but_neither_copies_nor_reads_what_it_inserted() {
    let (cluster, mut admin) = two_queues("security-insert", NO_WORKER);
    let mut producer = login(&cluster, "a_producer");
    let columns = "queue, payload, priority, run_at, max_attempts, headers, key, group_key, backoff, kind, lease, timeout, start_by, weight";
    let values =
        "'a', '1', 1, now(), 3, '{}', 'k', 'g', '{\"base\": \"1 s\"}', 'x', '1 s', '1 min', '2100-01-01', 2";
    run(&mut producer, &format!("INSERT INTO queue.tasks ({columns}) VALUES ({values})"));
    assert_eq!(number(&mut admin, "SELECT count(*) FROM queue.tasks WHERE key = 'k' AND queue = 'a'"), 1);
    for (statement, code) in [
        ("COPY queue.tasks (queue) FROM STDIN", "0A000"),
        ("INSERT INTO queue.tasks (queue) VALUES ('a') RETURNING id", "42501"),
        ("INSERT INTO queue.tasks (queue, key) VALUES ('a', 'k') ON CONFLICT (id) DO NOTHING", "42501"),
    ] {
        let (found, said) = attempt(&mut producer, statement).expect_err(statement);
        assert_eq!(found, code, "{statement}: {said}");
    }
    let mut operator = login(&cluster, "a_operator");
    let returning = "INSERT INTO queue.tasks (queue) VALUES ('a') RETURNING id";
    assert!(number(&mut operator, returning) > 0);
}

/// The warnings of docs/security.md.
#[test]
fn roles_can_do_what_the_docs_list() {
    let (cluster, mut admin) = two_queues("security-warned", NO_WORKER);
    let mut operator = login(&cluster, "a_operator");
    run(&mut operator, "BEGIN; LOCK TABLE queue.tasks IN ACCESS SHARE MODE; ROLLBACK");
    run(&mut operator, "SELECT queue.bind('#', 'a')");
    run(&mut admin, "SELECT queue.publish('secret.plans', '\"plan\"')");
    let seen = "SELECT payload::text FROM queue.tasks WHERE payload <> '{}'";
    assert_eq!(column(&mut operator, seen), ["\"plan\""]);
    // The information in ids.
    let first = push(&mut operator, "a", "");
    (0..3).for_each(|_| _ = push(&mut admin, "b", ""));
    let last = push(&mut operator, "a", "");
    assert_eq!(last - first, 4);
    // How many rows others have.
    let plan = column(&mut operator, "EXPLAIN (ANALYZE, TIMING OFF) SELECT FROM queue.tasks").join("\n");
    let others = number(&mut admin, "SELECT count(*) FROM queue.tasks WHERE queue <> 'a'");
    assert!(plan.contains(&format!("Rows Removed by Filter: {others}")), "{plan}");
    // Whose name is taken; but not by which queue.
    run(&mut admin, "SELECT queue.schedule('nightly', '@daily', 'b')");
    let taken =
        attempt(&mut operator, "SELECT queue.schedule('nightly', '@daily', 'a')").expect_err("it is taken");
    assert_eq!(taken.0, "42501");
    assert!(!taken.1.contains("\"b\""), "{}", taken.1);
    attempt(&mut operator, "SELECT queue.schedule('weekly', '@daily', 'a')").expect("it is free");
}
