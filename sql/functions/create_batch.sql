-- queue.create_batch
--
--   Waits:    as queue.push
--   Touches:  queue.tasks, queue_internal.batches (inserts)

CREATE FUNCTION queue.create_batch(
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
    on_predecessor_failure text DEFAULT NULL,
    key_ttl_from text        DEFAULT NULL,
    kind         text        DEFAULT NULL,
    lease        interval    DEFAULT NULL,
    timeout      interval    DEFAULT NULL,
    start_by     timestamptz DEFAULT NULL,
    ttl          interval    DEFAULT NULL,
    weight       integer     DEFAULT 1,
    batch        bigint      DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues;
    live bigint[];
    task record;
BEGIN
    PERFORM queue_internal.check_task_options(
        queue, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after,
        backoff, key_ttl, on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight, batch);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    source := queue_internal.open_queue(queue, 'producer');
    IF after <> '{}' OR batch IS NOT NULL THEN
        live := queue_internal.lock_before_push(ARRAY[queue], ARRAY[key], on_duplicate, array_remove(after || batch, NULL));
        PERFORM queue_internal.lock_batches(ARRAY[batch]);
        PERFORM queue_internal.check_no_cycle(batch, after);
    END IF;
    SELECT p.id, p.pushed INTO task FROM queue_internal.push_linked(
        queue, payload, priority, coalesce(run_at, clock_timestamp() + coalesce(delay, '0')), key, on_duplicate,
        group_key, max_attempts, headers, after, backoff, queue_internal.stored_ttl(key_ttl, key_ttl_from),
        on_predecessor_failure, live, kind, lease, timeout, queue_internal.start_deadline(source, start_by, ttl), weight,
        is_callback => true) AS p;
    IF task.pushed THEN
        INSERT INTO queue_internal.batches (task_id, is_after) VALUES (task.id, coalesce(after <> '{}', false));
        IF batch IS NOT NULL THEN
            PERFORM queue_internal.join_batch(batch, ARRAY[task.id]);
        END IF;
    END IF;
    RETURN task.id;
END
$$;
COMMENT ON FUNCTION queue.create_batch IS
'Creates a batch and returns its id. The arguments describe its callback: a task that waits until the batch is sealed and
all tasks of the batch have ended. Its headers then have a member batch that counts them, such as {"batch":
{"completed": 98, "failed": 1, "cancelled": 1}}. The id of the batch is the id of the callback. If the key is taken,
returns the id of the task that has it, as queue.push does. Needs the producer''s right on the queue.

- queue: name of the queue of the callback. The tasks of the batch may be in any queues.
- payload, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after, backoff, key_ttl,
  on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight: as in queue.push, for the callback.
  A start deadline also ends a callback that still waits for the batch.
- batch: another batch, to which the callback is added as a task. Null means none.

Errors: as queue.push.';
