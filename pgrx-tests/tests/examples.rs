//! The programs in `examples/`, run as they stand: killed, stopped, and accounted for.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use postgres::Client;
use queue_ext_tests::{Cluster, eventually};

const SOON: Duration = Duration::from_secs(20);

fn start(cluster: &Cluster) -> Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/worker.py");
    let conninfo = format!("host={} user=postgres dbname=postgres", cluster.folder().display());
    Command::new("python3").arg(script).arg(conninfo).stdin(Stdio::null()).spawn().expect("start the worker")
}

fn sent(client: &mut Client) -> i64 {
    client.query_one("SELECT count(*) FROM letters_sent", &[]).expect("count").get(0)
}

#[test]
fn the_python_worker_sends_every_letter_once() {
    let cluster = Cluster::start("examples-python");
    let mut client = cluster.connect();
    client.batch_execute(
        "CREATE TABLE letters_sent (address text NOT NULL);
         SELECT queue.configure('default', '{\"max_attempts\": 2, \"backoff\": {\"base\": \"0\"}}');
         SELECT count(queue.push('default', jsonb_build_object('to', 'a' || n))) FROM generate_series(1, 500) AS n;
         SELECT queue.push('default', '{\"to\": null}'), queue.push('default', '{}')").expect("push");
    let mut worker = start(&cluster);
    eventually("it works", SOON, || sent(&mut client) > 50);
    worker.kill().expect("kill -9");
    worker.wait().expect("it is gone");
    // Whatever it had is anybody's again.
    client
        .batch_execute("UPDATE queue.tasks SET lease_until = now() WHERE state = 'running'")
        .expect("expire");
    let mut worker = start(&cluster);
    eventually("it is done", SOON, || {
        client.query_one("SELECT count(*) FROM queue.tasks", &[]).expect("count").get::<_, i64>(0) == 0
    });
    let twice: i64 = client
        .query_one("SELECT count(*) - count(DISTINCT address) FROM letters_sent", &[])
        .expect("count")
        .get(0);
    assert_eq!((sent(&mut client), twice), (500, 0));
    let dead: i64 = client.query_one("SELECT count(*) FROM queue.dead_letters", &[]).expect("count").get(0);
    assert_eq!(dead, 2, "the letters without an address failed, and said so");
    // Idle, it wakes for the next task, and stops when asked.
    client.batch_execute("SELECT queue.push('default', '{\"to\": \"late\"}')").expect("push");
    eventually("it wakes", SOON, || sent(&mut client) == 501);
    // SAFETY: a signal to a child of this test.
    unsafe { libc::kill(worker.id() as i32, libc::SIGTERM) };
    eventually("it stops", SOON, || worker.try_wait().expect("wait").is_some());
    assert!(worker.wait().expect("wait").success());
}
