-- queue.try_push
--
--   Promise:  as queue.push. "pushed" is exact also while other transactions push the same key
--   Waits:    as queue.push
--   Touches:  as queue.push

CREATE FUNCTION queue.try_push(
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
RETURNS TABLE (id bigint, pushed boolean)
LANGUAGE plpgsql ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues;
BEGIN
    IF key IS NULL THEN
        id := queue.push(
            queue, payload, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after, backoff,
            key_ttl, on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight, batch);
        pushed := id IS NOT NULL;
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM queue_internal.check_task_options(
        queue, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after,
        backoff, key_ttl, on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight, batch);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    source := queue_internal.open_queue(queue, 'producer');
    start_by := queue_internal.start_deadline(source, start_by, ttl);
    RETURN QUERY SELECT p.id, p.pushed FROM queue_internal.push_one(
        queue, payload, priority, coalesce(run_at, clock_timestamp() + coalesce(delay, '0')), key, on_duplicate,
        group_key, max_attempts, headers, after, backoff, queue_internal.stored_ttl(key_ttl, key_ttl_from),
        on_predecessor_failure, batch, kind, lease, timeout, start_by, weight) AS p;
END
$$;
COMMENT ON FUNCTION queue.try_push IS
'Does what queue.push does, and also reports whether it added a task. Returns one row: the id, and pushed, which is
false if another task has the key and no task was added. Needs the producer''s right on the queue.

- queue, payload, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after, backoff, key_ttl,
  on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight, batch: as in queue.push.

Errors: as queue.push.';
