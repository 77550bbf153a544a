-- queue.unbind
--
--   Touches:  queue.bindings (deletes)

CREATE FUNCTION queue.unbind(topic_pattern text, queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_topic('topic_pattern', topic_pattern, true);
    PERFORM queue_internal.open_queue(queue, 'operator');
    DELETE FROM queue.bindings AS b
    WHERE b.topic_pattern = unbind.topic_pattern AND b.queue = unbind.queue;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION queue.unbind IS
'Deletes a binding, and returns whether it existed. Needs the operator''s right on the queue.

- topic_pattern: the pattern, exactly as it was passed to queue.bind.
- queue: name of the queue.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: an argument is null,
invalid or too large.';
