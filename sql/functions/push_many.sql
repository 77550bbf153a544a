-- queue.push_many(queue, payloads, ...)
--
--   Puts one task for each payload into a queue and returns their ids in the order of the payloads.
--   API:      public; needs the producer's right on the queue
--   Promise:  all of them or none
--   Empty:    an empty array pushes nothing and returns no rows
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (inserts)

CREATE FUNCTION queue.push_many(
    queue        text,
    payloads     jsonb[],
    priority     integer     DEFAULT 0,
    run_at       timestamptz DEFAULT NULL,
    delay        interval    DEFAULT NULL,
    key          text        DEFAULT NULL,
    on_duplicate text        DEFAULT 'skip',
    group_key    text        DEFAULT NULL,
    max_attempts integer     DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    after        bigint[]    DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_task_options(
        queue, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after);
    PERFORM queue_internal.check_array('payloads', payloads);
    IF payloads = '{}' THEN
        PERFORM queue_internal.open_queue(queue);
    END IF;
    -- All at one time: among equals the id decides, which follows the order of the array.
    run_at := coalesce(run_at, clock_timestamp() + coalesce(delay, '0'));
    RETURN QUERY
    INSERT INTO queue.tasks AS t (queue, payload, priority, run_at, max_attempts, headers)
    SELECT push_many.queue, p.payload, push_many.priority, push_many.run_at,
           push_many.max_attempts, push_many.headers
    FROM unnest(payloads) WITH ORDINALITY AS p (payload, position)
    ORDER BY p.position
    RETURNING t.id;
END
$$;
COMMENT ON FUNCTION queue.push_many(
    text, jsonb[], integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[]) IS
    'Puts a task for each payload into a queue and returns their ids in that order.';
