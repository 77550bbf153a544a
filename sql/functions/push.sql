-- queue.push(queue, payload, priority, run_at, delay, ..., max_attempts, headers, ...)
--
--   Puts a task into a queue and returns its id.
--   API:      public; needs the producer's right on the queue
--   Promise:  durable when the transaction commits; never there if it rolls back
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (inserts); the trigger tasks_inserted announces the task

CREATE FUNCTION queue.push(
    queue        text,
    payload      jsonb       DEFAULT '{}',
    priority     integer     DEFAULT 0,
    run_at       timestamptz DEFAULT NULL,
    delay        interval    DEFAULT NULL,
    key          text        DEFAULT NULL,
    on_duplicate text        DEFAULT 'skip',
    group_key    text        DEFAULT NULL,
    max_attempts integer     DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    after        bigint[]    DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id bigint;
BEGIN
    PERFORM queue_internal.check_task_options(
        queue, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    INSERT INTO queue.tasks AS t (queue, payload, priority, run_at, max_attempts, headers)
    VALUES (push.queue, push.payload, push.priority,
            coalesce(push.run_at, clock_timestamp() + coalesce(push.delay, '0')),
            push.max_attempts, push.headers)
    RETURNING t.id INTO id;
    RETURN id;
END
$$;
COMMENT ON FUNCTION queue.push(
    text, jsonb, integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[]) IS
    'Puts a task into a queue and returns its id.';
