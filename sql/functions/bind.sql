-- queue.bind(topic_pattern, queue)
--
--   From now on what is published under a topic that matches the pattern goes to the queue, too.
--   Binding twice changes nothing.
--   API:      public; an operator's
--   Errors:   QX002 no such queue; 54000 it has 1000 bindings already; 22004, 22023, 54000 for the arguments
--   Touches:  queue.queues (locks the queue's row against a drop), queue.bindings (inserts)

CREATE FUNCTION queue.bind(topic_pattern text, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_topic('topic_pattern', topic_pattern, true);
    PERFORM queue_internal.open_queue(queue, 'operator');
    -- A drop that is under way comes first.
    PERFORM FROM queue.queues AS q WHERE q.name = bind.queue FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_unknown_queue(queue);
    END IF;
    -- Every publish reads all bindings. (Binds at the same moment do not count each other.)
    IF (SELECT count(*) FROM queue.bindings AS b
        WHERE b.queue = bind.queue AND b.topic_pattern <> bind.topic_pattern) >= 1000 THEN
        RAISE EXCEPTION 'queue "%" has too many bindings', queue
            USING ERRCODE = 'program_limit_exceeded',
                  DETAIL = 'A queue can have 1000.',
                  HINT = 'Bind a pattern with wildcards, or take back with queue.unbind() what is not needed.';
    END IF;
    INSERT INTO queue.bindings (topic_pattern, queue, topic_regex)
    VALUES (bind.topic_pattern, bind.queue, queue_internal.topic_regex(bind.topic_pattern))
    ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION queue.bind(text, text) IS 'Lets a queue have what is published under matching topics.';
