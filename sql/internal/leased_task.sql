-- queue_internal.leased_task(id, token, ends)
--
--   Returns the running task with that token, its row locked. A lease that has expired but was not ended yet still
--   counts: no other worker has the task, so nothing is gained by refusing.
--   Waits:    with "ends", or if the task's cancellation was requested or it has a key, for transactions that have
--             pushed after the task or are replacing it. It takes the stronger lock from the start instead of
--             upgrading: a session that waits for an upgrade would keep heartbeats waiting
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
    'Returns the running task with that token, locked; raises if the lease is no longer held.';

-- Locks many as leased_task does, in the order of ids; leaves out the leases that are no longer held. "permanent" is that
-- of queue.fail. It is null for a release, which ends no task unless leased_task notices that. "nth" is the position in
-- the arrays.
CREATE FUNCTION queue_internal.lock_leases(ids bigint[], tokens bigint[], permanent boolean)
RETURNS TABLE (id bigint, token bigint, nth bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    FOR id, token, nth IN
        SELECT DISTINCT ON (g.id, g.token) g.id, g.token, g.nth
        FROM ROWS FROM (unnest(ids), unnest(tokens)) WITH ORDINALITY AS g (id, token, nth)
        ORDER BY g.id, g.token, g.nth
    LOOP
        IF permanent IS NULL OR NOT queue_internal.may_be_last(id, token, permanent) THEN
            PERFORM FROM queue.tasks AS t
            WHERE t.id = lock_leases.id AND t.token = lock_leases.token AND t.state = 'running'
              AND t.cancel_requested_at IS NULL AND t.key IS NULL AND queue_internal.has_right('worker', t.queue)
            FOR NO KEY UPDATE;
            IF FOUND THEN
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        PERFORM FROM queue.tasks AS t
        WHERE t.id = lock_leases.id AND t.token = lock_leases.token AND t.state = 'running'
          AND queue_internal.has_right('worker', t.queue)
        FOR UPDATE;
        IF FOUND THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_leases IS
    'Locks the running tasks with these tokens; returns them, without those whose lease is no longer held.';
