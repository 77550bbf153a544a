-- queue_internal.push_plain(queue, payload, priority)
--
--   Adds a task without options to a queue without policies for pushes, and returns its id; otherwise null. So the trigger
--   tasks_inserted has nothing to check, which would cost as much as the INSERT.
--   Why this search_path: the trigger recognizes the INSERT by it (how_inserted.sql). The last schema adds no names that
--   are used here.

CREATE FUNCTION queue_internal.push_plain(queue text, payload jsonb, priority integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp, queue_internal AS $$
DECLARE
    id bigint;
BEGIN
    PERFORM FROM queue.queues AS q
    WHERE q.name = push_plain.queue AND q.max_queued IS NULL AND q.ttl IS NULL
      AND queue_internal.has_right('producer', q.name);
    IF FOUND THEN
        INSERT INTO queue.tasks AS t (queue, payload, priority)
        VALUES (push_plain.queue, push_plain.payload, push_plain.priority)
        RETURNING t.id INTO id;
    END IF;
    RETURN id;
END
$$;
COMMENT ON FUNCTION queue_internal.push_plain IS
    'Pushes a task without options, if its queue has no policies for pushes.';
