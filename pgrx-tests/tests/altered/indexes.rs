//! Indexes of users, and indexes that are being built or whose building failed.

use super::*;

#[test]
fn an_index_that_is_not_valid_is_not_read() {
    let cluster = cluster("altered-invalid");
    let (mut client, mut first, mut second) = (cluster.connect(), cluster.connect(), cluster.connect());
    let made = "SELECT pg_get_indexdef('queue.tasks_order'::regclass)";
    let made: String = client.query_one(made, &[]).expect("the index").get(0);
    run(&mut client, "DROP INDEX queue.tasks_order");
    run(&mut first, "BEGIN; SELECT queue.push('default')");
    let mut builder = cluster.connect();
    let pid = count(&mut builder, "SELECT pg_backend_pid()::bigint");
    let concurrently = made.replacen("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1);
    let building = std::thread::spawn(move || code(&mut builder, &concurrently));
    let mut comes_to = |phase: &str| {
        let query = format!(
            "SELECT count(*) FROM pg_stat_progress_create_index WHERE pid = {pid} AND phase = '{phase}'"
        );
        eventually(phase, SOON, || count(&mut client, &query) == 1);
    };
    comes_to("waiting for writers before build");
    // The index takes no entries yet, and the build does not see these tasks. Without triggers no lane knows them either.
    run(
        &mut second,
        "SET session_replication_role = replica;
         BEGIN; INSERT INTO queue.tasks (queue) SELECT 'default' FROM generate_series(1, 3)",
    );
    run(&mut first, "ROLLBACK");
    comes_to("waiting for writers before validation");
    run(&mut client, &format!("SELECT pg_cancel_backend({pid})"));
    assert_eq!(building.join().expect("the builder"), "57014");
    run(&mut second, "COMMIT");
    let ready =
        "SELECT indisready AND NOT indisvalid FROM pg_index WHERE indexrelid = 'queue.tasks_order'::regclass";
    assert!(client.query_one(ready, &[]).expect("the index").get::<_, bool>(0), "it is filled and not valid");
    let claimed = client.query("SELECT id FROM queue.claim('1 hour', max_tasks => 10)", &[]).expect("claim");
    assert_eq!(claimed.len(), 3, "the index lacks them");
    run(&mut client, &format!("DROP INDEX queue.tasks_order; {made}; DELETE FROM queue.tasks"));
    round(&mut client, "with a valid index again", "");
}

#[test]
fn plain_indexes_are_written_natively_also_while_they_are_built() {
    let cluster = cluster("altered-indexes");
    let (mut client, mut other) = (cluster.connect(), cluster.connect());
    // One of columns that a claim changes, one that covers, one of an order of its own, one that is unique.
    run(&mut client, "CREATE INDEX mine_a ON queue.tasks (state, worker) INCLUDE (token);
         CREATE INDEX mine_b ON queue.tasks (created_at DESC NULLS LAST); CREATE INDEX mine_c ON queue.tasks USING hash (queue);
         CREATE INDEX mine_d ON queue.tasks USING gin (payload); CREATE UNIQUE INDEX mine_e ON queue.tasks (id, token)");
    round(&mut other, "plain indexes", "");
    run(
        &mut client,
        "SELECT queue.push('default', '{\"n\": 7}'); SELECT queue.claim('1 hour', worker => 'w')",
    );
    for by_index in [
        "SELECT count(*) FROM queue.tasks WHERE state = 'running' AND worker = 'w'",
        "SELECT count(*) FROM queue.tasks WHERE payload @> '{\"n\": 7}'",
        "SELECT count(*) FROM queue.tasks WHERE queue = 'default'",
    ] {
        run(&mut client, "SET enable_seqscan = off");
        assert_eq!(count(&mut client, by_index), 1, "{by_index}");
    }
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.tasks");

    // While an index is built by the side, it is there but takes nothing yet.
    run(&mut other, "BEGIN; SELECT queue.push('default')");
    let config = cluster.config("postgres");
    let builder = std::thread::spawn(move || {
        let mut client = config.connect(postgres::NoTls).expect("connect");
        run(&mut client, "CREATE INDEX CONCURRENTLY mine_f ON queue.tasks (updated_at)");
    });
    eventually("it waits for the open transaction", SOON, || {
        count(
            &mut client,
            "SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('queue.mine_f') AND NOT indisready",
        ) == 1
    });
    run(
        &mut client,
        "SELECT queue.push('default'); SELECT queue.complete(id, token) FROM queue.claim('1 hour')",
    );
    run(&mut other, "COMMIT");
    builder.join().expect("the builder");
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.claim('1 hour', max_tasks => 10)");
    round(&mut client, "after it", "");
}

/// From PostgreSQL 16 on, an update that changes only columns of such an index stays in its chain.
#[test]
fn brin_indexes_do_not_disturb_other_indexes() {
    let cluster = cluster("altered-summaries");
    let mut client = cluster.connect();
    run(
        &mut client,
        "CREATE INDEX mine ON queue.tasks USING brin (updated_at, lease_until); SELECT queue.push('default')",
    );
    let (served_before, _) = verbs(&mut client, "altered");
    run(&mut client, "SELECT queue.claim('1 hour')");
    for _ in 0..20 {
        run(&mut client, "SELECT queue.extend(1, 1, '1 hour')");
    }
    assert!(verbs(&mut client, "altered").0 >= served_before + 21, "natively");
    // Vacuum frees the TIDs of old versions, and new rows reuse them.
    eventually("another task is where an old version was", SOON, || {
        run(&mut client, "VACUUM queue.tasks");
        run(&mut client, "SELECT queue.push('default')");
        count(&mut client, "SELECT count(*) FROM queue.tasks WHERE ctid = '(0,2)' AND id <> 1") == 1
    });
    run(&mut client, "SET enable_seqscan = off; SET enable_bitmapscan = off");
    assert_eq!(count(&mut client, "SELECT count(*) FROM queue.tasks WHERE id = 1"), 1);
    run(&mut client, "SELECT queue.complete(1, 1); SELECT queue.purge('default')");
    round(&mut client, "an index that summarizes blocks", "");
}
