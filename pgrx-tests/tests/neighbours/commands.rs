//! Commands of roles without any right that look as if they concerned the extension's tables.

use super::*;
use postgres::NoTls;

/// How many tasks a session reads for queue.stats.
fn reads(client: &mut Client) -> i64 {
    let so_far = "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_all_tables WHERE relid = 'queue.tasks'::regclass";
    run(client, "BEGIN");
    let before = number(client, so_far);
    run(client, "SELECT * FROM queue.stats");
    let reads = number(client, so_far) - before;
    run(client, "COMMIT");
    reads
}

#[test]
fn commands_on_tables_of_others_and_on_missing_subscriptions_leave_the_counters() {
    let settings = Settings { preload: true, extra: "queue.sweep_interval = '1h'" };
    let mut cluster = Cluster::start_with("neighbours-commands", &settings);
    let mut client = cluster.connect();
    run(&mut client, "CREATE EXTENSION queue_ext; SELECT queue.create('b'); CREATE ROLE nobody LOGIN");
    cluster.await_worker("postgres");
    run(&mut client, "SELECT count(queue.push('b')) FROM generate_series(1, 5000)");
    eventually("stats reads counters", SOON, || reads(&mut client) < 1000);
    let mut nobody = cluster.config("postgres").user("nobody").connect(NoTls).expect("connect");
    run(&mut nobody, "CREATE TEMP TABLE tasks (id bigint)");
    for command in [
        "DROP SUBSCRIPTION IF EXISTS missing",
        "ALTER TABLE tasks DISABLE TRIGGER USER",
        "ALTER TABLE pg_temp.tasks ENABLE TRIGGER USER",
    ] {
        run(&mut nobody, command);
        let after = reads(&mut client);
        assert!(after < 1000, "{after} tasks read after {command}");
    }
    run(&mut client, "ALTER TABLE queue.tasks ENABLE TRIGGER USER");
    let after = reads(&mut client);
    assert!(after >= 5000, "{after} tasks read after triggers of the table itself were changed");
}
