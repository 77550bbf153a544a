-- The views for operators and for monitoring, except queue.stats and queue.workers (monitoring.sql).

-- A view shows a role the rows of its queues (internal/rights.sql); a null array means all queues. Views that read
-- the tables as the owner have security_barrier, which prevents functions in the query from seeing other rows.

-- Every task wherever it is. Roles read the tables under their policies, because with a condition in each part the
-- planner could not scan the indexes of the tables in one order, and it flattens UNION ALL in spite of
-- security_barrier, so that functions in the query would see rows of others.
CREATE VIEW queue.all_tasks AS
SELECT t.id, t.queue, t.state, t.priority, t.run_at, t.attempt, t.max_attempts, t.token, t.lease_until,
       t.worker, t.claimed_at, t.created_at, t.updated_at, t.cancel_requested_at,
       NULL::timestamptz AS finished_at, t.key, t.group_key, t.kind, t.lease, t.timeout, t.start_by, t.weight, t.headers, t.payload, t.progress, t.errors,
       NULL::jsonb AS result
FROM queue.tasks AS t
UNION ALL
SELECT d.id, d.queue, 'failed', d.priority, d.run_at, d.attempt, d.max_attempts, d.token, NULL,
       d.worker, d.claimed_at, d.created_at, d.failed_at, NULL,
       d.failed_at, d.key, d.group_key, d.kind, d.lease, d.timeout, d.start_by, d.weight, d.headers, d.payload, d.progress, d.errors, NULL
FROM queue.dead_letters AS d
UNION ALL
SELECT h.id, h.queue, h.state, h.priority, h.run_at, h.attempt, h.max_attempts, h.token, NULL,
       h.worker, h.claimed_at, h.created_at, h.finished_at, NULL,
       h.finished_at, h.key, h.group_key, h.kind, h.lease, h.timeout, h.start_by, h.weight, h.headers, h.payload, h.progress, h.errors, h.result
FROM queue.history AS h;

DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        ALTER VIEW queue.all_tasks SET (security_invoker = true);
        RETURN;
    END IF;
    -- PostgreSQL 14 reads the view as the owner, so it needs a condition on the whole, which is not flattened.
    EXECUTE format(
        'CREATE OR REPLACE VIEW queue.all_tasks WITH (security_barrier) AS SELECT a.* FROM (%s) AS a
         WHERE coalesce(a.queue = ANY ((SELECT queue_internal.queues_with_right(''operator''))::text[]), true)',
        rtrim(pg_get_viewdef('queue.all_tasks'::regclass), ';'));
END
$$;

-- These two without names and errors, for roles that may only read queue.stats.
CREATE VIEW queue.failing_schedules WITH (security_barrier) AS
SELECT s.queue,
       count(*) AS schedules,
       min(s.next_run_at) AS since,
       max(s.last_error_at) AS last_error_at
FROM queue.schedules AS s
WHERE s.last_error IS NOT NULL AND s.paused_at IS NULL
  AND coalesce(s.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true)
GROUP BY s.queue;

CREATE VIEW queue.due_schedules WITH (security_barrier) AS
SELECT s.queue,
       count(*) AS schedules,
       min(s.next_run_at) AS since
FROM queue.schedules AS s
WHERE s.next_run_at <= now() AND s.last_error IS NULL AND s.paused_at IS NULL
  AND coalesce(s.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true)
GROUP BY s.queue;

-- After seven tries the pause is a second. Without the errors, because they may contain data of the tasks.
CREATE VIEW queue.delayed_events WITH (security_barrier) AS
SELECT e.queue,
       count(*) AS events,
       count(e.error) AS failing
FROM queue_internal.events AS e
WHERE e.tries > 7
  AND coalesce(e.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true)
GROUP BY e.queue;

-- Handlers that the background worker does not run. Also read by queue.attach() and the background worker.
CREATE VIEW queue.failing_handlers WITH (security_barrier) AS
SELECT h.queue, p.problem, p.hint
FROM queue.handlers AS h
-- The name of a dropped role is null, which format() replaces by an empty string.
LEFT JOIN (SELECT a.oid, a.rolcanlogin, a.rolname AS name, quote_ident(a.rolname) AS quoted FROM pg_roles AS a) AS r
    ON r.oid = h.role
CROSS JOIN LATERAL (SELECT queue_internal.handler_named(h.handler) AS oid) AS f
CROSS JOIN (SELECT c.relowner AS owner, quote_ident(current_database()) AS database
            FROM pg_class AS c WHERE c.oid = 'queue.tasks'::regclass) AS t
