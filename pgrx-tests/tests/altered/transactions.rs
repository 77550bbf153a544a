//! Transactions of every kind: what they changed themselves, isolation levels, and old snapshots.

use super::*;

/// A statement that changes a task and also finishes it or extends its lease has the same result as in SQL.
#[test]
fn a_statement_that_changed_the_task_itself_finishes() {
    let cluster = cluster("altered-self");
    let mut client = cluster.connect();
    run(&mut client, "SET statement_timeout = '30s'; SELECT queue.push_many('default', '{1, 2, 3}')");
    run(&mut client, "SELECT queue.claim('1 hour', max_tasks => 3)");
    let changed = |id: i32| {
        format!("WITH mine AS (UPDATE queue.tasks SET progress = '1' WHERE id = {id} RETURNING id, token)")
    };
    let (_, before) = verbs(&mut client, "own_tasks");
    run(&mut client, &(changed(1) + " SELECT queue.complete(id, token) FROM mine"));
    run(&mut client, &(changed(2) + " SELECT queue.extend(id, token, '2 hours') FROM mine"));
    run(
        &mut client,
        &(changed(3)
            + " SELECT queue.complete_many(ARRAY(SELECT id FROM mine), ARRAY(SELECT token FROM mine))"),
    );
    assert_eq!(verbs(&mut client, "own_tasks").1, before + 2, "the two that name one task");
    let done = "SELECT count(*) FROM queue.history WHERE progress = '1' AND id IN (1, 3)";
    assert_eq!(count(&mut client, done), 2);
    let extended = "SELECT count(*) FROM queue.tasks WHERE id = 2 AND progress = '1' AND lease_until > now() + interval '1 hour'";
    assert_eq!(count(&mut client, extended), 1);
}

#[test]
fn transactions_of_every_kind_are_served_or_refused() {
    let cluster = cluster("altered-transactions");
    let mut client = cluster.connect();
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        run(&mut client, &format!("BEGIN ISOLATION LEVEL {level}"));
        run(&mut client, "SELECT queue.push('default'); SELECT queue.push_many('default', '{1}')");
        run(&mut client, "SAVEPOINT s");
        // SQL decides: it either claims or raises an error, and the native function has to do the same.
        let native =
            client.batch_execute("SELECT queue.claim('1 hour')").map_err(|error| error.code().cloned());
        run(&mut client, "ROLLBACK TO s; SET LOCAL queue.fast_path = off");
        let by_core =
            client.batch_execute("SELECT queue.claim('1 hour')").map_err(|error| error.code().cloned());
        assert_eq!(native, by_core, "{level}");
        run(&mut client, "ROLLBACK");
    }
    let (_, handed) = verbs(&mut client, "transaction");
    assert!(handed >= 6);
    run(&mut client, "SELECT queue.push('default')");
    for statement in [
        "SELECT queue.push('default')",
        "SELECT queue.push_many('default', '{1}')",
        "SELECT queue.claim()",
        "SELECT queue.complete(1, 1)",
    ] {
        run(&mut client, "BEGIN READ ONLY");
        assert_eq!(code(&mut client, statement), "25006", "{statement}");
        run(&mut client, "ROLLBACK");
    }
    // Like the apply worker of a subscriber: no triggers fire, and a sweep finds the rows.
    run(&mut client, "SELECT queue.claim()");
    let (_, before) = verbs(&mut client, "transaction");
    run(
        &mut client,
        "SET session_replication_role = replica; INSERT INTO queue.tasks (queue) VALUES ('default');
         SELECT queue.push('default'); RESET session_replication_role",
    );
    assert_eq!(verbs(&mut client, "transaction").1, before + 1);
    let mut found = 0;
    eventually("both are claimed", SOON, || {
        found += count(&mut client, "SELECT count(*) FROM queue.claim('1 hour', max_tasks => 5)");
        found == 2
    });
}

#[test]
fn snapshots_that_are_too_old_are_refused_alike() {
    let cluster = cluster("altered-snapshots");
    let (mut client, mut other) = (cluster.connect(), cluster.connect());
    let mut codes = std::collections::BTreeSet::new();
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        for verb in [
            "queue.complete($, 1)",
            "queue.complete($, 2)",
            "queue.complete_many(ARRAY[$], ARRAY[1])",
            "queue.complete_and_claim($, 1, NULL, '1 hour')",
            "queue.complete_many_and_claim(ARRAY[$], ARRAY[1], NULL, '1 hour')",
            "queue.extend($, 1, '2 hours')",
        ] {
            for changed in [false, true] {
                let mut came_to = ["on", "off"].map(|fast_path| {
                    run(&mut client, "TRUNCATE queue.tasks, queue.history");
                    run(&mut client, "SELECT queue.push('default')");
                    let id = count(&mut client, "SELECT id FROM queue.claim('1 hour')");
                    run(&mut client, &format!("SET queue.fast_path = {fast_path}; BEGIN ISOLATION LEVEL {level}; TABLE queue.tasks"));
                    if changed {
                        run(&mut other, "UPDATE queue.tasks SET progress = '5'");
                    }
                    let result = client.batch_execute(&format!("SELECT {}", verb.replace('$', &id.to_string())));
                    run(&mut client, if result.is_ok() { "COMMIT" } else { "ROLLBACK" });
                    let left = client
                        .query_one("SELECT concat((SELECT count(*) FROM queue.tasks), (SELECT count(*) FROM queue.history))", &[])
                        .expect("count")
                        .get::<_, String>(0);
                    let code = result.err().map(|error| error.code().expect("of the server").code().to_owned());
                    codes.extend(code.clone());
                    (code, left)
                });
                let [natively, by_core] = came_to.each_mut().map(std::mem::take);
                assert_eq!(natively, by_core, "{level}, {verb}, changed: {changed}");
            }
        }
    }
    assert_eq!(codes.into_iter().collect::<Vec<_>>(), ["40001", "QX001"]);
}
