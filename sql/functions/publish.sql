-- queue.publish
--
--   Promise:  all of the tasks or none
--   Waits:    with a key, for transactions that push the same key to one of the queues or work on the task that has it;
--             at most one second for each
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
    headers      jsonb       DEFAULT NULL,
    kind         text        DEFAULT NULL,
    lease        interval    DEFAULT NULL,
    timeout      interval    DEFAULT NULL,
    start_by     timestamptz DEFAULT NULL,
    ttl          interval    DEFAULT NULL,
    weight       integer     DEFAULT 1)
RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    targets text[];
    target  text;
BEGIN
    PERFORM queue_internal.check_topic('topic', topic, false);
    PERFORM queue_internal.check_task_options(
        'default', priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers,
        after => NULL, backoff => NULL, key_ttl => NULL, on_predecessor_failure => NULL,
        kind => kind, lease => lease, timeout => timeout, start_by => start_by, ttl => ttl);
    PERFORM queue_internal.check_weight(NULL, group_key, weight);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    headers := coalesce(headers, '{}') || jsonb_build_object('topic', topic);
    targets := '{}';
    FOR target IN SELECT DISTINCT b.queue FROM queue.bindings AS b ORDER BY b.queue LOOP
        -- Patterns of queues that the caller may not push to cost the caller nothing.
        CONTINUE WHEN NOT queue_internal.has_right('producer', target)
            OR NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = target);
        -- The text before the first wildcard excludes most patterns. Compiling a regular expression takes far longer.
        CONTINUE WHEN NOT EXISTS (
            SELECT FROM queue.bindings AS b
            WHERE b.queue = target
              AND CASE WHEN starts_with(topic || '.', split_part(split_part(b.topic_pattern, '#', 1), '*', 1))
                       THEN ('.' || topic) ~ b.topic_regex END);
        targets := targets || target;
    END LOOP;
    IF key IS NOT NULL THEN
        RETURN QUERY SELECT * FROM queue_internal.publish_key(
            targets, payload, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, kind, lease,
            timeout, start_by, ttl, weight);
        RETURN;
    END IF;
    FOREACH target IN ARRAY targets LOOP
        RETURN NEXT queue.push(
            queue => target, payload => payload, priority => priority, run_at => run_at, delay => delay,
            group_key => group_key, max_attempts => max_attempts, headers => headers, kind => kind, lease => lease,
            timeout => timeout, start_by => start_by, ttl => ttl,
            weight => queue_internal.possible_weight(target, group_key, weight));
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.publish IS
'Pushes one task to each queue with a binding that matches the topic, in the order of the queues'' names, and returns
what the pushes return: all of them or none. Returns no rows if no binding matches. Reaches only queues on which the
caller has the producer''s right.

- topic: words of letters, digits, _ and -, separated by dots; at most 255 bytes. Added to the headers as "topic".
- payload, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, kind, lease, timeout,
  start_by, ttl, weight: as in queue.push, the same for each queue. In a queue whose limit is smaller than weight, the
  task uses up the whole limit.

Errors: 55P03: another transaction held the key in one of the queues for more than a second. QX004: the key is taken and
on_duplicate is error. QX006: one of the queues is full. 22004, 22023 or 54000: an argument is null, invalid or too
large.';

-- With a lock_timeout, so that a transaction that holds the key in one queue does not hold up publishers for the
-- others.
CREATE FUNCTION queue_internal.publish_key(
    targets text[], payload jsonb, priority integer, run_at timestamptz, delay interval, key text, on_duplicate text,
    group_key text, max_attempts integer, headers jsonb, kind text, lease interval, timeout interval,
    start_by timestamptz, ttl interval, weight integer)
RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    target text;
BEGIN
    PERFORM queue_internal.lock_before_push(
        targets, array_fill(key, ARRAY[cardinality(targets)]), on_duplicate, '{}');
    FOREACH target IN ARRAY targets LOOP
        RETURN NEXT queue.push(
            queue => target, payload => payload, priority => priority, run_at => run_at, delay => delay,
            key => key, on_duplicate => on_duplicate, group_key => group_key, max_attempts => max_attempts,
            headers => headers, kind => kind, lease => lease, timeout => timeout, start_by => start_by, ttl => ttl,
            weight => queue_internal.possible_weight(target, group_key, weight));
    END LOOP;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION 'another transaction holds this key%', coalesce(format(' in queue "%s"', target), '')
        USING ERRCODE = 'lock_not_available',
              DETAIL = 'It has pushed the same key or works on the task that has it, and did not end within a second.',
              HINT = 'Nothing was published. Try again when that transaction has ended.';
END
$$;
COMMENT ON FUNCTION queue_internal.publish_key IS
    'Pushes a task with a key to each of the queues; raises if it would have to wait for more than a second.';
