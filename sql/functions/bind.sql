-- queue.bind
--
--   Touches:  queue.queues (locks the row, so that a concurrent drop comes before or after), queue.bindings (inserts)

CREATE FUNCTION queue.bind(topic_pattern text, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_topic('topic_pattern', topic_pattern, true);
    PERFORM queue_internal.open_queue(queue, 'operator');
    PERFORM queue_internal.hold_queue(queue);
    -- Every publish reads all bindings. (Binds at the same moment do not count each other.)
    IF (SELECT count(*) FROM queue.bindings AS b
        WHERE b.queue = bind.queue AND b.topic_pattern <> bind.topic_pattern) >= 1000 THEN
        RAISE EXCEPTION 'queue "%" has too many bindings', queue
            USING ERRCODE = 'program_limit_exceeded',
                  DETAIL = 'A queue can have 1000.',
                  HINT = 'Bind a pattern with wildcards, or delete bindings that are not needed with queue.unbind().';
    END IF;
    INSERT INTO queue.bindings (topic_pattern, queue, topic_regex)
    VALUES (bind.topic_pattern, bind.queue, queue_internal.topic_regex(bind.topic_pattern))
    ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION queue.bind IS
'Binds a queue to a topic: from now on queue.publish pushes to the queue what is published under a matching topic.
Binding twice changes nothing. Needs the operator''s right on the queue.

- topic_pattern: words of letters, digits, _ and -, separated by dots; at most 255 bytes. The word * matches one word,
  the word # any number of words, also none.
- queue: name of the queue.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 54000: it has 1000 bindings already. 22004,
22023 or 54000: an argument is null, invalid or too large.';
