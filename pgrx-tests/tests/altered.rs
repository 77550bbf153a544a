//! Tables that users have altered, and transactions of every kind: each call either works as in SQL and reports why
//! it fell back, or is refused with a clear error.

#[path = "altered/columns.rs"]
mod columns;
#[path = "altered/history.rs"]
mod history;
#[path = "altered/indexes.rs"]
mod indexes;
#[path = "altered/meanwhile.rs"]
mod meanwhile;
#[path = "altered/objects.rs"]
mod objects;
#[path = "altered/publications.rs"]
mod publications;
#[path = "altered/roles.rs"]
mod roles;
#[path = "altered/transactions.rs"]
mod transactions;

use postgres::Client;
use queue_ext_tests::{Cluster, SOON, Settings, eventually, run};

fn cluster(name: &str) -> Cluster {
    let extra = "queue.sweep_interval = '1s'\nwal_level = logical";
    let mut cluster = Cluster::installed(name, &Settings { preload: true, extra });
    cluster.await_worker("postgres");
    cluster
}

fn count(client: &mut Client, query: &str) -> i64 {
    client.query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}

fn code(client: &mut Client, statement: &str) -> String {
    let error = client.batch_execute(statement).expect_err(statement);
    error.code().unwrap_or_else(|| panic!("{statement}: {error}")).code().to_owned()
}

/// How many calls were served natively, and how many fell back for this reason.
fn verbs(client: &mut Client, reason: &str) -> (u64, u64) {
    let stats: serde_json::Value =
        client.query_one("SELECT queue.engine_stats()", &[]).expect("stats").get(0);
    let verbs = &stats["verbs"];
    (verbs["served"].as_u64().unwrap_or(0), verbs["fallbacks"][reason].as_u64().unwrap_or(0))
}

/// Each native function once, with its expected result; afterwards no task is left.
const ROUND: &str = "
DO $$
DECLARE
    pushed bigint[]; task queue.claimed_task; next queue.claimed_task; ids bigint[]; tokens bigint[];
BEGIN
    pushed := queue.push('default', '{\"n\": 1}') || ARRAY(SELECT queue.push_many('default', '{1, 2, 3}'));
    COMMIT;
    SELECT * INTO STRICT task FROM queue.claim('1 hour', worker => 'w');
    ASSERT task.id = pushed[1], 'the first';
    PERFORM queue.extend(task.id, task.token, '2 hours', '1');
    COMMIT;
    SELECT * INTO STRICT next FROM queue.complete_and_claim(task.id, task.token, '2', '1 hour');
    ASSERT next.id = pushed[2], 'the second';
    PERFORM queue.complete(next.id, next.token);
    SELECT array_agg(id), array_agg(token) INTO ids, tokens FROM queue.claim('1 hour', max_tasks => 5);
    ASSERT ids = pushed[3:4], 'the others';
    ASSERT (SELECT count(*) FROM queue.complete_many(ids, tokens)) = 2;
    ASSERT (SELECT count(*) FROM queue.history WHERE id = ANY (pushed)) = 4;
    ASSERT NOT EXISTS (SELECT FROM queue.tasks);
END $$";

/// Plays a round, whose calls fall back for this reason; "" if the native fast path is to serve them.
fn round(client: &mut Client, what: &str, reason: &str) {
    let (served_before, handed_before) = verbs(client, reason);
    client.batch_execute(ROUND).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let (served, handed) = verbs(client, reason);
    if reason.is_empty() {
        assert!(served - served_before >= 7, "{what}: served {}", served - served_before);
    } else {
        assert!(handed - handed_before >= 5, "{what}: {} fell back for {reason}", handed - handed_before);
    }
}

fn round_anyhow(client: &mut Client, what: &str) {
    client.batch_execute(ROUND).unwrap_or_else(|error| panic!("{what}: {error:?}"));
}
