-- queue.publish(topic, payload, ...)
--
--   Pushes a task to every queue with a binding that matches the topic, once to each however many of
--   its bindings do, in the order of the queues' names. The other arguments are those of queue.push;
--   the headers get {"topic": ...}.
--   API:      public; needs the producer's right. Reaches the queues that the caller may push to
--   Promise:  all of them or none
--   Returns:  what the pushes return
--   Empty:    without a matching binding nothing is pushed and no rows are returned
--   Errors:   22004, 22023, 54000 for the arguments, also without a binding; and those of queue.push
--   Touches:  queue.bindings (reads), queue.tasks (inserts)

CREATE FUNCTION queue.publish(
    topic        text,
    payload      jsonb       DEFAULT '{}',
    priority     integer     DEFAULT 0,
    run_at       timestamptz DEFAULT NULL,
    delay        interval    DEFAULT NULL,
    key          text        DEFAULT NULL,
    on_duplicate text        DEFAULT 'skip',
    group_key    text        DEFAULT NULL,
    max_attempts integer     DEFAULT NULL,
    headers      jsonb       DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target text;
BEGIN
    PERFORM queue_internal.check_topic('topic', topic, false);
    PERFORM queue_internal.check_task_options(
        'default', priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers,
        after => NULL, backoff => NULL, key_ttl => NULL, on_predecessor_failure => NULL);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    headers := coalesce(headers, '{}') || jsonb_build_object('topic', topic);
    FOR target IN
        -- What stands before the first wildcard sorts most of them out. To compile a regular expression
        -- takes far longer.
        SELECT DISTINCT b.queue FROM queue.bindings AS b
        WHERE queue_internal.has_right('producer', b.queue)
          AND EXISTS (SELECT FROM queue.queues AS q WHERE q.name = b.queue)
          AND CASE WHEN starts_with(topic || '.', split_part(split_part(b.topic_pattern, '#', 1), '*', 1))
                   THEN ('.' || topic) ~ b.topic_regex END
        ORDER BY b.queue
    LOOP
        RETURN NEXT queue.push(
            queue => target, payload => payload, priority => priority, run_at => run_at, delay => delay,
            key => key, on_duplicate => on_duplicate, group_key => group_key, max_attempts => max_attempts,
            headers => headers);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.publish(
    text, jsonb, integer, timestamptz, interval, text, text, text, integer, jsonb) IS
    'Pushes a task to every queue that is bound to the topic; returns their ids.';
