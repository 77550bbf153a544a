//! A database with something in each state, for the pages to show.

use postgres::Client;
use postgres::types::ToSql;
use queue_ext_tests::{SOON, eventually};

/// Ids that the tests ask for by name.
pub struct Filled {
    pub failed: i64,
    pub completed: i64,
    pub cancelled: i64,
    pub running: i64,
    pub scheduled: i64,
    pub waiting: i64,
}

pub fn fill(client: &mut Client) -> Filled {
    run(
        client,
        "CREATE ROLE oncall LOGIN; SELECT queue.grant_operator('oncall');
         SELECT queue.create('mail', '{\"max_attempts\": 2, \"lease\": \"10 minutes\", \"backoff\": {\"kind\": \"fixed\", \"base\": \"0\"}}');
         SELECT queue.create('thumbnails', '{\"max_running\": 4}'); SELECT queue.create('invoices');
         SELECT queue.pause('thumbnails');
         SELECT queue.schedule('nightly report', '0 3 * * *', 'invoices', '{}', 'Europe/Berlin');
         SELECT queue.schedule('hourly sweep', '@hourly', 'mail'); SELECT queue.pause_schedule('hourly sweep')",
    );
    let push = "SELECT queue.push('mail', '{\"to\": \"ada@example.com\"}', key => 'order-17', headers => '{\"trace\": \"t-1\"}')";
    let failed = id(client, push);
    for error in ["mailbox full", "connection to smtp.example.com refused\n  at send (mail.py:17)"] {
        let ended =
            "SELECT queue.fail(id, token, $1) FROM queue.claim('1 minute', 'mail', worker => 'mailer-1')";
        claimed(client, ended, &[&error]);
    }
    let completed =
        id(client, "SELECT queue.push('mail', '{\"to\": \"bob@example.com\", \"subject\": \"Zucchini\"}')");
    claimed(
        client,
        "SELECT queue.complete(id, token, '{\"message_id\": \"m-99\"}') FROM queue.claim('1 minute', 'mail', worker => 'mailer-2')",
        &[],
    );
    let cancelled = id(client, "SELECT queue.push('mail')");
    run(client, &format!("SELECT queue.cancel({cancelled})"));
    let running =
        id(client, "SELECT queue.push('mail', '{\"to\": \"eve@example.com\"}', group_key => 'customer-9')");
    claimed(
        client,
        "SELECT queue.extend(id, token, '5 minutes', '{\"percent\": 40}') FROM queue.claim('1 minute', 'mail', worker => 'mailer-3')",
        &[],
    );
    let scheduled = id(client, "SELECT queue.push('invoices', delay => '2 hours', priority => 5)");
    let waiting = id(client, &format!("SELECT queue.push('invoices', after => ARRAY[{scheduled}])"));
    run(
        client,
        "SELECT count(queue.push('thumbnails', jsonb_build_object('image', n))) FROM generate_series(1, 120) AS n",
    );
    Filled { failed, completed, cancelled, running, scheduled, waiting }
}

/// Does something with the one task that is to be claimed. A claim does not wait while the extension's worker
/// admits a group's task, and returns none then.
pub fn claimed(client: &mut Client, statement: &str, arguments: &[&(dyn ToSql + Sync)]) {
    eventually(statement, SOON, || {
        client.execute(statement, arguments).unwrap_or_else(|error| panic!("{statement}: {error:?}")) == 1
    });
}

pub fn run(client: &mut Client, statements: &str) {
    client.batch_execute(statements).unwrap_or_else(|error| panic!("{statements}: {error:?}"));
}

pub fn id(client: &mut Client, query: &str) -> i64 {
    client.query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}
