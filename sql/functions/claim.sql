-- queue.claim
--
--   Promise:  at most one valid lease per task, by the server's clock. The token grows with every claim
--   Order:    priority, then run_at, then id
--   Waits:    never
--   Touches:  queue.tasks (reads, locks with SKIP LOCKED, updates)
--   Index:    tasks_order

CREATE FUNCTION queue.claim(
    lease     interval DEFAULT NULL,
    queue     text     DEFAULT 'default',
    max_tasks integer  DEFAULT 1,
    worker    text     DEFAULT NULL)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    begun  CONSTANT timestamptz := clock_timestamp();
    source queue.queues;
    found  bigint;
BEGIN
    -- Calling the check costs more than this condition.
    IF max_tasks IS NULL OR max_tasks NOT BETWEEN 1 AND 100000 OR worker IS NOT NULL THEN
        PERFORM queue_internal.check_claim(max_tasks, worker);
    END IF;
    IF lease IS NOT NULL THEN
        lease := queue_internal.checked_lease(lease, NULL);
    END IF;
    RETURN QUERY SELECT * FROM queue_internal.claim_plain(queue, lease, max_tasks, worker);
    GET DIAGNOSTICS found = ROW_COUNT;
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
    begun   CONSTANT timestamptz := clock_timestamp();
    source  queue.queues;
    sources queue.queues[] := '{}';
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
        sources := sources || queue_internal.open_queue(name, 'worker');
    END LOOP;
    FOREACH source IN ARRAY sources LOOP
        IF source.paused_at IS NULL AND max_tasks > 0 THEN
            RETURN QUERY SELECT * FROM queue_internal.claim_plain(source.name, lease, max_tasks, worker);
            GET DIAGNOSTICS found = ROW_COUNT;
            max_tasks := max_tasks - found;
            IF max_tasks > 0 THEN
                RETURN QUERY SELECT * FROM queue_internal.claim_from(source, lease, max_tasks, worker, begun);
                GET DIAGNOSTICS found = ROW_COUNT;
                max_tasks := max_tasks - found;
            END IF;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.claim(interval, text[], integer, text) IS
'Claims up to max_tasks due tasks from several queues, in the order given: from the second queue only what the first
one does not have. Needs the worker''s right on each of the queues.

- lease: as above.
- queues: names of the queues, at least one. Paused queues are skipped.
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
