//! What a role locks, and for how long, where that is in the way of other queues.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_refused_schedule_does_not_lock_that_of_another_queue() {
    let (cluster, mut client, _worker) = start("locks-schedule");
    without_worker(&mut client);
    run(&mut client, TICK);
    run(&mut client, "CREATE ROLE op_a LOGIN; SELECT queue.grant_operator('op_a', 'a')");
    let mut tenant = cluster.config("postgres").user("op_a").connect(postgres::NoTls).expect("connect");
    let refused =
        tenant.batch_execute("SELECT queue.schedule('tick', '* * * * * *', 'a')").expect_err("refused");
    assert_eq!(refused.code().map(|code| code.code().to_owned()), Some("42501".to_owned()));
    // A lock leaves the id of its transaction in the row.
    let lockers = "SELECT count(*) FROM queue.schedules WHERE xmax <> '0'";
    assert_eq!(number(&mut client, lockers), 0);
}

#[test]
fn the_sweep_of_a_claim_locks_no_dependencies_of_other_queues() {
    let (cluster, mut client, _worker) = start("locks-sweep");
    without_worker(&mut client);
    // A change without an event.
    run(
        &mut client,
        "SELECT queue.push('b', after => ARRAY[queue.push('b')]);
         SET session_replication_role = replica; DELETE FROM queue.tasks WHERE state = 'queued';
         SET session_replication_role = origin",
    );
    let mut claimer = cluster.connect();
    run(&mut claimer, "BEGIN; SELECT queue_internal.sweep_part(q) FROM queue.queues AS q WHERE name = 'a'");
    run(&mut client, "SELECT queue_internal.sweep_dependencies(NULL, NULL, 100)");
    let found = "SELECT count(*) FROM queue_internal.dependencies WHERE outcome = 'purged'";
    assert_eq!(number(&mut client, found), 1);
    run(&mut claimer, "ROLLBACK");
}

#[test]
fn leases_that_take_long_to_end_are_not_ended_in_one_transaction() {
    let (_cluster, mut client, _worker) = start("locks-expire");
    without_worker(&mut client);
    run(
        &mut client,
        "SELECT count(queue.push('a')) FROM generate_series(1, 20);
         SELECT count(*) FROM queue.claim('1 ms', 'a', 20);
         CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$;
         CREATE TRIGGER slowly BEFORE UPDATE ON queue.tasks FOR EACH ROW EXECUTE FUNCTION slowly()",
    );
    let expire = "SELECT expired * 100 + cardinality(rest) FROM queue_internal.expire(
                  ARRAY(SELECT id FROM queue.tasks), '50 ms')";
    let done = number(&mut client, expire);
    let (ended, rest) = (done / 100, done % 100);
    assert!((1..10).contains(&ended), "{ended} ended");
    assert_eq!((rest, number(&mut client, RUNNING)), (20 - ended, 20 - ended), "the others still run");
}

const RUNNING: &str = "SELECT count(*) FROM queue.tasks WHERE state = 'running'";

#[test]
fn locks_that_a_role_without_rights_takes_for_an_instant_do_not_stop_partitions() {
    let (cluster, mut client, _worker) = start("locks-partitions");
    without_worker(&mut client);
    run(&mut client, "CREATE ROLE nobody LOGIN; SELECT queue.push('a')");
    // Its name is not for this role.
    let index = number(&mut client, "SELECT 'queue.history_default_pkey'::regclass::oid::bigint");
    let stop = Arc::new(AtomicBool::new(false));
    let sessions: Vec<_> = (0..4)
        .map(|_| {
            let (config, stop) = (cluster.config("postgres").user("nobody").clone(), stop.clone());
            std::thread::spawn(move || {
                let mut client = config.connect(postgres::NoTls).expect("connect");
                // Refused each time, after the table was locked.
                let attempts = format!("DO $$ BEGIN FOR i IN 1..1000 LOOP
                                    BEGIN PERFORM brin_summarize_new_values({index}::oid); EXCEPTION WHEN OTHERS THEN NULL; END;
                                END LOOP; END $$");
                while !stop.load(Ordering::SeqCst) {
                    run(&mut client, &attempts);
                }
            })
        })
        .collect();
    let done = (0..50)
        .filter(|_| number(&mut client, "SELECT queue_internal.extend_history()::int::bigint") == 1)
        .count();
    stop.store(true, Ordering::SeqCst);
    sessions.into_iter().for_each(|session| session.join().expect("a session"));
    assert!(done > 40, "{done} of 50");
}
