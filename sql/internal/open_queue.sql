-- queue_internal.open_queue(name)
--
--   The queue of that name.
--   Errors:   22004, 22023, 54000 for the argument "queue"; QX002

CREATE FUNCTION queue_internal.open_queue(name text) RETURNS queue.queues
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues;
BEGIN
    SELECT q.* INTO source FROM queue.queues AS q WHERE q.name = open_queue.name;
    IF NOT FOUND THEN
        PERFORM queue_internal.check_name('queue', name);
        PERFORM queue_internal.raise_unknown_queue(name);
    END IF;
    RETURN source;
END
$$;
COMMENT ON FUNCTION queue_internal.open_queue(text) IS 'The queue of that name; raises if there is none.';
