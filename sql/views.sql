-- The views for people and for monitoring.

-- Every task wherever it is. A failed one is among the dead letters.
CREATE VIEW queue.all_tasks AS
SELECT t.id, t.queue, t.state, t.priority, t.run_at, t.attempt, t.max_attempts, t.token, t.lease_until,
       t.worker, t.claimed_at, t.created_at, t.updated_at, t.cancel_requested_at,
       NULL::timestamptz AS finished_at, t.key, t.group_key, t.headers, t.payload, t.progress, t.errors,
       NULL::jsonb AS result
FROM queue.tasks AS t
UNION ALL
SELECT d.id, d.queue, 'failed', d.priority, d.run_at, d.attempt, d.max_attempts, d.token, NULL,
       d.worker, d.claimed_at, d.created_at, d.failed_at, NULL,
       d.failed_at, d.key, d.group_key, d.headers, d.payload, d.progress, d.errors, NULL
FROM queue.dead_letters AS d
UNION ALL
SELECT h.id, h.queue, h.state, h.priority, h.run_at, h.attempt, h.max_attempts, h.token, NULL,
       h.worker, h.claimed_at, h.created_at, h.finished_at, NULL,
       h.finished_at, h.key, h.group_key, h.headers, h.payload, h.progress, h.errors, h.result
FROM queue.history AS h;
COMMENT ON VIEW queue.all_tasks IS 'Every task: live, finished, and failed for good.';

-- With the rights, and the row-level policies, of whoever reads it. PostgreSQL 14 cannot.
DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        ALTER VIEW queue.all_tasks SET (security_invoker = true);
    END IF;
END
$$;

-- Reads the live tasks and the last hour of the history once.
CREATE VIEW queue.stats AS
SELECT q.name AS queue,
       q.paused_at IS NOT NULL AS paused,
       coalesce(t.queued, 0) AS queued,
       coalesce(t.scheduled, 0) AS scheduled,
       coalesce(t.waiting, 0) AS waiting,
       coalesce(t.behind, 0) AS behind,
       coalesce(t.running, 0) AS running,
       coalesce(d.dead, 0) AS dead,
       t.oldest_due_age,
       coalesce(h.completed, 0) AS completed_last_hour,
       coalesce(h.cancelled, 0) AS cancelled_last_hour,
       coalesce(d.failed, 0) AS failed_last_hour,
       round(coalesce(h.completed_last_minute, 0) / 60.0, 1) AS completed_per_second
FROM queue.queues AS q
LEFT JOIN (
    SELECT i.queue,
           count(*) FILTER (WHERE i.state = 'queued' AND i.run_at <= now() AND i.gate < 2) AS queued,
           count(*) FILTER (WHERE i.state = 'queued' AND i.run_at <= now() AND i.gate = 2) AS behind,
           count(*) FILTER (WHERE i.state = 'queued' AND i.run_at > now()) AS scheduled,
           count(*) FILTER (WHERE i.state = 'waiting') AS waiting,
           count(*) FILTER (WHERE i.state = 'running') AS running,
           now() - min(i.run_at) FILTER (WHERE i.state = 'queued' AND i.run_at <= now()) AS oldest_due_age
    FROM queue.tasks AS i GROUP BY i.queue
) AS t ON t.queue = q.name
LEFT JOIN (
    SELECT i.queue, count(*) AS dead,
           count(*) FILTER (WHERE i.failed_at > now() - interval '1 hour') AS failed
    FROM queue.dead_letters AS i GROUP BY i.queue
) AS d ON d.queue = q.name
LEFT JOIN (
    SELECT i.queue,
           count(*) FILTER (WHERE i.state = 'completed') AS completed,
           count(*) FILTER (WHERE i.state = 'cancelled') AS cancelled,
           count(*) FILTER (WHERE i.state = 'completed'
                            AND i.finished_at > now() - interval '1 minute') AS completed_last_minute
    FROM queue.history AS i WHERE i.finished_at > now() - interval '1 hour' GROUP BY i.queue
) AS h ON h.queue = q.name;
COMMENT ON VIEW queue.stats IS
    'What is in each queue now and what became of its tasks lately, counted when read.';

CREATE VIEW queue.workers AS
SELECT t.worker,
       t.queue,
       count(*) AS running,
       min(t.claimed_at) AS working_since,
       min(t.lease_until) AS next_lease_until,
       count(*) FILTER (WHERE t.lease_until <= now()) AS overdue
FROM queue.tasks AS t
WHERE t.state = 'running'
GROUP BY t.worker, t.queue;
COMMENT ON VIEW queue.workers IS 'Who holds leases in which queue, since when and until when.';
