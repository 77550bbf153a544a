-- queue_internal.push_plain(queue, payload, priority)
--
--   Adds a task without options to a queue without policies for pushes, and returns its id; null if a trigger of the user
--   suppresses it. If the queue has policies, returns 0. So the trigger tasks_inserted has nothing to check, which would
--   cost as much as the INSERT.
--   Why this search_path: the trigger recognizes the INSERT by it (how_inserted.sql). Nobody else names a schema twice.

CREATE FUNCTION queue_internal.push_plain(queue text, payload jsonb, priority integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, queue_internal, queue_internal, pg_temp AS $$
DECLARE
    new_id bigint;
    plain  boolean;
    task   queue.tasks;
BEGIN
    PERFORM FROM queue.queues AS q
    WHERE q.name = push_plain.queue AND q.max_queued IS NULL AND q.ttl IS NULL
      AND queue_internal.has_right('producer', q.name);
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    INSERT INTO queue.tasks AS t (queue, payload, priority)
    VALUES (push_plain.queue, push_plain.payload, push_plain.priority)
    RETURNING t.id, t.queue = push_plain.queue AND t.state = 'queued' AND t.admission = 0 AND t.weight = 1
                    AND isfinite(t.run_at) AND isfinite(t.created_at) AND isfinite(t.updated_at)
                    AND num_nonnulls(t.max_attempts, t.key, t.group_key, t.backoff, t.kind, t.lease, t.timeout, t.start_by,
                                     t.headers, t.lease_until, t.claimed_at, t.cancel_requested_at, t.errors) = 0
    INTO new_id, plain;
    IF NOT plain THEN
        -- A trigger of the user has changed it, and another one may have deleted it.
        SELECT t.* INTO task FROM queue.tasks AS t WHERE t.id = new_id;
        IF FOUND THEN
            PERFORM queue_internal.check_inserted(task, false);
        END IF;
    END IF;
    RETURN new_id;
END
$$;
COMMENT ON FUNCTION queue_internal.push_plain IS
    'Pushes a task without options and returns its id; 0 if its queue has policies for pushes.';
