-- queue.detach
--
--   Touches:  queue.handlers (deletes)

CREATE FUNCTION queue.detach(queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_queue(queue, 'operator');
    DELETE FROM queue.handlers AS h WHERE h.queue = detach.queue;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION queue.detach IS
'Detaches the handler of a queue, and returns whether it had one. After the commit, its processes finish their current
tasks and exit. Only the owner of the extension can call it.

- queue: name of the queue.

Errors: 42501: the caller is not the owner of the extension. QX002: the queue does not exist. 22004, 22023 or 54000: the
argument is null, invalid or too large.';
