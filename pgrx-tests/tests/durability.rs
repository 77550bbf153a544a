//! Which commits wait for the disk. A synchronous standby that never answers shows it: a commit that waits for the disk
//! waits for the standby, too.

use std::time::Duration;

use postgres::Client;
use queue_ext_tests::{Cluster, SOON, Settings, eventually};

/// A server with tasks in several queues, on which each commit that waits for the disk hangs.
fn cluster(name: &str, extra: &'static str) -> (Cluster, Client) {
    let mut cluster = Cluster::start_with(name, &Settings { preload: true, extra });
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE EXTENSION queue_ext; CREATE TABLE orders (id bigint);
             SELECT queue.create('limited', '{\"max_running\": 1000}'), queue.create('durable');
             SELECT count(*) FROM queue.push_many('default', array_fill('1'::jsonb, '{20000}'));
             SELECT count(*) FROM queue.push_many('limited', array_fill('1'::jsonb, '{100}'));
             CREATE FUNCTION claim_and(statement text) RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN PERFORM queue.claim(); EXECUTE statement; END $$",
        )
        .expect("set up");
    cluster.await_worker("postgres");
    // Until the worker has raised the mark of the tokens, claims wait for the disk.
    eventually("the mark is raised", SOON, || {
        let query = "SELECT reached > 0 FROM queue_internal.token_mark";
        client.query_opt(query, &[]).expect("look").is_some_and(|row| row.get(0))
    });
    client.batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").expect("set");
    client.batch_execute("SELECT pg_reload_conf()").expect("reload");
    eventually("commits wait", SOON, || waits(&cluster, "INSERT INTO orders VALUES (0)"));
    (cluster, client)
}

/// Whether a statement waits for the standby. It does not wait for ever: a cancelled wait ends with a warning.
fn waits(cluster: &Cluster, statement: &str) -> bool {
    let mut session = cluster.connect();
    let pid: i32 = session.query_one("SELECT pg_backend_pid()", &[]).expect("pid").get(0);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            session.batch_execute(statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        });
        let mut watcher = cluster.connect();
        let mut waited = false;
        eventually(statement, SOON, || {
            let query = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'";
            waited |= !running.is_finished() && watcher.query_opt(query, &[&pid]).expect("look").is_some();
            running.is_finished()
        });
        running.join().expect("the statement");
        waited
    })
}

#[test]
fn a_commit_waits_for_the_disk_unless_it_wrote_nothing_but_leases() {
    let (cluster, _client) = cluster("durability-off", "queue.durable_leases = off");
    for statement in [
        "SELECT queue.claim()",
        "SELECT queue.claim(max_tasks => 100)",
        "BEGIN; SELECT queue.claim(); SELECT count(*) FROM queue.queues; SELECT queue.claim(); COMMIT",
        "BEGIN; SAVEPOINT s; SELECT queue.claim(); RELEASE s; COMMIT",
        "SELECT claim_and('SELECT queue.claim()')",
        "SET synchronous_commit = remote_apply; SELECT queue.claim()",
        "DO $$ BEGIN PERFORM queue.claim(); COMMIT; PERFORM queue.claim(); COMMIT; END $$",
    ] {
        // Reading may clean up a page, and that is a write, too.
        eventually(statement, SOON, || !waits(&cluster, statement));
    }
    for statement in [
        "BEGIN; SELECT queue.claim(); INSERT INTO orders VALUES (1); COMMIT",
        "BEGIN; INSERT INTO orders VALUES (1); SELECT queue.claim(); COMMIT",
        "BEGIN; SELECT queue.claim(); INSERT INTO orders VALUES (1); SELECT queue.claim(); COMMIT",
        "INSERT INTO orders SELECT id FROM queue.claim()",
        "SELECT claim_and('INSERT INTO orders VALUES (1)')",
        "BEGIN; SELECT queue.claim(); SAVEPOINT s; INSERT INTO orders VALUES (1); RELEASE s; COMMIT",
        "BEGIN; SAVEPOINT s; INSERT INTO orders VALUES (1); ROLLBACK TO s; SELECT queue.claim(); COMMIT",
        "SELECT queue.claim(), queue.push('default')",
        "SELECT queue.complete(id, token) FROM queue.claim()",
        "SELECT queue.extend(id, token, progress => '1') FROM queue.claim()",
        "SELECT queue.step(id, token, 's', '1') FROM queue.claim()",
        "SELECT queue.complete_and_claim(id, token) FROM queue.tasks WHERE state = 'running' LIMIT 1",
        // SQL claims them.
        "SELECT queue.claim(queue => 'limited')",
        "SELECT queue.claim('1 minute', '{default, limited}'::text[])",
        "SET queue.fast_path = off; SELECT queue.claim()",
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT queue.claim(); COMMIT",
        // It claims its own task.
        "BEGIN; SELECT queue.push('durable'); SELECT queue.claim(queue => 'durable'); COMMIT",
        "SET queue.durable_leases = on; SELECT queue.claim()",
        "SET queue.durable_leases = after_start; SELECT queue.claim()",
        // The next commit of a session waits again.
        "BEGIN; SELECT queue.claim(); COMMIT; INSERT INTO orders VALUES (1)",
    ] {
        assert!(waits(&cluster, statement), "{statement}");
    }
}

#[test]
fn leases_are_durable_for_a_minute_after_a_start() {
    if std::env::var("BRIEF").is_ok() {
        return;
    }
    let (cluster, _client) = cluster("durability-start", "");
    // The minute begins with the first claim.
    assert!(waits(&cluster, "SELECT queue.claim()"));
    assert!(waits(&cluster, "SELECT queue.claim()"));
    let minute = Duration::from_secs(60);
    // An error if there is no task.
    eventually("claims do not wait any more", minute + SOON, || {
        !waits(&cluster, "SELECT 1 / count(*) FROM queue.claim()")
    });
    assert!(waits(&cluster, "SET queue.durable_leases = on; SELECT queue.claim()"));
}

/// A task that crashes the server counts an attempt each time, and becomes a dead letter in the end.
#[test]
fn a_task_that_crashes_the_server_is_not_claimed_for_ever() {
    let settings = Settings {
        preload: true,
        extra: "restart_after_crash = on\nwal_writer_delay = 10s\nwal_writer_flush_after = 1GB\nautovacuum = off",
    };
    let mut cluster = Cluster::start_with("durability-poison", &settings);
    let mut client = cluster.connect();
    client
        .batch_execute("CREATE EXTENSION queue_ext; SELECT queue.push('default', max_attempts => 3)")
        .expect("push");
    drop(client);
    for attempt in 1..=3 {
        cluster.await_worker("postgres");
        let mut worker = cluster.connect();
        let mut claimed = None;
        eventually("the task is offered", SOON, || {
            claimed = worker.query_opt("SELECT attempt FROM queue.claim('1 s')", &[]).expect("claim");
            claimed.is_some()
        });
        assert_eq!(claimed.expect("a task").get::<_, i32>(0), attempt);
        cluster.kill_all();
        cluster.launch();
    }
    let mut client = cluster.connect();
    eventually("it is a dead letter", SOON, || {
        client.query_one("SELECT count(*) FROM queue.dead_letters", &[]).expect("look").get::<_, i64>(0) == 1
    });
}
