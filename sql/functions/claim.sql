-- queue.claim
--
--   Promise:  at most one valid lease per task, by the server's clock. The token grows with every claim
--   Order:    priority, then run_at, then id
--   Waits:    never
--   Touches:  queue.tasks (reads, locks with SKIP LOCKED, updates)
--   Index:    tasks_order
--   How:      if the queue has no policies, one statement claims the first tasks of its first priority together. It
--             claims none if an expired task, one with a lease, a timeout or a start deadline of its own, or one of a group
--             that was not admitted or has more rules is among them. What it leaves out claim_from claims, only slower.
--   Why the planner settings: as in claim_from
--   Why an array of ids, and a materialized batch: a join whose plan was made when there was one task would compare each
--             task with each one claimed, and add up the batch for each
--   Why one statement: to start another costs more than what it would do

CREATE FUNCTION queue.claim(
    lease     interval DEFAULT NULL,
    queue     text     DEFAULT 'default',
    max_tasks integer  DEFAULT 1,
    worker    text     DEFAULT NULL)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    begun   CONSTANT timestamptz := clock_timestamp();
    entries CONSTANT bigint := queue_internal.entries_passed();
    scan_from queue_internal.scan_start := queue_internal.default_scan_start();
    source  queue.queues;
    found   bigint := 0;
BEGIN
    -- Calling a check costs more than these conditions.
    IF max_tasks IS NULL OR max_tasks NOT BETWEEN 1 AND 100000 OR worker IS NOT NULL THEN
        PERFORM queue_internal.check_claim(max_tasks, worker);
    END IF;
    IF date_part('epoch', lease) BETWEEN 1 AND 60 THEN
        lease := make_interval(secs => date_part('epoch', lease));
    ELSIF lease IS NOT NULL THEN
        lease := queue_internal.checked_lease(lease, NULL);
    END IF;
    IF queue_internal.buckets() = 1 THEN
        IF current_setting('queue_scan_start.any', true) = 'true' THEN
            scan_from := queue_internal.get_scan_start(queue);
        END IF;
        RETURN QUERY
            WITH source AS MATERIALIZED (
                SELECT coalesce(claim.lease, queue_internal.checked_lease(NULL, q.lease)) AS lease, q.max_attempts,
                       NOT q.fair_groups AND q.group_rate_limit IS NULL AS plain_groups, f.level, f.head,
                       CASE WHEN f.head <= begun THEN queue_internal.token_base(
                           coalesce(q.durable_leases, current_setting('queue.durable_leases', true)) IS DISTINCT FROM 'off')
                       END AS base
                FROM queue.queues AS q
                CROSS JOIN LATERAL queue_internal.first_task(0, q.name, scan_from.level, scan_from.head, false) AS f
                WHERE q.name = claim.queue AND q.paused_at IS NULL AND q.max_running IS NULL AND q.rate_limit IS NULL
                  AND q.ageing IS NULL AND q.timeout IS NULL
                  AND NOT EXISTS (
                      SELECT FROM queue_internal.events AS e
                      WHERE e.queue = claim.queue AND (e.due_at, e.id) > ('-infinity', scan_from.event)
                        AND e.due_at <= begun)
                  AND queue_internal.has_right('worker', q.name)
            ), due AS MATERIALIZED (
                SELECT t.id,
                       -- Not before the task before it in its group has ended.
                       CASE WHEN t.group_key IS NULL THEN begun ELSE clock_timestamp() END AS started,
                       t.state = 'queued' AND num_nonnulls(t.lease, t.timeout, t.start_by) = 0
                       AND (t.group_key IS NULL OR t.admission = 1 AND (SELECT s.plain_groups FROM source AS s))
                       -- Larger ones are not covered by the mark, or there are no more: see claim_from.
                       AND t.token < least((SELECT s.base FROM source AS s) + 999999, 9007199254740991) AS plain
                FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, 0) AND t.queue = claim.queue
                  AND t.priority = (SELECT s.level FROM source AS s) AND t.admission < 2
                  AND t.run_at >= (SELECT s.head FROM source AS s) AND t.run_at <= begun
                  AND (t.state = 'queued' OR t.state = 'running' AND t.lease_until <= begun)
                ORDER BY t.run_at, t.id LIMIT claim.max_tasks FOR NO KEY UPDATE OF t SKIP LOCKED
            ), batch AS MATERIALIZED (
                SELECT array_agg(d.id) AS ids, max(d.started) AS started, bool_and(d.plain) AS plain FROM due AS d
            ), claimed AS (
                UPDATE queue.tasks AS t
                SET state = 'running', attempt = t.attempt + 1, token = greatest(t.token + 1, s.base),
                    lease_until = b.started + s.lease, worker = claim.worker, claimed_at = b.started, updated_at = b.started
                FROM source AS s, batch AS b
                WHERE t.id = ANY ((SELECT d.ids FROM batch AS d)::bigint[]) AND b.plain
                RETURNING t.id, t.token, t.queue, t.payload, t.headers, t.attempt, coalesce(t.max_attempts, s.max_attempts),
                          t.priority, t.key, t.group_key, t.progress, t.run_at, t.created_at, t.lease_until, t.kind
            )
            SELECT c.* FROM claimed AS c ORDER BY c.run_at, c.id;
        GET DIAGNOSTICS found = ROW_COUNT;
        -- Many dead entries, or running tasks, before the first one that it claimed. If it has claimed none, claim_from moves
        -- the scan start.
        IF found > 0 AND queue_internal.entries_passed() > entries + 1000 + found THEN
            PERFORM queue_internal.move_scan_start(queue, scan_from, begun);
        END IF;
    END IF;
    IF found < max_tasks THEN
        source := queue_internal.open_queue(queue, 'worker');
        IF source.paused_at IS NULL THEN
            RETURN QUERY SELECT * FROM queue_internal.claim_from(
                source, lease, max_tasks - found::integer, worker, begun);
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION queue.claim(interval, text, integer, text) IS
'Claims up to max_tasks due tasks: leases them to the caller and returns each with the token of its lease, by priority,
then run_at, then id. Returns no rows if no task can be claimed or the queue is paused. Never waits. Needs the
worker''s right on the queue.

