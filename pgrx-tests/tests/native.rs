//! Compares the native functions with SQL: the same random histories run through both, in two databases, and all
//! results and rows must be the same.
//!
//! HISTORIES and SEED in the environment set how many histories there are, and the first one: `SEED=123 HISTORIES=1`
//! repeats a failure.

#[path = "native/history.rs"]
mod history;

use history::History;
use postgres::Client;
use queue_ext_tests::{Cluster, SOON, Settings, counters_agree, eventually};

/// How many histories are played before both sides are compared.
const CHUNK: u64 = 100;

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .map_or(otherwise, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Plays the histories of a chunk in one database.
fn play(client: &mut Client, seeds: &[u64], counters: bool) -> Vec<Vec<String>> {
    client
        .batch_execute("TRUNCATE queue.tasks, queue.history, queue.dead_letters, queue_internal.keys, queue_internal.events, queue_internal.outcomes, queue_internal.batches, queue_internal.dependencies")
        .expect("truncate");
    // From here on, counters have to keep up.
    client.query("SELECT FROM queue.stats", &[]).expect("stats");
    let lines = seeds.iter().map(|seed| History::new(client, *seed).play()).collect();
    if counters {
        counters_agree(client);
    }
    lines
}

fn verbs(client: &mut Client) -> serde_json::Value {
    let stats: serde_json::Value =
        client.query_one("SELECT queue.engine_stats()", &[]).expect("stats").get(0);
    stats["verbs"].clone()
}

#[test]
fn random_histories_end_the_same_natively_and_by_sql() {
    let mut cluster = Cluster::start_with(
        "native",
        &Settings { preload: true, extra: "autovacuum = off\nlog_min_messages = fatal" },
    );
    let mut admin = cluster.connect();
    for name in ["native", "core"] {
        admin.batch_execute(&format!("CREATE DATABASE {name}")).expect("create");
        let mut client = cluster.connect_to(name);
        client.batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
        client.batch_execute(history::SETUP).expect("set up");
        // From then on it has an entry in shared memory, in which its calls are counted.
        cluster.await_worker(name);
    }
    admin.batch_execute("ALTER DATABASE core SET queue.fast_path = off").expect("set");
    // No other process may end leases or process events, because the histories determine when that happens.
    admin.batch_execute("ALTER SYSTEM SET queue.worker_enabled = off").expect("set");
    admin.batch_execute("SELECT pg_reload_conf()").expect("reload");
    eventually("the workers leave", SOON, || {
        let workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue_ext worker'";
        admin.query_one(workers, &[]).expect("count").get::<_, i64>(0) == 0
    });

    let (first, count) = (from_environment("SEED", 1), from_environment("HISTORIES", 4_000));
    println!("histories {first} to {}", first + count - 1);
    let seeds: Vec<u64> = (first..first + count).collect();
    let mut native = cluster.connect_to("native");
    let mut core = cluster.connect_to("core");
    let mut steps = 0;
    for chunk in seeds.chunks(CHUNK as usize) {
        let (natively, by_core) = std::thread::scope(|scope| {
            let natively = scope.spawn(|| play(&mut native, chunk, true));
            let by_core = play(&mut core, chunk, false);
            (natively.join().expect("the native side"), by_core)
        });
        for ((seed, natively), by_core) in chunk.iter().zip(&natively).zip(&by_core) {
            steps += natively.len();
            compare(*seed, natively, by_core);
        }
    }

    let (natively, by_core) = (verbs(&mut native), verbs(&mut core));
    println!("{steps} steps; natively: {natively}; by the core: {by_core}");
    let served = natively["served"].as_u64().expect("a count");
    let handed: u64 = natively["fallbacks"]
        .as_object()
        .expect("reasons")
        .values()
        .filter_map(serde_json::Value::as_u64)
        .sum();
    assert_eq!(by_core["served"].as_u64(), Some(0), "with the fast path off the core does it all");
    assert!(served > 2 * handed, "the native verbs served the bulk of the calls: {natively}");
}

fn compare(seed: u64, natively: &[String], by_core: &[String]) {
    if natively == by_core {
        return;
    }
    let same = natively.iter().zip(by_core).take_while(|(a, b)| a == b).count();
    let line = |lines: &[String]| lines.get(same).cloned().unwrap_or_default();
    panic!(
        "SEED={seed}\n{}\n\nnatively:    {}\nby the core: {}",
        natively[..same].join("\n"),
        line(natively),
        line(by_core)
    );
}

/// One call, of which the tasks that it returns are kept; it has to be served by the native fast path.
fn served(admin: &mut Client, client: &mut Client, call: &str, held: &mut Vec<(i64, i64)>) {
    let before = verbs(admin);
    let taken: Vec<(i64, i64)> = held.drain(..).collect();
    let (ids, tokens): (Vec<i64>, Vec<i64>) = taken.into_iter().unzip();
    let call = call.replace("$ids", &format!("'{{{}}}'", join(&ids)));
    let call = call.replace("$tokens", &format!("'{{{}}}'", join(&tokens)));
    let call = call.replace("$id", &join(&ids)).replace("$token", &join(&tokens));
    for row in client.query(&call, &[]).unwrap_or_else(|error| panic!("{call}: {error:?}")) {
        if row.len() > 1 {
            held.push((row.get("id"), row.get("token")));
        }
    }
    let after = verbs(admin);
    assert_eq!(before["fallbacks"], after["fallbacks"], "falls back to SQL: {call}");
    let counts = [&before, &after].map(|verbs| verbs["served"].as_u64().expect("a count"));
    assert_eq!(counts[0] + 1, counts[1], "is served natively: {call}");
}

fn join(numbers: &[i64]) -> String {
    numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn plain_calls_do_not_fall_back_to_sql() {
    let mut cluster = Cluster::start("native-plain");
    let mut admin = cluster.connect();
    cluster.await_worker("postgres");
    for statement in [
        "CREATE ROLE tenant LOGIN",
        "SELECT queue.create('own'), queue.create('bounded', '{\"ttl\": \"1 day\", \"max_queued\": 1000}')",
        "SELECT queue.grant_producer('tenant', name), queue.grant_worker('tenant', name) FROM queue.queues",
        "CALL queue.maintain()",
        "ALTER SYSTEM SET queue.worker_enabled = off",
    ] {
        admin.batch_execute(statement).expect(statement);
    }
    // Only these sessions may fill the lane, since a call falls back while another session does.
    admin.batch_execute("SELECT pg_reload_conf()").expect("reload");
    eventually("the worker leaves", SOON, || {
        let workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue_ext worker'";
        admin.query_one(workers, &[]).expect("count").get::<_, i64>(0) == 0
    });
    for (role, queue) in
        [("postgres", "own"), ("tenant", "own"), ("postgres", "bounded"), ("tenant", "bounded")]
    {
        let mut client = cluster.config("postgres").user(role).connect(postgres::NoTls).expect("connect");
        let mut held = Vec::new();
        for call in [
            "SELECT queue.push('own')",
            "SELECT queue.push('own', '{\"to\": \"ada\"}', priority => 2, headers => '{\"h\": 1}', max_attempts => 3)",
            "SELECT queue.push('own', delay => '1 hour')",
            "SELECT queue.push('own', delay => '1 hour', ttl => '1 hour')",
            "SELECT queue.push_many('own', ARRAY['1']::jsonb[], delay => '1 hour', start_by => '2100-01-01')",
            "SELECT queue.push('own', kind => 'letter', lease => '2 minutes', timeout => '1 hour', priority => -1, weight => 9, ttl => '1 hour')",
            "SELECT id, token FROM queue.claim(queue => 'own')",
            "SELECT $id::bigint AS id, $token::bigint AS token, lease_until FROM queue.extend($id, $token, '2 hours')",
            "SELECT queue.complete($id, $token)",
            "SELECT queue.push_many('own', ARRAY['1']::jsonb[], kind => 'letter', weight => 9, priority => -1)",
            "SELECT id, token FROM queue.claim('1 minute', 'own')",
            "SELECT queue.complete_many($ids, $tokens)",
            "SELECT queue.push_many('own', ARRAY['1', '2', '3', '4', '5', '6']::jsonb[])",
            "SELECT id, token FROM queue.claim(queue => 'own')",
            "SELECT $id::bigint AS id, $token::bigint AS token, lease_until FROM queue.extend($id, $token)",
            "SELECT queue.complete($id, $token)",
            "SELECT id, token FROM queue.claim('1 minute', 'own', 2, 'a worker')",
            "SELECT queue.complete_many($ids, $tokens)",
            "SELECT id, token FROM queue.claim('1 minute', 'own')",
            "SELECT id, token FROM queue.complete_and_claim($id, $token, '1', queue => 'own')",
            "SELECT id, token FROM queue.complete_many_and_claim($ids, $tokens, queue => 'own', max_tasks => 2)",
            "SELECT queue.complete_many($ids, $tokens)",
            // Of several queues, one after the other.
            "SELECT queue.push_many('own', ARRAY['1', '2']::jsonb[])",
            "SELECT id, token FROM queue.claim('1 minute', ARRAY['own'], 2)",
            "SELECT queue.complete_many($ids, $tokens)",
            // Of a queue that has nothing more.
            "SELECT id, token FROM queue.claim('1 minute', 'own', 10)",
            "SELECT queue.complete_many($ids, $tokens)",
            "SELECT id, token FROM queue.claim('1 minute', 'own')",
        ] {
            served(&mut admin, &mut client, &call.replace("'own'", &format!("'{queue}'")), &mut held);
        }
        assert!(held.is_empty(), "{role}, {queue}: all tasks are done");
    }
}

#[test]
fn a_claim_whose_leases_end_meanwhile_returns_no_task_twice() {
    let cluster =
        Cluster::start_with("native-short", &Settings { preload: true, extra: "queue.worker_enabled = off" });
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE EXTENSION IF NOT EXISTS queue_ext; SELECT queue.create('short', '{\"delayed_head\": \"pass\"}');
             SELECT queue.push('short');
             SELECT queue.push('short', group_key => 'g', delay => '1 ms')",
        )
        .expect("push");
    eventually("both are due", SOON, || {
        let due = "SELECT count(*) FROM queue.tasks WHERE run_at <= clock_timestamp()";
        client.query_one(due, &[]).expect("count").get::<_, i64>(0) == 2
    });
    // The first is served natively; that of the group is not.
    let claim = "SELECT id, attempt FROM queue.claim('1 microsecond', 'short', 5)";
    let claimed: Vec<(i64, i32)> =
        client.query(claim, &[]).expect("claim").iter().map(|row| (row.get(0), row.get(1))).collect();
    let mut ids: Vec<i64> = claimed.iter().map(|(id, _)| *id).collect();
    ids.dedup();
    assert_eq!(ids.len(), claimed.len(), "{claimed:?}");
}
