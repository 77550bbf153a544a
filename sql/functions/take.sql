-- queue.take
--
--   Locks:    none while it waits, and no snapshot: see queue.wait. An empty transaction stays open
--   Touches:  as queue.claim
--   Why it has no SET clause, and no operators: see queue.maintain()

CREATE PROCEDURE queue.take(
    queue    text     DEFAULT 'default',
    lease    interval DEFAULT NULL,
    timeout  interval DEFAULT '30 seconds',
    worker   text     DEFAULT NULL,
    INOUT id           bigint      DEFAULT NULL,
    INOUT token        bigint      DEFAULT NULL,
    INOUT payload      jsonb       DEFAULT NULL,
    INOUT headers      jsonb       DEFAULT NULL,
    INOUT attempt      integer     DEFAULT NULL,
    INOUT max_attempts integer     DEFAULT NULL,
    INOUT priority     integer     DEFAULT NULL,
    INOUT key          text        DEFAULT NULL,
    INOUT group_key    text        DEFAULT NULL,
    INOUT progress     jsonb       DEFAULT NULL,
    INOUT run_at       timestamptz DEFAULT NULL,
    INOUT created_at   timestamptz DEFAULT NULL,
    INOUT lease_until  timestamptz DEFAULT NULL,
    INOUT kind         text        DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
    deadline CONSTANT pg_catalog.timestamptz := queue_internal.wait_deadline(timeout);
    ready    boolean;
    moment   pg_catalog.timestamptz;
    in_vain  integer := 0;
BEGIN
    LOOP
        moment := pg_catalog.now();
        SELECT c.id, c.token, c.payload, c.headers, c.attempt, c.max_attempts, c.priority, c.key, c.group_key, c.progress,
               c.run_at, c.created_at, c.lease_until, c.kind
        INTO id, token, payload, headers, attempt, max_attempts, priority, key, group_key, progress,
             run_at, created_at, lease_until, kind
        FROM queue.claim(lease, queue, 1, worker) AS c;
        EXIT WHEN id IS NOT NULL OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>=) deadline;
        -- An interval of so many days counts as 100 years.
        CALL queue.wait(
            queue, least(greatest(deadline OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp(), '0'), '36000 days'), ready, worker);
        EXIT WHEN ready IS NOT TRUE;
        -- In a transaction block wait returns at once, also if it has returned before. Elsewhere a second wait begins a new
        -- transaction.
        in_vain := CASE WHEN pg_catalog.now() OPERATOR(pg_catalog.=) moment THEN in_vain OPERATOR(pg_catalog.+) 1 ELSE 0 END;
        EXIT WHEN in_vain OPERATOR(pg_catalog.=) 3;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE queue.take IS
'Waits until a task of the queue can be claimed, as queue.wait does, and claims it, as queue.claim does: one round trip
for each task. It tries again if another worker was quicker. If the timeout ends first, all results are null. While it
waits, it holds no snapshot and no lock, but keeps an empty transaction open. Transaction blocks: as queue.wait. Needs
the worker''s right on the queue.

- queue: name of the queue. Default "default".
- lease: how long the caller has the task unless it extends the lease; more than 0, at most queue.max_lease. Null
  (default) means the task''s own lease, or else the queue''s option.
- timeout: how long to wait, at most 100 years. 0 returns at once. Default 30 seconds.
- worker: name of the worker, 1 to 128 bytes, shown in queue.workers and in errors of the task. Null means none.
- id, token, payload, headers, attempt, max_attempts, priority, key, group_key, progress, run_at, created_at,
  lease_until, kind: the results, as in queue.claimed_task; pass nothing.

Errors: as queue.claim and queue.wait.';
