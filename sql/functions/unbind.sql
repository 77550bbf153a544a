-- queue.unbind(topic_pattern, queue)
--
--   Takes back what queue.bind() said. The binding is found by its pattern as it was written.
--   API:      public; an operator's
--   Returns:  whether there was such a binding
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments
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
COMMENT ON FUNCTION queue.unbind(text, text) IS 'Takes a binding back; returns whether there was one.';
