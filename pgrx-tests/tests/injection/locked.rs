//! A row that another session locks between the claim's read and its update.

use std::thread;

use queue_ext_tests::eventually;

use super::{SOON, cluster, ids, number, run, send_the_worker_away, unharmed};

#[test]
fn a_claim_changes_the_row_that_it_read_though_it_was_locked_meanwhile() {
    let Some(cluster) = cluster("injection-locked") else { return };
    let mut other = cluster.connect();
    send_the_worker_away(&mut other);
    run(&mut other, "SELECT queue.create('q')");
    for (strength, claimed) in [("KEY SHARE", 1), ("SHARE", 0), ("UPDATE", 0)] {
        let id = number(&mut other, "SELECT queue.push('q')");
        let pages = number(&mut other, "SELECT pg_relation_size('queue.tasks') / 8192");
        run(&mut other, "SELECT pg_advisory_lock(4711)");
        let mut one = cluster.connect();
        let claim = thread::spawn(move || {
            run(&mut one, "SET queue.fault_at = RowUnlocked; SET queue.fault = gate");
            ids(&mut one, "SELECT id FROM queue.claim('1 hour', 'q')")
        });
        eventually("the claim stands at the gate", SOON, || {
            number(&mut other, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
                == 1
        });
        run(&mut other, &format!("BEGIN; SELECT FROM queue.tasks WHERE id = {id} FOR {strength}"));
        run(&mut other, "SELECT pg_advisory_unlock(4711)");
        let got = claim.join().expect("the claim");
        assert_eq!(got.len(), claimed, "FOR {strength}");
        run(&mut other, "COMMIT");
        assert_eq!(
            number(&mut other, "SELECT pg_relation_size('queue.tasks') / 8192"),
            pages,
            "FOR {strength}"
        );
        run(&mut other, "DELETE FROM queue.tasks");
    }
    unharmed(&cluster);
}
