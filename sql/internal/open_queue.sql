-- queue_internal.open_queue(name, kind)
--
--   The queue of that name, for a caller that has this kind of right for it.
--   Errors:   22004, 22023, 54000 for the argument "queue"; 42501 without the right, whether or not there is such a
--             queue; QX002

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
    'The queue of that name; raises if the caller does not have this kind of right, or if there is none.';
