//! A queue that uses every feature, to be dumped, upgraded or replicated, and checks that it is unchanged afterwards.

use postgres::Client;

use crate::wait::{SOON, eventually};

const EVERYTHING: &str = "
    SELECT concat_ws(' ', a.id, a.queue, a.state, a.priority, a.attempt, a.token, a.worker, a.payload, a.errors, a.result)
    FROM queue.all_tasks AS a
    UNION ALL SELECT concat_ws(' ', q.name, q.lease, q.max_attempts, q.paused_at IS NOT NULL) FROM queue.queues AS q
    UNION ALL SELECT concat_ws(' ', s.name, s.cron, s.timezone, s.payload, s.options, s.next_run_at) FROM queue.schedules AS s
    UNION ALL SELECT concat_ws(' ', b.topic_pattern, b.queue, b.topic_regex) FROM queue.bindings AS b";
const PARTITIONS: &str =
    " UNION ALL SELECT concat_ws(' ', p.day, p.attached) FROM queue_internal.history_partitions() AS p";

/// All rows, one line each.
pub fn everything(client: &mut Client) -> Vec<String> {
    lines(client, &format!("{EVERYTHING}{PARTITIONS} ORDER BY 1"))
}

/// The same without the partitions of the history, which are the server's own affair.
pub fn rows(client: &mut Client) -> Vec<String> {
    lines(client, &format!("{EVERYTHING} ORDER BY 1"))
}

fn lines(client: &mut Client, query: &str) -> Vec<String> {
    client.query(query, &[]).expect("read everything").iter().map(|row| row.get(0)).collect()
}

/// Fills a queue, in a database with the extension whose worker runs; so many tasks wait in it.
pub fn fill(client: &mut Client, tasks: u32) {
    work(client, tasks);
    eventually("the history has its partitions", SOON, || {
        let query = "SELECT count(*) FROM queue_internal.history_partitions()";
        client.query_one(query, &[]).expect("count").get::<_, i64>(0) == 4
    });
}

/// The same in any edition, without the partitions of the history.
pub fn work(client: &mut Client, tasks: u32) {
    let statements = format!(
        "SELECT queue.create('mail', '{{\"max_attempts\": 1}}'), queue.pause('mail');
         SELECT queue.configure('default', '{{\"max_attempts\": 7}}');
         SELECT queue.schedule('party', '@yearly', 'mail', '\"hats\"', 'Europe/Berlin', '{{\"priority\": 3}}');
         SELECT queue.bind('orders.#', 'mail'), queue.bind('orders.*', 'default');
         CREATE ROLE web; SELECT queue.grant_producer('web', 'mail');
         SELECT count(queue.push('default', to_jsonb(n), delay => '1 hour')) FROM generate_series(1, 1000) AS n;
         SELECT count(queue.push('mail', to_jsonb(n))) FROM generate_series(1, {tasks}) AS n;
         SELECT queue.push('default', '\"done\"', priority => -3), queue.push('default', '\"dead\"', priority => -2),
                queue.push('default', '\"running\"', priority => -1);
         SELECT queue.complete(id, token, '1') FROM queue.claim();
         SELECT queue.fail(id, token, 'x', permanent => true) FROM queue.claim();
         SELECT count(*) FROM queue.claim('1 day', worker => 'w')"
    );
    client.batch_execute(&statements).expect("work");
}

/// Checks that it continues: no id is used twice, the open lease stays valid until it expires, and the rights are
/// unchanged.
pub fn goes_on(client: &mut Client) {
    let highest: i64 = client.query_one("SELECT max(id) FROM queue.all_tasks", &[]).expect("max").get(0);
    let next: i64 =
        client.query_one("SELECT queue.push('default', priority => -9)", &[]).expect("push").get(0);
    assert!(next > highest, "{next} after {highest}");
    let claimed: i64 = client.query_one("SELECT id FROM queue.claim()", &[]).expect("claim").get(0);
    assert_eq!(claimed, next);
    client.batch_execute("SET ROLE web; SELECT queue.push('mail')").expect("the right to push");
    assert!(client.batch_execute("SELECT queue.push('default')").is_err(), "to that queue alone");
    assert_eq!(client.query("SELECT queue.publish('orders.new')", &[]).expect("publish").len(), 1);
    client.batch_execute("RESET ROLE").expect("reset");
    assert_eq!(client.query("SELECT queue.publish('orders.new')", &[]).expect("publish").len(), 2);
}

/// Whether the worker ends the lease in flight once its time has come, runs a schedule that is due, and the task can be
/// worked on again.
pub fn worker_goes_on(client: &mut Client) {
    let run = |client: &mut Client, statement: &str| client.batch_execute(statement).expect(statement);
    run(
        client,
        "UPDATE queue.tasks SET lease_until = now() WHERE payload = '\"running\"' AND state = 'running'",
    );
    let state = "SELECT state || attempt FROM queue.tasks WHERE payload = '\"running\"'";
    eventually("the worker ends the lease that is over", SOON, || {
        client.query_one(state, &[]).expect("state").get::<_, String>(0) == "queued1"
    });
    let hats = "SELECT count(*) FROM queue.tasks WHERE payload = '\"hats\"'";
    let before: i64 = client.query_one(hats, &[]).expect("count").get(0);
    run(client, "UPDATE queue.schedules SET next_run_at = now()");
    eventually("the worker runs the schedule", SOON, || {
        client.query_one(hats, &[]).expect("count").get::<_, i64>(0) == before + 1
    });
}