- lease: how long the caller has the tasks unless it extends the lease; more than 0, at most queue.max_lease. Null
  (default) means the task''s own lease, or else the queue''s option. A task with a timeout is leased no longer than
  that.
- queue: name of the queue. Default "default".
- max_tasks: largest number of tasks to claim, 1 to 100000. Default 1.
- worker: name of the worker, 1 to 128 bytes, shown in queue.workers and in errors of the task. Null means none.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 40001: at REPEATABLE READ
or SERIALIZABLE, another transaction changed a task since the snapshot: retry. 22004, 22023 or 54000: an argument is null, invalid or too large.';

-- The same for several queues.
CREATE FUNCTION queue.claim(
    lease     interval,
    queues    text[],
    max_tasks integer DEFAULT 1,
    worker    text    DEFAULT NULL)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source  queue.queues;
    sources queue.queues[] := '{}';
    names   text[] := '{}';
    name    text;
    found   bigint;
BEGIN
    PERFORM queue_internal.check_array('queues', queues);
    IF queues = '{}' THEN
        PERFORM queue_internal.raise_invalid('queues', 'must not be empty');
    END IF;
    PERFORM queue_internal.check_claim(max_tasks, worker);
    lease := queue_internal.checked_lease(lease, NULL);
    FOREACH name IN ARRAY queues LOOP
        PERFORM queue_internal.check_name('queues', name);
        -- What a call claims does not expire before it has returned.
        CONTINUE WHEN name = ANY (names);
        names := names || name;
        sources := sources || queue_internal.open_queue(name, 'worker');
    END LOOP;
    FOREACH source IN ARRAY sources LOOP
        IF source.paused_at IS NULL AND max_tasks > 0 THEN
            RETURN QUERY SELECT * FROM queue.claim(lease, source.name, max_tasks, worker);
            GET DIAGNOSTICS found = ROW_COUNT;
            max_tasks := max_tasks - found;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.claim(interval, text[], integer, text) IS
'Claims up to max_tasks due tasks from several queues, in the order given: from the second queue only what the first
one does not have. Needs the worker''s right on each of the queues.

- lease: as above.
- queues: names of the queues, at least one. Paused queues are skipped, and a name counts once.
- max_tasks: largest number of tasks to claim from all queues together, 1 to 100000. Default 1.
- worker: name of the worker, 1 to 128 bytes. Null means none.

Errors: as for one queue.';

CREATE FUNCTION queue_internal.check_claim(max_tasks integer, worker text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF max_tasks IS NULL THEN
        PERFORM queue_internal.raise_null('max_tasks');
    ELSIF max_tasks < 1 THEN
        PERFORM queue_internal.raise_invalid('max_tasks', 'must be greater than zero', max_tasks::text);
    ELSIF max_tasks > 100000 THEN
        PERFORM queue_internal.raise_too_large('max_tasks', '100000', max_tasks::text);
    END IF;
    PERFORM queue_internal.check_worker(worker);
END
$$;
COMMENT ON FUNCTION queue_internal.check_claim IS 'Checks the arguments that both forms of claim have.';

CREATE FUNCTION queue_internal.check_worker(worker text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF worker IS NOT NULL THEN
        PERFORM queue_internal.check_name('worker', worker);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_worker IS 'Checks the name of a worker: 1 to 128 bytes; null passes.';