CROSS JOIN LATERAL (
    SELECT v.problem, v.hint
    FROM (VALUES
        (1, r.oid IS NULL, 'its role does not exist',
         'Attach the handler again with another role, or call queue.detach().'),
        (2, f.oid IS NULL, 'its function does not exist',
         'Attach another function, or call queue.detach().'),
        (3, NOT queue_internal.is_handler(f.oid), format('%s does not take one queue.claimed_task and return jsonb', h.handler),
         'Attach another function, or call queue.detach().'),
        (4, NOT pg_has_role(t.owner, r.oid, CASE WHEN current_setting('server_version_num')::integer < 160000
                                                 THEN 'MEMBER' ELSE 'SET' END),
         format('the owner of the extension may not SET ROLE to %s', r.quoted),
         format('Attach the handler with another role, or let a superuser GRANT %s TO %I.', r.quoted, pg_get_userbyid(t.owner))),
        (5, NOT r.rolcanlogin, format('role %s is not permitted to log in', r.quoted),
         format('ALTER ROLE %s LOGIN. Leave it without a password, so that no client can log in with one.', r.quoted)),
        (6, NOT has_database_privilege(r.oid, current_database(), 'CONNECT'),
         format('role %s lacks the privilege CONNECT on the database', r.quoted),
         format('GRANT CONNECT ON DATABASE %s TO %s.', t.database, r.quoted)),
        (7, NOT has_function_privilege(r.oid, f.oid, 'EXECUTE'), format('role %s lacks the privilege EXECUTE on %s', r.quoted, h.handler),
         format('GRANT EXECUTE ON FUNCTION %s TO %s.', h.handler, r.quoted)),
        (8, NOT pg_has_role(r.oid, t.owner, 'USAGE') AND NOT EXISTS (
                SELECT FROM queue.rights AS g
                WHERE g.kind IN ('worker', 'operator') AND coalesce(g.queue = h.queue, true)
                  AND pg_has_role(r.oid, g.role, 'USAGE')),
         format('role %s does not have the right of a worker', r.quoted),
         format('SELECT queue.grant_worker(%L, %L).', r.name, h.queue))
    ) AS v (number, matches, problem, hint)
    WHERE v.matches ORDER BY v.number LIMIT 1
) AS p
WHERE coalesce(h.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true);

-- A row for each task that another one waits for. The right on the queue of the one that waits decides: who pushed it, or
-- added tasks to its batch, had a right on the queues of the others. A task that waits
-- until a time at most is queued; it does not wait any longer once it was claimed again, which changes its token.
CREATE VIEW queue.dependencies WITH (security_barrier) AS
SELECT d.task_id,
       t.queue,
       d.predecessor_id,
       d.outcome,
       nullif(d.on_failure, 'batch') AS on_failure,
       d.on_failure = 'batch' AS is_batch
FROM queue_internal.dependencies AS d
JOIN queue.tasks AS t ON t.id = d.task_id
WHERE (t.state = 'waiting'
       OR t.state = 'queued' AND EXISTS (SELECT FROM queue_internal.awaits AS a WHERE a.task_id = t.id AND a.token = t.token))
  AND coalesce(t.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true);

-- The counts are columns of their own, so that a query which does not read them does not count.
CREATE VIEW queue.batches WITH (security_barrier) AS
SELECT t.id AS batch,
       t.queue,
       t.created_at,
       now() - t.created_at AS age,
       b.sealed_at,
       (SELECT count(*) FROM queue_internal.dependencies AS d
        WHERE d.task_id = t.id AND d.on_failure = 'batch' AND d.outcome IS NULL) AS unfinished,
       b.completed + (SELECT count(*) FROM queue_internal.dependencies AS d
                      WHERE d.task_id = t.id AND d.on_failure = 'batch' AND d.outcome = 'completed') AS completed,
       b.failed + (SELECT count(*) FROM queue_internal.dependencies AS d
                   WHERE d.task_id = t.id AND d.on_failure = 'batch' AND d.outcome = 'failed') AS failed,
       b.cancelled + (SELECT count(*) FROM queue_internal.dependencies AS d
                      WHERE d.task_id = t.id AND d.on_failure = 'batch' AND d.outcome IN ('cancelled', 'purged')) AS cancelled
FROM queue_internal.batches AS b
JOIN queue.tasks AS t ON t.id = b.task_id AND t.state = 'waiting'
WHERE coalesce(t.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true);
