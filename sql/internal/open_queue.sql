-- queue_internal.open_queue(name, kind)
--
--   Returns the row of a queue, for a caller that has this kind of right on it.
--   Errors:   22004, 22023, 54000 for the argument "queue"; 42501 without the right, whether or not the queue exists;
--             QX002

CREATE FUNCTION queue_internal.open_queue(name text, kind text) RETURNS queue.queues
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues;
BEGIN
    SELECT q.* INTO source FROM queue.queues AS q WHERE q.name = open_queue.name;
    IF source.name IS NULL THEN
        PERFORM queue_internal.check_name('queue', name);
    END IF;
    IF NOT queue_internal.has_right(kind, name) THEN
        PERFORM queue_internal.raise_denied(kind, name);
    ELSIF source.name IS NULL THEN
        PERFORM queue_internal.raise_unknown_queue(name);
    END IF;
    RETURN source;
END
$$;
COMMENT ON FUNCTION queue_internal.open_queue IS
    'Returns the row of a queue; raises if the caller has no such right or the queue does not exist.';

-- Has a concurrent drop of the queue come before or after what the caller does with it. Tries again, because a transaction
-- that was waited for may have dropped the queue and created it.
CREATE FUNCTION queue_internal.hold_queue(queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOOP
        PERFORM FROM queue.queues AS q WHERE q.name = hold_queue.queue FOR KEY SHARE;
        EXIT WHEN FOUND;
        IF NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = hold_queue.queue) THEN
            PERFORM queue_internal.raise_unknown_queue(queue);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.hold_queue IS
    'Keeps a queue from being dropped until the transaction ends; raises QX002.';
