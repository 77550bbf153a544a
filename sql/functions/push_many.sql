-- queue.push_many
--
--   Promise:  all of the tasks or none. Without keys and predecessors, one INSERT for all of them, also into a batch
--   Waits:    as push does. Before it takes the first key it locks all tasks that it will wait for or change, in the
--             order of their ids; it takes the keys in their order. So two calls cannot deadlock, unless a key belongs to a
--             task that has expired
--   Touches:  queue.tasks (inserts, or updates the tasks with the keys)

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
    after        bigint[]    DEFAULT NULL,
    backoff      jsonb       DEFAULT NULL,
    key_ttl      interval    DEFAULT NULL,
    on_predecessor_failure text DEFAULT NULL,
    keys         text[]      DEFAULT NULL,
    group_keys   text[]      DEFAULT NULL,
    key_ttl_from text        DEFAULT NULL,
    kind         text        DEFAULT NULL,
    lease        interval    DEFAULT NULL,
    timeout      interval    DEFAULT NULL,
    start_by     timestamptz DEFAULT NULL,
    ttl          interval    DEFAULT NULL,
    weight       integer     DEFAULT 1,
    batch        bigint      DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source  queue.queues;
    ids     bigint[];
    added   bigint[];
    live    bigint[];
    one     record;
    pushed  record;
BEGIN
    PERFORM queue_internal.check_task_options(
        queue, priority, run_at, delay, coalesce(key, CASE WHEN keys IS NOT NULL THEN 'one of keys' END),
        on_duplicate, coalesce(group_key, CASE WHEN group_keys IS NOT NULL THEN 'one of group_keys' END), max_attempts,
        headers, after, backoff, key_ttl, on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight,
        batch);
    PERFORM queue_internal.check_array('payloads', payloads);
    PERFORM queue_internal.check_each_key('key', keys, key, cardinality(payloads));
    PERFORM queue_internal.check_each_key('group_key', group_keys, group_key, cardinality(payloads));
    source := queue_internal.open_queue(queue, 'producer');
    -- One time for all: among equals the id decides, which follows the order of the array.
    run_at := coalesce(run_at, clock_timestamp() + coalesce(delay, '0'));
    start_by := queue_internal.start_deadline(source, start_by, ttl);
    IF source.max_queued IS NOT NULL AND key IS NULL AND keys IS NULL AND after IS NULL THEN
        PERFORM queue_internal.check_depth(source, cardinality(payloads));
    END IF;
    IF batch IS NOT NULL AND key IS NULL AND keys IS NULL AND after IS NULL THEN
        PERFORM queue_internal.lock_batches(ARRAY[batch]);
        PERFORM queue_internal.check_callback_group(batch, queue, group_keys || group_key);
        RETURN QUERY
        WITH new AS (
            INSERT INTO queue.tasks AS t (
                queue, payload, priority, run_at, max_attempts, headers, group_key, backoff, kind, lease, timeout,
                start_by, weight)
            SELECT push_many.queue, p.payload, push_many.priority, push_many.run_at, push_many.max_attempts,
                   push_many.headers, coalesce(p.group_key, push_many.group_key), push_many.backoff,
                   push_many.kind, push_many.lease, push_many.timeout, push_many.start_by, push_many.weight
            FROM ROWS FROM (unnest(payloads), unnest(group_keys)) WITH ORDINALITY AS p (payload, group_key, position)
            ORDER BY p.position
            RETURNING t.id
        ), joined AS (
            INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
            SELECT n.id, push_many.batch, 'batch' FROM new AS n
        )
        SELECT n.id FROM new AS n;
        RETURN;
    ELSIF key IS NULL AND keys IS NULL AND after IS NULL THEN
        RETURN QUERY
        INSERT INTO queue.tasks AS t (
            queue, payload, priority, run_at, max_attempts, headers, group_key, backoff, kind, lease, timeout, start_by, weight)
        SELECT push_many.queue, p.payload, push_many.priority, push_many.run_at, push_many.max_attempts,
               push_many.headers, coalesce(p.group_key, push_many.group_key), push_many.backoff,
               push_many.kind, push_many.lease, push_many.timeout, push_many.start_by, push_many.weight
        FROM ROWS FROM (unnest(payloads), unnest(group_keys)) WITH ORDINALITY AS p (payload, group_key, position)
        ORDER BY p.position
        RETURNING t.id;
        RETURN;
    END IF;
    keys := coalesce(keys, array_fill(key, ARRAY[cardinality(payloads)]));
    live := queue_internal.lock_before_push(
        array_fill(queue, ARRAY[cardinality(keys)]), keys, on_duplicate, coalesce(after, '{}') || array_remove(ARRAY[batch], NULL));
    IF batch IS NOT NULL THEN
        PERFORM queue_internal.lock_batches(ARRAY[batch]);
        PERFORM queue_internal.check_no_cycle(batch, after);
    END IF;
    -- Made in one piece: the tasks are not pushed in their order.
    ids := array_fill(NULL::bigint, ARRAY[cardinality(payloads)]);
    FOR one IN
        SELECT p.payload, p.key, coalesce(p.group_key, push_many.group_key) AS group_key, p.position
        FROM ROWS FROM (unnest(payloads), unnest(keys), unnest(group_keys))
             WITH ORDINALITY AS p (payload, key, group_key, position)
        ORDER BY p.key COLLATE "C", p.position
    LOOP
        SELECT p.id, p.pushed INTO pushed FROM queue_internal.push_linked(
            queue, one.payload, priority, run_at, one.key, on_duplicate, one.group_key, max_attempts, headers,
            after, backoff, queue_internal.stored_ttl(key_ttl, key_ttl_from), on_predecessor_failure, live, kind,
            lease, timeout, start_by, weight) AS p;
        ids[one.position] := pushed.id;
        IF pushed.pushed THEN
            added := added || pushed.id;
        END IF;
    END LOOP;
    IF batch IS NOT NULL THEN
        PERFORM queue_internal.join_batch(batch, added);
    END IF;
    RETURN QUERY SELECT i.id FROM unnest(ids) WITH ORDINALITY AS i (id, position) ORDER BY i.position;
END
$$;
COMMENT ON FUNCTION queue.push_many IS
'Adds one task for each payload and returns the ids in the order of the payloads: all of them or none. Where a key is
taken, the row has the id of the task that has it. An empty array adds nothing and returns no rows. Needs the
producer''s right on the queue.

- queue: name of the queue.
- payloads: one JSON value for each task, at most 100000, none of them null.
- priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after, backoff, key_ttl,
  on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight, batch: as in queue.push, the same
  for all tasks.
- keys: a key for each payload; an element may be null. Cannot be combined with key. Null means no keys.
- group_keys: a group key for each payload; an element may be null. Cannot be combined with group_key. Null means no
  group keys.

Errors: as queue.push.';

CREATE FUNCTION queue_internal.check_each_key(argument text, elements text[], one text, expected integer)
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    element text;
BEGIN
    IF elements IS NULL THEN
        RETURN;
    ELSIF one IS NOT NULL THEN
        PERFORM queue_internal.raise_invalid(argument || 's', format('cannot be combined with "%s"', argument));
    ELSIF array_ndims(elements) > 1 OR cardinality(elements) <> expected THEN
        PERFORM queue_internal.raise_invalid(
            argument || 's', format('must have as many elements as "payloads", which has %s', expected),
            format('an array of %s', cardinality(elements)));
    END IF;
    FOREACH element IN ARRAY elements LOOP
        PERFORM queue_internal.check_key(argument || 's', element);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.check_each_key IS 'Checks an array of keys that goes with the array "payloads".';
