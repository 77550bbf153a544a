//! Another extension's callback at the commit, which comes after the one that lets the commit of a claim not wait for the
//! disk.

use postgres::Client;
use queue_ext_tests::{Cluster, SOON, eventually};

use super::{cluster_with, number, outcome, run, unharmed};

/// A server that writes nothing to the disk unless a commit waits for it, and a worker whose claims do not wait.
fn stage(name: &str) -> Option<(Cluster, Client)> {
    let cluster =
        cluster_with(name, "wal_writer_delay = 10s\nwal_writer_flush_after = 1GB\nautovacuum = off")?;
    let mut worker = cluster.connect();
    run(&mut worker, "CREATE TABLE late (at timestamptz DEFAULT now()); SET queue.durable_leases = off");
    run(&mut worker, "SELECT count(*) FROM queue.push_many('default', array_fill('1'::jsonb, '{1000}'))");
    // Until the worker has raised the mark of the tokens, claims wait.
    eventually("a claim is not flushed", SOON, || {
        run(&mut worker, "SELECT 1 / count(*) FROM queue.claim('1 hour')");
        number(
            &mut worker,
            "SELECT (pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn())::integer::bigint",
        ) == 1
    });
    Some((cluster, worker))
}

/// The ERROR of the commit, if it raises one.
fn claim_with(worker: &mut Client, fault: &str) -> Option<String> {
    outcome(
        worker,
        &format!(
            "BEGIN; SET LOCAL queue.fault = {fault}; SELECT 1 / count(*) FROM queue.claim('1 hour'); COMMIT"
        ),
    )
}

fn after_a_crash(mut cluster: Cluster) -> i64 {
    unharmed(&cluster);
    cluster.kill_all();
    cluster.launch();
    number(&mut cluster.connect(), "SELECT count(*) FROM late")
}

#[test]
fn what_a_later_callback_writes_survives_a_crash() {
    let Some((cluster, mut worker)) = stage("injection-late-write") else { return };
    assert_eq!(claim_with(&mut worker, "latewrite"), None);
    assert_eq!(after_a_crash(cluster), 1);
}

#[test]
fn commits_wait_again_after_a_later_callback_has_raised() {
    let Some((cluster, mut worker)) = stage("injection-late-error") else { return };
    assert_eq!(claim_with(&mut worker, "lateerror").as_deref(), Some("38000 error at the commit"));
    run(&mut worker, "INSERT INTO late DEFAULT VALUES");
    assert_eq!(after_a_crash(cluster), 1);
}
