-- queue.claim(lease, queue, max_tasks, worker)
--
--   Leases up to "max_tasks" due tasks to the caller and returns them with their tokens.
--   API:      public; needs the worker's right on the queue
--   Promise:  at most one valid lease per task, by the server's clock; the token grows with every claim
--   Order:    priority, then run_at, then id
--   Empty:    returns no rows and never waits; so does a paused queue
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments; 40001 outside READ COMMITTED
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
    source queue.queues := queue_internal.open_queue(queue, 'worker');
BEGIN
    -- The call costs more than the look.
    IF max_tasks IS NULL OR max_tasks NOT BETWEEN 1 AND 100000 OR worker IS NOT NULL THEN
        PERFORM queue_internal.check_claim(max_tasks, worker);
    END IF;
    lease := queue_internal.checked_lease(lease, source.lease);
    IF source.paused_at IS NULL THEN
        RETURN QUERY SELECT * FROM queue_internal.claim_from(source, lease, max_tasks, worker);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.claim(interval, text, integer, text) IS
    'Leases due tasks of a queue to the caller and returns them with their tokens.';

-- The same over several queues, tried in the order given.
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
    name    text;
    found   bigint;
BEGIN
    PERFORM queue_internal.check_array('queues', queues);
    IF queues = '{}' THEN
        PERFORM queue_internal.raise_invalid('queues', 'must not be empty');
    END IF;
    PERFORM queue_internal.check_claim(max_tasks, worker);
    PERFORM queue_internal.checked_lease(lease, NULL);
    FOREACH name IN ARRAY queues LOOP
        PERFORM queue_internal.check_name('queues', name);
        sources := sources || queue_internal.open_queue(name, 'worker');
    END LOOP;
    FOREACH source IN ARRAY sources LOOP
        IF source.paused_at IS NULL AND max_tasks > 0 THEN
            RETURN QUERY SELECT * FROM queue_internal.claim_from(
                source, queue_internal.checked_lease(lease, source.lease), max_tasks, worker);
            GET DIAGNOSTICS found = ROW_COUNT;
            max_tasks := max_tasks - found;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.claim(interval, text[], integer, text) IS
    'Leases due tasks of several queues, tried in the order given.';

CREATE FUNCTION queue_internal.check_claim(max_tasks integer, worker text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF max_tasks IS NULL THEN
        PERFORM queue_internal.raise_null('max_tasks');
    ELSIF max_tasks < 1 THEN
        PERFORM queue_internal.raise_invalid('max_tasks', 'must be greater than zero', max_tasks::text);
    ELSIF max_tasks > 100000 THEN
        PERFORM queue_internal.raise_too_large('max_tasks', '100000', max_tasks::text);
    ELSIF worker IS NOT NULL THEN
        PERFORM queue_internal.check_name('worker', worker);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_claim(integer, text) IS
    'Checks what the forms of claim have in common.';
