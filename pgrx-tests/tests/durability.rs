//! Which commits wait for the disk. A synchronous standby that never answers shows it: a commit that waits for the disk
//! waits for the standby, too.

use postgres::Client;
use queue_ext_tests::{Cluster, SOON, Settings, eventually};

/// A server with tasks in several queues, on which each commit that waits for the disk hangs.
fn cluster(name: &str, extra: &'static str) -> (Cluster, Client) {
    let mut cluster = Cluster::start_with(name, &Settings { preload: true, extra });
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION queue_ext; CREATE TABLE orders (id bigint)").expect("set up");
    cluster.await_worker("postgres");
    await_base(&mut client, 0);
    client
        .batch_execute(
            "SELECT queue.create('limited', '{\"max_running\": 1000}'), queue.create('mixed'),
                    queue.create('durable', '{\"durable_leases\": \"on\"}'), queue.create('lax', '{\"durable_leases\": \"off\"}');
             SELECT count(*) FROM queue.push_many('durable', array_fill('1'::jsonb, '{100}'));
             SELECT count(*) FROM queue.push_many('lax', array_fill('1'::jsonb, '{100}'));
             SELECT count(*) FROM queue.push_many('default', array_fill('1'::jsonb, '{1000}'));
             SELECT count(*) FROM queue.push_many('limited', array_fill('1'::jsonb, '{100}'));
             CREATE FUNCTION claim_and(statement text) RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN PERFORM queue.claim(); EXECUTE statement; END $$",
        )
        .expect("set up");
    hang(&cluster, &mut client);
    (cluster, client)
}

/// Waits until the worker has raised the mark of the tokens above this one; returns it. Before that, claims wait for the disk.
fn await_base(client: &mut Client, above: i64) -> i64 {
    let mut reached = 0;
    eventually("the mark is raised", SOON, || {
        let row = client.query_opt("SELECT reached FROM queue_internal.token_mark", &[]).expect("look");
        reached = row.map_or(0, |row| row.get(0));
        reached > above
    });
    reached
}

/// From now on, commits wait. Those of the worker would, too, with their locks.
fn hang(cluster: &Cluster, client: &mut Client) {
    client.batch_execute("ALTER SYSTEM SET queue.worker_enabled = off").expect("set");
    client.batch_execute("SELECT pg_reload_conf()").expect("reload");
    eventually("the worker ends", SOON, || {
        let query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue_ext worker'";
        client.query_one(query, &[]).expect("look").get::<_, i64>(0) == 0
    });
    client.batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").expect("set");
    client.batch_execute("SELECT pg_reload_conf()").expect("reload");
    eventually("commits wait", SOON, || waits(cluster, "INSERT INTO orders VALUES (0)"));
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
        // For as long as it takes: a statement that waits for anything else would keep the thread anyway.
        while !running.is_finished() {
            let query = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'";
            waited |= watcher.query_opt(query, &[&pid]).expect("look").is_some();
        }
        running.join().expect("the statement");
        waited
    })
}

#[test]
fn a_commit_waits_for_the_disk_unless_it_wrote_nothing_but_leases() {
    let (cluster, _client) = cluster("durability-off", "queue.durable_leases = off");
    for statement in [
        "SELECT 1 / count(*) FROM queue.claim()",
        "SELECT 1 / (count(*) / 100) FROM queue.claim(max_tasks => 100)",
        "BEGIN; SELECT queue.claim(); SELECT count(*) FROM queue.queues; SELECT queue.claim(); COMMIT",
        "BEGIN; SAVEPOINT s; SELECT queue.claim(); RELEASE s; COMMIT",
        "SELECT claim_and('SELECT queue.claim()')",
        "SET synchronous_commit = remote_apply; SELECT queue.claim()",
        "DO $$ BEGIN PERFORM queue.claim(); COMMIT; PERFORM queue.claim(); COMMIT; END $$",
        "SET queue.durable_leases = on; SELECT 1 / count(*) FROM queue.claim(queue => 'lax')",
        // Nothing is claimed from the queue that would need SQL.
        "SELECT 1 / count(*) FROM queue.claim('1 minute', '{default, limited}'::text[])",
        // SQL claims them, and their sessions do not wait.
        "SET synchronous_commit = off; SELECT 1 / count(*) FROM queue.claim(queue => 'limited')",
        "SET synchronous_commit = off; SET queue.fast_path = off; SELECT 1 / count(*) FROM queue.claim(queue => 'lax')",
    ] {
        // Reading may clean up a page between two claims, and that is a write, too.
        let waited = (0..5).filter(|_| waits(&cluster, statement)).count();
        assert!(waited < 2, "{statement} waited {waited} times of 5");
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
        "SELECT queue.claim('1 minute', '{limited, default}'::text[])",
        "SET queue.fast_path = off; SELECT queue.claim()",
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT queue.claim(); COMMIT",
        // It claims its own task.
        "BEGIN; SELECT queue.push('mixed'); SELECT queue.claim(queue => 'mixed'); COMMIT",
        "SET queue.durable_leases = on; SELECT queue.claim()",
        "SET queue.durable_leases = on; SET synchronous_commit = off; SELECT queue.claim()",
        // Queues that say so, natively and by SQL.
        "SELECT 1 / count(*) FROM queue.claim(queue => 'durable')",
        "SET synchronous_commit = off; SELECT 1 / count(*) FROM queue.claim(queue => 'durable')",
        "SET synchronous_commit = off; SET queue.fast_path = off; SELECT 1 / count(*) FROM queue.claim(queue => 'durable')",
        "SET synchronous_commit = off; SELECT 1 / count(*) FROM queue.claim('1 minute', '{mixed, durable}'::text[])",
        // The next commit of a session waits again.
        "BEGIN; SELECT queue.claim(); COMMIT; INSERT INTO orders VALUES (1)",
    ] {
        assert!(waits(&cluster, statement), "{statement}");
    }
}

