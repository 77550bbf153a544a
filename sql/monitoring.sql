-- The views queue.stats and queue.workers. They read memory where they can, so they come after the functions of the
-- library that they call (native.sql). Rights as in views.sql.

-- Reads the counters in shared memory, or what queue.maintain() has counted (counted_at). Other queues are counted, in
-- one pass over each table. The counters do not include rows that logical replication inserts.
CREATE VIEW queue.stats WITH (security_barrier) AS
WITH moment AS MATERIALIZED (SELECT queue_internal.counted_at() AS counted_at),
shown AS MATERIALIZED (
    SELECT q.name, q.paused_at FROM queue.queues AS q
    WHERE coalesce(q.name = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true)
),
counted AS MATERIALIZED (
    SELECT c.*
    FROM queue_internal.counted(ARRAY(
        SELECT q.name FROM shown AS q
        WHERE NOT EXISTS (SELECT FROM pg_subscription_rel AS r WHERE r.srrelid = 'queue.tasks'::regclass)
    )) AS c
),
numbers AS (
    SELECT c.*, m.counted_at FROM counted AS c, moment AS m
    UNION ALL
    SELECT t.*, NULL FROM queue_internal.count_tables(ARRAY(
        SELECT q.name FROM shown AS q WHERE NOT EXISTS (SELECT FROM counted AS c WHERE c.queue = q.name))) AS t
)
SELECT q.name AS queue,
       q.paused_at IS NOT NULL AS paused,
       coalesce(n.queued, 0) AS queued,
       coalesce(n.scheduled, 0) AS scheduled,
       coalesce(n.waiting, 0) AS waiting,
       coalesce(n.blocked, 0) AS blocked,
       coalesce(n.running, 0) AS running,
       coalesce(n.dead, 0) AS dead,
       CASE WHEN isfinite(n.oldest_due_at) THEN coalesce(n.counted_at, now()) - n.oldest_due_at END AS oldest_due_age,
       coalesce(n.completed, 0) AS completed_last_hour,
       coalesce(n.cancelled, 0) AS cancelled_last_hour,
       coalesce(n.failed, 0) AS failed_last_hour,
       round(coalesce(n.rate, 0)::numeric, 1) AS completed_per_second,
       n.counted_at
FROM shown AS q
LEFT JOIN numbers AS n ON n.queue = q.name;

CREATE VIEW queue.workers WITH (security_barrier) AS
SELECT w.worker,
       w.queue,
       count(w.lease_until) AS running,
       min(w.claimed_at) AS working_since,
       min(w.lease_until) AS next_lease_until,
       count(*) FILTER (WHERE w.lease_until <= coalesce(w.counted_at, now())) AS overdue,
       count(*) FILTER (WHERE w.waits) AS waiting,
       min(w.since) AS waiting_since,
       w.counted_at
FROM (SELECT t.worker, t.queue, t.claimed_at, t.lease_until, t.counted_at, false AS waits, NULL::timestamptz AS since
      FROM queue_internal.running_tasks() AS t
      UNION ALL SELECT i.worker, i.queue, NULL, NULL, NULL, true, i.since FROM queue_internal.waiting_workers() AS i) AS w
WHERE coalesce(w.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true)
GROUP BY w.worker, w.queue, w.counted_at;
