-- queue_internal.leased_task(id, token)
--
--   The running task that the token leases, its row locked. A lease that ran out but was not taken
--   back yet still counts: nobody else has the task, so nothing is gained by refusing.
--   Waits:    with "ends", if the task was asked to be cancelled or has a key, for transactions that have pushed after the
--             task, or that are replacing it. It is locked for its end then from the start, and not once as one that stays:
--             who waits for a stronger lock must not keep a heartbeat waiting.
--   Errors:   QX001, QX003

CREATE FUNCTION queue_internal.leased_task(id bigint, token bigint, ends boolean) RETURNS queue.tasks
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.tasks;
BEGIN
    PERFORM queue_internal.check_lease_holder(id, token);
    IF NOT ends THEN
        SELECT t.* INTO task FROM queue.tasks AS t
        WHERE t.id = leased_task.id AND t.token = leased_task.token AND t.state = 'running'
          AND t.cancel_requested_at IS NULL AND t.key IS NULL AND queue_internal.has_right('worker', t.queue)
        FOR NO KEY UPDATE;
        IF FOUND THEN
            RETURN task;
        END IF;
    END IF;
    SELECT t.* INTO task FROM queue.tasks AS t
    WHERE t.id = leased_task.id AND t.token = leased_task.token AND t.state = 'running'
      AND queue_internal.has_right('worker', t.queue)
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_lease_lost(id, token);
    END IF;
    RETURN task;
END
$$;
COMMENT ON FUNCTION queue_internal.leased_task IS
    'The running task that the token leases, locked; raises if the lease is lost.';
