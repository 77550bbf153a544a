//! Finds tasks that can never be claimed, and rows left over from finished tasks.

use std::time::{Duration, Instant};

use postgres::{Client, IsolationLevel};

use crate::stalls;

/// How long a finished task may leave dependencies and events behind, while they do not become fewer: an event is postponed
/// by ten seconds at most.
const SOON: Duration = Duration::from_secs(15);

/// The dependencies on tasks whose end could not be written to them, which only the sweep notices, as designed. The end is
/// known from the outcomes. With $1, ends at REPEATABLE READ and SERIALIZABLE may be known only from the history, because
/// their snapshot did not show the dependency.
const LEFT_TO_THE_SWEEP: &str = "
    SELECT d.task_id, d.predecessor_id FROM queue_internal.dependencies AS d
    WHERE d.outcome IS NULL AND (
        EXISTS (SELECT FROM queue_internal.outcomes AS o WHERE o.task_id = d.predecessor_id)
        OR $1 AND EXISTS (SELECT FROM queue.history AS h WHERE h.id = d.predecessor_id))";

/// Tasks that can be unblocked and have no event: they would wait for the sweep.
const UNANNOUNCED: &str = "
    SELECT format('task %s of %s waits for nothing that is left, and no event says so', t.id, t.queue)
    FROM queue.tasks AS t
    WHERE t.state = 'waiting' AND NOT EXISTS (SELECT FROM queue_internal.events AS e WHERE e.task_id = t.id)
      AND (EXISTS (SELECT FROM queue_internal.dependencies AS d
                   WHERE d.task_id = t.id AND d.outcome <> 'completed' AND d.on_failure NOT IN ('continue', 'batch'))
           OR NOT EXISTS (SELECT FROM queue_internal.dependencies AS d
                          WHERE d.task_id = t.id AND d.outcome IS NULL
                            AND (EXISTS (SELECT FROM queue.tasks AS p WHERE p.id = d.predecessor_id)
                                 OR (d.task_id, d.predecessor_id) IN (SELECT l.task_id, l.predecessor_id FROM left_over AS l)))
              AND NOT EXISTS (SELECT FROM queue_internal.batches AS b WHERE b.task_id = t.id AND b.sealed_at IS NULL))
    UNION ALL
    SELECT format('group %s of %s has its turn, and no event says so', g.group_key, (g.source).name)
    FROM (SELECT DISTINCT q AS source, t.group_key FROM queue.tasks AS t JOIN queue.queues AS q ON q.name = t.queue
          WHERE t.group_key IS NOT NULL) AS g,
         queue_internal.admitted_of(g.source, g.group_key) AS a,
         queue_internal.next_admission(g.source, g.group_key, a.admitted, a.ready, a.latest, a.used) AS s
    WHERE (s.admit IS NOT NULL OR s.withdraw IS NOT NULL)
      AND NOT EXISTS (SELECT FROM queue_internal.events AS e
                      WHERE e.queue = (g.source).name AND e.group_key = g.group_key)";

/// Tasks and groups that can be unblocked and have no event, in one snapshot. `strict` if some clients work at REPEATABLE
/// READ or SERIALIZABLE.
pub fn unannounced(client: &mut Client, strict: bool) -> Result<Vec<String>, postgres::Error> {
    let mut work = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start()?;
    let query = format!("WITH left_over AS ({LEFT_TO_THE_SWEEP}) {UNANNOUNCED}");
    Ok(work.query(&query, &[&strict])?.iter().map(|row| row.get(0)).collect())
}

/// How many tasks are left to the sweep, if all others wait for these; `None` if some wait for anything else.
pub fn left_to_the_sweep(client: &mut Client, strict: bool) -> Result<Option<u64>, postgres::Error> {
    let query = format!(
        "WITH RECURSIVE left_over AS (
             SELECT DISTINCT t.id FROM ({LEFT_TO_THE_SWEEP}) AS l JOIN queue.tasks AS t ON t.id = l.task_id
             WHERE t.state = 'waiting' AND NOT EXISTS (SELECT FROM queue.tasks AS p WHERE p.id = l.predecessor_id)
         ), blocked AS (
             SELECT l.id FROM left_over AS l
             UNION
             SELECT t.id FROM blocked AS b
             JOIN queue.tasks AS p ON p.id = b.id
             JOIN queue.tasks AS t ON
                 t.queue = p.queue AND t.group_key = p.group_key AND t.id > p.id AND t.admission = 2
                 OR t.state = 'waiting' AND EXISTS (
                        SELECT FROM queue_internal.dependencies AS d
                        WHERE d.task_id = t.id AND d.predecessor_id = p.id AND d.outcome IS NULL))
         SELECT (SELECT count(*) FROM left_over),
                EXISTS (SELECT FROM queue.tasks AS t WHERE t.id NOT IN (SELECT b.id FROM blocked AS b))"
    );
    let row = client.query_one(&query, &[&strict])?;
    let (count, others): (i64, bool) = (row.get(0), row.get(1));
    Ok((!others).then_some(count.unsigned_abs()))
}

