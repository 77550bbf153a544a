//! Lanes: shared memory must never hide a task, hand one out twice, or keep one that is gone.
//!
//! Sweeps are an hour apart unless a test sets another interval, so that they cannot hide faults.

#[path = "lanes/accounting.rs"]
mod accounting;
#[path = "lanes/bounds.rs"]
mod bounds;
#[path = "lanes/changes.rs"]
mod changes;
#[path = "lanes/crashes.rs"]
mod crashes;
#[path = "lanes/leases.rs"]
mod leases;
#[path = "lanes/rollbacks.rs"]
mod rollbacks;

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use queue_ext_tests::{Cluster, SOON, Settings, WOKEN, eventually, run, stalls};

const NONE: [i64; 0] = [];

/// A server without sweeps, with and without the worker.
fn cluster(name: &str) -> Cluster {
    with_settings(name, "queue.sweep_interval = '1h'\nmax_prepared_transactions = 10")
}

fn with_settings(name: &str, extra: &'static str) -> Cluster {
    let mut cluster = Cluster::installed(name, &Settings { preload: true, extra });
    cluster.await_worker("postgres");
    cluster
}

fn push(client: &mut Client, queue: &str, count: i32) -> Vec<i64> {
    let query = "SELECT queue.push_many($1, array_fill('{}'::jsonb, ARRAY[$2::int]))";
    client.query(query, &[&queue, &count]).expect("push").iter().map(|row| row.get(0)).collect()
}

/// Claims up to so many tasks for an hour; returns their ids.
fn claim(client: &mut Client, queue: &str, most: i32) -> Vec<i64> {
    let query = "SELECT id FROM queue.claim('1 hour', $1, $2)";
    client.query(query, &[&queue, &most]).expect("claim").iter().map(|row| row.get(0)).collect()
}

fn count(client: &mut Client, query: &str) -> i64 {
    client.query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}

fn stats(client: &mut Client) -> serde_json::Value {
    client.query_one("SELECT queue.engine_stats()", &[]).expect("stats").get(0)
}

/// How many calls fell back for this reason.
fn fallbacks(client: &mut Client, reason: &str) -> u64 {
    stats(client)["verbs"]["fallbacks"][reason].as_u64().unwrap_or(0)
}

fn served(client: &mut Client) -> u64 {
    stats(client)["verbs"]["served"].as_u64().unwrap_or(0)
}

/// Another session that waits for a task of the queue; returns whether there is one, and when it returned.
fn wait_for(cluster: &Cluster, queue: &'static str) -> JoinHandle<(bool, Instant)> {
    let config = cluster.config("postgres");
    let before = stats(&mut cluster.connect())["lanes"][queue]["waiters"].as_u64().unwrap_or(0);
    let waiter = std::thread::spawn(move || {
        let mut client = config.connect(NoTls).expect("connect");
        let query = format!("CALL queue.wait('{queue}', '20 seconds', NULL)");
        let messages = client.simple_query(&query).expect("wait");
        let ready = messages.iter().any(
            |message| matches!(message, postgres::SimpleQueryMessage::Row(row) if row.get(0) == Some("t")),
        );
        (ready, Instant::now())
    });
    let mut client = cluster.connect();
    eventually("it waits", SOON, || {
        stats(&mut client)["lanes"][queue]["waiters"].as_u64().unwrap_or(0) > before
    });
    waiter
}

/// `act` wakes a session that waits for a task of the queue.
fn wakes(cluster: &Cluster, queue: &'static str, what: &str, act: impl FnOnce()) {
    let waiter = wait_for(cluster, queue);
    act();
    let done = Instant::now();
    let (ready, at) = waiter.join().expect("the waiter");
    assert!(ready, "{what}: woken for nothing");
    let late = stalls::took(done, at);
    assert!(late < WOKEN, "{what}: woken after {late:?}");
}
