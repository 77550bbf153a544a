//! Published tables: changes that cannot be replicated are refused in each edition, and everything else works.

use super::*;
use queue_ext_tests::{Edition, Worker};

#[test]
fn publications_that_would_lose_changes_refuse_them_alike() {
    // PostgreSQL 14 has no publications of some rows or columns.
    if queue_ext_tests::cluster::major_version() < 15 {
        return;
    }
    let cluster = cluster("altered-filter");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.push('default') FROM generate_series(1, 10)");
    let id = count(&mut client, "SELECT id FROM queue.claim('1 hour')");
    for what in ["queue.tasks WHERE (priority > 5)", "queue.tasks (queue, payload)"] {
        run(&mut client, &format!("CREATE PUBLICATION part FOR TABLE {what}"));
        for fast_path in ["on", "off"] {
            run(&mut client, &format!("SET queue.fast_path = {fast_path}; SELECT queue.push('default')"));
            for statement in [
                "SELECT queue.claim('1 hour')".to_owned(),
                format!("SELECT queue.complete({id}, 1)"),
                format!("SELECT queue.extend({id}, 1, '2 hours')"),
            ] {
                assert_eq!(
                    code(&mut client, &statement),
                    "42P10",
                    "{what}, fast_path = {fast_path}: {statement}"
                );
            }
        }
        run(&mut client, "DROP PUBLICATION part; RESET queue.fast_path");
    }
    run(&mut client, &format!("SELECT queue.complete({id}, 1)"));
}

#[test]
fn a_publication_for_all_tables_blocks_nothing() {
    for edition in [Edition::FastPath, Edition::SqlOnly] {
        let cluster = edition.cluster("altered-all-tables", Worker::On);
        edition.install(&cluster, "postgres");
        let mut client = cluster.connect();
        run(&mut client, "CREATE PUBLICATION everything FOR ALL TABLES; CREATE ROLE tenant");
        let without = "SELECT count(*) FROM pg_class AS c
            WHERE c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND c.relkind = 'r'
              AND c.relreplident <> 'f' AND NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary)";
        assert_eq!(count(&mut client, without), 0, "tables of which no row could be changed");
        run(
            &mut client,
            "SELECT queue.create('a', '{\"max_running\": 2}'), queue.grant_worker('tenant', 'a')",
        );
        run(&mut client, "SELECT queue.push('a', key => 'k', group_key => 'g')");
        // The worker may be processing the event of the group at this moment.
        eventually("the task is completed", SOON, || {
            let done = "SELECT count(queue.complete(id, token)) FROM queue.claim('1 hour', 'a')";
            count(&mut client, done) == 1
        });
        run(
            &mut client,
            "SELECT queue.revoke_worker('tenant', 'a'); UPDATE queue_internal.token_mark SET reached = reached",
        );
        run(&mut client, "CALL queue.maintain()");
        run(&mut client, "SELECT queue.drop('a')");
    }
}

#[test]
fn native_writes_are_replicated_logically() {
    let cluster = cluster("altered-publication");
    let mut client = cluster.connect();
    // The history gets its partitions once it is in use: before it is published, since rows move then.
    round(&mut client, "not published yet", "");
    eventually("there are partitions", SOON, || {
        // The worker may be making them at this moment, and have the table locked.
        let _ = client.batch_execute("CALL queue.maintain()");
        count(&mut client, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'queue.history'::regclass") > 2
    });
    run(&mut client, "TRUNCATE queue.history");
    run(&mut client, "CREATE DATABASE subscriber");
    run(
        &mut client,
        "CREATE PUBLICATION everything FOR TABLE queue.tasks, queue.history WITH (publish_via_partition_root)",
    );
    run(&mut client, "SELECT pg_create_logical_replication_slot('copy', 'pgoutput')");
    let mut copy = cluster.connect_to("subscriber");
    run(
        &mut copy,
        "CREATE SCHEMA queue; CREATE TABLE queue.tasks (id bigint PRIMARY KEY, queue text, state text, priority integer,
             run_at timestamptz, attempt integer, max_attempts integer, token bigint, admission smallint,
             lease_until timestamptz, worker text, claimed_at timestamptz, updated_at timestamptz, created_at timestamptz,
             cancel_requested_at timestamptz, key text, group_key text, backoff jsonb, kind text, lease interval,
             timeout interval, start_by timestamptz, weight integer, headers jsonb, payload jsonb,
             progress jsonb, errors jsonb);
         CREATE TABLE queue.history (id bigint, queue text, state text, priority integer, run_at timestamptz,
             attempt integer, max_attempts integer, token bigint, worker text, claimed_at timestamptz,
             created_at timestamptz, finished_at timestamptz, key text, group_key text, kind text,
             lease interval, timeout interval, start_by timestamptz, weight integer, headers jsonb, payload jsonb,
             progress jsonb, errors jsonb, result jsonb)",
    );
    let connection = format!("host={} user=postgres dbname=postgres", cluster.folder().display());
    run(
        &mut copy,
        &format!(
            "CREATE SUBSCRIPTION copy CONNECTION '{connection}' PUBLICATION everything
                  WITH (create_slot = false, slot_name = 'copy', copy_data = false)"
        ),
    );
    round(&mut client, "published", "");
    run(
        &mut client,
        "SELECT queue.push_many('default', '{1, 2, 3}'); SELECT queue.complete(id, token, '5') FROM queue.claim('1 hour');
         SELECT queue.claim('1 hour', worker => 'w'); SELECT queue.extend(id, token, '2 hours', '7') FROM queue.tasks WHERE state = 'running'",
    );
    let all = "SELECT coalesce(jsonb_agg(t ORDER BY t.id), '[]') || (SELECT jsonb_agg(h ORDER BY h.id) FROM queue.history AS h) FROM queue.tasks AS t";
    let expected: serde_json::Value = client.query_one(all, &[]).expect("all").get(0);
    assert_eq!(expected.as_array().map(Vec::len), Some(7));
    eventually("the copy is the same", SOON, || {
        copy.query_one(all, &[]).expect("all").get::<_, Option<serde_json::Value>>(0).as_ref()
            == Some(&expected)
    });
    run(&mut copy, "ALTER SUBSCRIPTION copy DISABLE");
    run(&mut copy, "ALTER SUBSCRIPTION copy SET (slot_name = NONE); DROP SUBSCRIPTION copy");
}
