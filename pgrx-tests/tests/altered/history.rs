//! A history that its owner partitions in another way than by day: each row goes where PostgreSQL itself
//! would have put it.

use super::*;

/// Completes a task, natively or in SQL. Returns the partition of its history row, or the SQLSTATE.
fn archive(client: &mut Client, fast_path: &str) -> Result<String, String> {
    run(client, &format!("SET queue.fast_path = {fast_path}; SELECT queue.push('default')"));
    let query = "SELECT queue.complete(id, token) FROM queue.claim('1 hour')";
    let result = client.batch_execute(query).map_err(|error| error.code().expect("a code").code().to_owned());
    run(client, "RESET queue.fast_path");
    result?;
    let query = "SELECT tableoid::regclass::text FROM queue.history ORDER BY id DESC LIMIT 1";
    Ok(client.query_one(query, &[]).expect("the row").get(0))
}

/// The partition that both ways agree on, and whether completing was served natively.
fn both(client: &mut Client, what: &str) -> (Result<String, String>, bool) {
    let by_core = archive(client, "off");
    let (_, before) = verbs(client, "partition");
    let natively = archive(client, "on");
    assert_eq!(natively, by_core, "{what}");
    run(client, "DELETE FROM queue.tasks");
    // Every row is within the bounds of its partition.
    let strays = "SELECT count(*) FROM queue.history_default AS h WHERE EXISTS (
        SELECT FROM bounds AS b WHERE h.finished_at >= b.since AND h.finished_at < b.until)";
    assert_eq!(count(client, strays), 0, "{what}: rows in the default partition that belong elsewhere");
    (natively, verbs(client, "partition").1 == before)
}

#[test]
fn history_rows_go_to_the_partition_for_their_day() {
    let cluster = cluster("altered-history");
    let mut client = cluster.connect();
    meanwhile::without_partitions(&mut client);
    run(&mut client, "CREATE TEMP TABLE bounds (since timestamptz, until timestamptz)");
    let default = || Ok("queue.history_default".to_owned());
    assert_eq!(both(&mut client, "no partition of today"), (default(), true));

    // A month, made by hand, and under a name of its own.
    run(
        &mut client,
        "DELETE FROM queue.history;
         INSERT INTO bounds VALUES (date_trunc('month', now()), date_trunc('month', now()) + '1 month 1 day')",
    );
    let bounds: (String, String) = {
        let row = client.query_one("SELECT since::text, until::text FROM bounds", &[]).expect("bounds");
        (row.get(0), row.get(1))
    };
    let values = format!("FOR VALUES FROM ('{}') TO ('{}')", bounds.0, bounds.1);
    run(&mut client, &format!("CREATE TABLE queue.a_month PARTITION OF queue.history {values}"));
    assert_eq!(both(&mut client, "a month"), (Ok("queue.a_month".to_owned()), true));

    // Detached, it takes nothing more, and the default partition does again.
    run(
        &mut client,
        "DELETE FROM queue.history; ALTER TABLE queue.history DETACH PARTITION queue.a_month; DELETE FROM bounds",
    );
    assert_eq!(both(&mut client, "detached"), (default(), true));

    // A partition that is itself partitioned: only SQL can route its rows.
    run(
        &mut client,
        &format!(
            "DELETE FROM queue.history; INSERT INTO bounds VALUES ('{}', '{}');
             CREATE TABLE queue.parted PARTITION OF queue.history {values} PARTITION BY LIST (queue);
             CREATE TABLE queue.parted_default PARTITION OF queue.parted DEFAULT",
            bounds.0, bounds.1
        ),
    );
    assert_eq!(both(&mut client, "sub-partitions"), (Ok("queue.parted_default".to_owned()), false));
    run(&mut client, "DROP TABLE queue.parted; DELETE FROM bounds");

    // The name of a partition does not determine its bounds.
    run(
        &mut client,
        "DO $$ BEGIN EXECUTE format('CREATE TABLE queue.history_%s PARTITION OF queue.history
             FOR VALUES FROM (''2001-01-01'') TO (''2001-02-01'')', to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')); END $$",
    );
    assert_eq!(both(&mut client, "a wrong name"), (default(), true));

    // One that is over within the day, while the session remembers it.
    run(
        &mut client,
        "DELETE FROM queue.history;
         DO $$ BEGIN
             INSERT INTO bounds VALUES (now() - interval '1 hour', now() + interval '2 seconds');
             EXECUTE (SELECT format('CREATE TABLE queue.brief PARTITION OF queue.history FOR VALUES FROM (%L) TO (%L)', since, until)
                      FROM bounds);
         END $$",
    );
    let mut seen = std::collections::BTreeSet::new();
    eventually("the partition is over", SOON, || {
        seen.insert(archive(&mut client, "on").expect("completed"));
        seen.contains("queue.history_default")
    });
    assert!(seen.contains("queue.brief"), "{seen:?}");
    assert!(both(&mut client, "behind it").1);

    // Without any partition for it.
    run(
        &mut client,
        "DELETE FROM queue.history; DROP TABLE queue.brief; ALTER TABLE queue.history DETACH PARTITION queue.history_default",
    );
    assert_eq!(archive(&mut client, "on"), Err("23514".to_owned()));
    assert_eq!(archive(&mut client, "off"), Err("23514".to_owned()));
}
