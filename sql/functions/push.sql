-- queue.push(queue, payload, priority, run_at, delay, key, on_duplicate, group_key, ...)
--
--   Puts a task into a queue and returns its id; or that of the task which has its key. With "replace", what is
--   pushed while that task runs comes after it.
--   API:      public; needs the producer's right on the queue
--   Promise:  durable when the transaction commits; never there if it rolls back
--   Waits:    for another transaction that is just pushing the same key, and for one that is ending a predecessor;
--             with "replace" and "reschedule" also for one that is working on the task to be changed
--   Errors:   QX002 no such queue; QX003 no such task in "after"; QX004 the key is taken and
--             "on_duplicate" is error; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (inserts, or updates the task with the key); the triggers task_arrives and
--             tasks_inserted take the key and announce the task

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
    after        bigint[]    DEFAULT NULL,
    backoff      jsonb       DEFAULT NULL,
    key_ttl      interval    DEFAULT NULL,
    on_predecessor_failure text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id bigint;
BEGIN
    PERFORM queue_internal.check_task_options(
        queue, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after,
        backoff, key_ttl, on_predecessor_failure);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    PERFORM queue_internal.check_right('producer', queue);
    run_at := coalesce(run_at, clock_timestamp() + coalesce(delay, '0'));
    IF key IS NULL AND after IS NULL THEN
        INSERT INTO queue.tasks AS t (queue, payload, priority, run_at, max_attempts, headers, group_key, backoff)
        VALUES (push.queue, push.payload, push.priority, push.run_at, push.max_attempts, push.headers,
                push.group_key, push.backoff)
        RETURNING t.id INTO id;
        RETURN id;
    END IF;
    RETURN queue_internal.push_linked(
        queue, payload, priority, run_at, key, on_duplicate, group_key, max_attempts, headers, after, backoff,
        key_ttl, on_predecessor_failure,
        CASE WHEN after <> '{}' THEN
            queue_internal.lock_before_push(ARRAY[queue], ARRAY[key], on_duplicate, after) END);
END
$$;
COMMENT ON FUNCTION queue.push(
    text, jsonb, integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[], jsonb,
    interval, text) IS
    'Puts a task into a queue and returns its id, or that of the live task with the same key.';

-- A push that has to look at other tasks: at the one with its key, at those that come before it. Of these, "live" are
-- locked already.
CREATE FUNCTION queue_internal.push_linked(
    queue text, payload jsonb, priority integer, run_at timestamptz, key text, on_duplicate text,
    group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb, key_ttl interval,
    on_predecessor_failure text, live bigint[])
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    source  CONSTANT queue.queues := queue_internal.open_queue(queue, 'producer');
    waits   CONSTANT boolean := after <> '{}';
    pushed  queue.tasks;
    id      bigint;
    running bigint;
BEGIN
    pushed.queue := queue;
    pushed.key := key;
    pushed.payload := payload;
    pushed.priority := priority;
    pushed.run_at := run_at;
    pushed.headers := headers;
    LOOP
        INSERT INTO queue.tasks AS t (
            queue, payload, priority, run_at, max_attempts, headers, key, group_key, backoff, state)
        VALUES (push_linked.queue, push_linked.payload, push_linked.priority, push_linked.run_at,
                push_linked.max_attempts, push_linked.headers, push_linked.key, push_linked.group_key,
                push_linked.backoff, CASE WHEN waits OR running IS NOT NULL THEN 'waiting' ELSE 'queued' END)
        RETURNING t.id INTO id;
        IF FOUND THEN
            IF key_ttl IS NOT NULL THEN
                UPDATE queue_internal.keys AS k SET ttl = key_ttl
                WHERE k.queue = push_linked.queue AND k.key = push_linked.key AND k.task_id = id;
            END IF;
            -- The task that it replaces is waited for, however that ends, also if it is named in "after".
            after := array_remove(after, running);
            IF after <> '{}' THEN
                PERFORM queue_internal.add_dependencies(
                    id, queue, after, coalesce(on_predecessor_failure, source.on_predecessor_failure), live);
            END IF;
            IF running IS NOT NULL THEN
                PERFORM queue_internal.add_dependencies(id, queue, ARRAY[running], 'continue', ARRAY[running]);
            END IF;
            RETURN id;
        END IF;
        -- No id if the key came free since, or is to be had.
        SELECT s.id, s.running INTO id, running FROM queue_internal.settle_duplicate(pushed, on_duplicate) AS s;
        IF id IS NOT NULL THEN
            RETURN id;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.push_linked(
    text, jsonb, integer, timestamptz, text, text, text, integer, jsonb, bigint[], jsonb, interval, text, bigint[]) IS
    'Pushes a task that has a key, or that waits for others.';
