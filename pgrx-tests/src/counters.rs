//! The counters behind `queue.stats`, against a count.

use postgres::Client;

/// `queue.stats` in a form that can be compared. Ages and rates differ between two reads, and so do tasks that became
/// due in between, so callers compare while nothing changes.
const NUMBERS: &str = "SELECT coalesce(string_agg(format('%s: %s queued, %s scheduled, %s waiting, %s blocked, %s running, \
    %s dead, %s completed, %s cancelled, %s failed, oldest %s', s.queue, s.queued, s.scheduled, s.waiting, s.blocked, \
    s.running, s.dead, s.completed_last_hour, s.cancelled_last_hour, s.failed_last_hour, \
    date_trunc('milliseconds', now() - s.oldest_due_age)), E'\\n' ORDER BY s.queue), '') FROM queue.stats AS s";

/// The running tasks by queue and worker: as queue.workers shows them, and as they are in the table.
const WORKERS: &str = "
    SELECT coalesce(string_agg(concat_ws(' ', w.queue, w.worker, w.running, w.working_since, w.next_lease_until), ', '
                               ORDER BY w.queue, w.worker), '')
    FROM queue.workers AS w WHERE w.running > 0";
const RUNNING: &str = "
    SELECT coalesce(string_agg(concat_ws(' ', w.queue, w.worker, w.running, w.since, w.until), ', '
                               ORDER BY w.queue, w.worker), '')
    FROM (SELECT t.queue, t.worker, count(*) AS running, min(t.claimed_at) AS since, min(t.lease_until) AS until
          FROM queue.tasks AS t WHERE t.state = 'running' GROUP BY 1, 2) AS w";

/// Asserts that the counters cover every queue and agree with a count of the tables. No other session may write
/// meanwhile.
pub fn counters_agree(client: &mut Client) {
    let read = |client: &mut Client| client.query_one(NUMBERS, &[]).expect("queue.stats").get::<_, String>(0);
    let known = "SELECT count(*) FROM queue_internal.counted(ARRAY(SELECT name FROM queue.queues))";
    let queues = "SELECT count(*) FROM queue.queues";
    let [known, queues]: [i64; 2] =
        [known, queues].map(|query| client.query_one(query, &[]).expect("count").get(0));
    assert_eq!(known, queues, "a queue is not counted");
    let counters = read(client);
    // Without the fast path there are no counters, and the view counts.
    let setting: String = client.query_one("SHOW queue.fast_path", &[]).expect("setting").get(0);
    client.batch_execute("SET queue.fast_path = off").expect("set");
    let count = read(client);
    client.batch_execute(&format!("SET queue.fast_path = {setting}")).expect("set");
    assert_eq!(counters, count, "the counters differ from a count");
    // The leases in the lanes are those of the running tasks.
    let [shown, running]: [String; 2] =
        [WORKERS, RUNNING].map(|query| client.query_one(query, &[]).expect("queue.workers").get(0));
    assert_eq!(shown, running, "queue.workers does not show the running tasks");
}