/// Why tasks are left over.
pub fn reasons(client: &mut Client) -> Vec<String> {
    let query = "
        SELECT format('task %s of %s waits for nothing that is left: %s', t.id, t.queue,
                      (SELECT string_agg(format('%s %s', d.predecessor_id, coalesce(d.outcome, 'is over')), ', ')
                       FROM queue_internal.dependencies AS d WHERE d.task_id = t.id))
        FROM queue.tasks AS t
        WHERE t.state = 'waiting' AND NOT EXISTS (
            SELECT FROM queue_internal.dependencies AS d JOIN queue.tasks AS p ON p.id = d.predecessor_id
            WHERE d.task_id = t.id AND d.outcome IS NULL)
        UNION ALL
        SELECT format('group %s of %s has nobody admitted: %s tasks from %s on', t.group_key, t.queue, count(*), min(t.id))
        FROM queue.tasks AS t WHERE t.group_key IS NOT NULL GROUP BY t.queue, t.group_key
        HAVING count(*) FILTER (WHERE t.admission < 2) = 0 AND bool_or(t.state = 'queued')
        UNION ALL
        SELECT format('task %s of %s is hidden: it is due since %s', t.id, t.queue, t.run_at)
        FROM queue.tasks AS t WHERE t.state = 'queued' AND t.admission < 2 AND t.run_at <= clock_timestamp()
        UNION ALL
        SELECT format('task %s of %s runs, and its lease ended at %s', t.id, t.queue, t.lease_until)
        FROM queue.tasks AS t WHERE t.lease_until <= clock_timestamp()";
    let rows = client.query(query, &[]).expect("why tasks wait");
    let mut reasons: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    reasons.truncate(20);
    reasons
}

/// Rows that stay after their tasks ended. Dependencies may be left to the sweep; keys may not, nor to any later moment.
pub fn left_behind(client: &mut Client) -> Vec<String> {
    let texts = |rows: Vec<postgres::Row>| rows.iter().take(20).map(|row| row.get(0)).collect();
    let keys = "
        SELECT format('key %s of %s is held by task %s, which is over', k.key, k.queue, k.task_id)
        FROM queue_internal.keys AS k
        WHERE k.expires_at IS NULL AND NOT EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = k.task_id)";
    let keys = client.query(keys, &[]).expect("which keys are held");
    if !keys.is_empty() {
        return texts(keys);
    }
    let query = "
        SELECT format('a dependency of task %s, which is over, on %s: %s', d.task_id, d.predecessor_id, d.outcome)
        FROM queue_internal.dependencies AS d WHERE NOT EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = d.task_id)
        UNION ALL
        SELECT format('an event about %s of %s, %s tries, due at %s: %s', coalesce('task ' || e.task_id, e.group_key), e.queue,
                      e.tries, e.due_at, e.error)
        FROM queue_internal.events AS e";
    let (mut since, mut fewest, mut swept) = (Instant::now(), usize::MAX, false);
    loop {
        let rows = client.query(query, &[]).expect("what is left behind");
        if rows.len() < fewest {
            (since, fewest) = (Instant::now(), rows.len());
        }
        let late = stalls::since(since) > SOON;
        if rows.is_empty() || late {
            sweep(client, false);
            return texts(rows);
        } else if !swept && stalls::since(since) > SOON / 5 {
            swept = true;
            sweep(client, true);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Has the worker sweep every second from now on, or as it is configured.
pub fn sweep(client: &mut Client, often: bool) {
    let to = if often { "SET queue.sweep_interval = '1s'" } else { "RESET queue.sweep_interval" };
    client.batch_execute(&format!("ALTER SYSTEM {to}")).expect("ALTER SYSTEM");
    client.batch_execute("SELECT pg_reload_conf()").expect("reload");
}