#[test]
fn by_default_the_leases_of_tasks_from_before_a_start_are_durable() {
    let (mut cluster, mut client) = cluster("durability-auto", "");
    client.batch_execute("SET synchronous_commit = local; SELECT queue.create('old'), queue.push('old'), queue.push('old')").expect("push");
    let reached = await_base(&mut client, 0);
    client.batch_execute("ALTER SYSTEM RESET ALL").expect("reset");
    drop(client);
    cluster.stop("fast");
    cluster.launch();
    cluster.await_worker("postgres");
    let mut client = cluster.connect();
    await_base(&mut client, reached);
    hang(&cluster, &mut client);
    assert!(waits(&cluster, "SELECT 1 / count(*) FROM queue.claim(queue => 'old')"));
    client.batch_execute("SET synchronous_commit = local; SELECT queue.create('new')").expect("create");
    client.batch_execute("SELECT queue.push('new'), queue.push('new', priority => 1)").expect("push");
    let claim = "SELECT 1 / count(*) FROM queue.claim(queue => 'new')";
    assert!(!waits(&cluster, claim));
    // Old and new ones together.
    client.batch_execute("SELECT queue.push('old', priority => -1)").expect("push");
    assert!(waits(&cluster, "SELECT 1 / (count(*) - 1) FROM queue.claim(queue => 'old', max_tasks => 2)"));
    // After its start deadline, a task would not be offered again.
    client.batch_execute("SELECT queue.push('new', ttl => '1 hour', priority => -1)").expect("push");
    assert!(waits(&cluster, claim));
    // A task that was tried before.
    client
        .batch_execute("SELECT queue.release(id, token) FROM queue.claim(queue => 'new')")
        .expect("release");
    assert!(!waits(&cluster, claim));
    client.batch_execute("SELECT queue.push('new')").expect("push");
    client
        .batch_execute(
            "SELECT queue.fail(id, token, 'again', retry_in => '0') FROM queue.claim(queue => 'new')",
        )
        .expect("fail");
    assert!(waits(&cluster, claim));
    // SQL does not know which of them it must not lose.
    for statement in [
        "SET synchronous_commit = off; SELECT 1 / count(*) FROM queue.claim(queue => 'limited')",
        "SET synchronous_commit = off; SET queue.fast_path = off; SELECT 1 / count(*) FROM queue.claim()",
    ] {
        assert!(waits(&cluster, statement), "{statement}");
    }
}

/// The commit of a claim waits neither for the standby nor for the disk.
#[test]
fn the_log_is_not_flushed_for_a_lease() {
    let (cluster, _client) =
        cluster("durability-flush", "wal_writer_delay = 10s\nwal_writer_flush_after = 1GB");
    let mut worker = cluster.connect();
    let query = "SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()";
    let mut unflushed = |statement: &str| {
        worker.batch_execute(statement).expect(statement);
        worker.query_one(query, &[]).expect("look").get::<_, bool>(0)
    };
    eventually("a claim is not flushed", SOON, || unflushed("SELECT 1 / count(*) FROM queue.claim()"));
    assert!(!unflushed(
        "SET synchronous_commit = local; SET queue.durable_leases = off; INSERT INTO orders VALUES (2)"
    ));
}

/// A task that crashes the server loses at most its first attempt, and becomes a dead letter in the end.
#[test]
fn a_task_that_crashes_the_server_is_not_claimed_for_ever() {
    let settings = Settings {
        preload: true,
        extra: "restart_after_crash = on\nwal_writer_delay = 10s\nwal_writer_flush_after = 1GB\nautovacuum = off",
    };
    let mut cluster = Cluster::start_with("durability-poison", &settings);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION queue_ext").expect("create");
    let mut reached = await_base(&mut client, 0);
    client.batch_execute("SELECT queue.push('default', max_attempts => 3)").expect("push");
    drop(client);
    let (mut attempts, mut crashes) = (Vec::new(), 0);
    loop {
        let mut worker = cluster.connect();
        let mut claimed = None;
        eventually("the task is offered or dead", SOON, || {
            claimed = worker.query_opt("SELECT attempt FROM queue.claim('1 s')", &[]).expect("claim");
            let dead = worker.query_one("SELECT count(*) FROM queue.dead_letters", &[]).expect("look");
            claimed.is_some() || dead.get::<_, i64>(0) == 1
        });
        let Some(row) = claimed else { break };
        attempts.push(row.get::<_, i32>(0));
        crashes += 1;
        assert!(crashes <= 4, "{attempts:?}");
        cluster.kill_all();
        cluster.launch();
        cluster.await_worker("postgres");
        reached = await_base(&mut cluster.connect(), reached);
    }
    attempts.dedup();
    assert_eq!(attempts, [1, 2, 3]);
}
