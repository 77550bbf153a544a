-- queue.push_tasks
--
--   Promise:  all of the tasks or none
--   Waits:    as push_many: it locks all tasks that it will wait for or change before it takes the first key, and takes
--             the keys in the order of queue and key
--   Touches:  queue.tasks (inserts, or updates the tasks with the keys)

CREATE FUNCTION queue.push_tasks(tasks jsonb) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- One time for all: among equals the id decides.
    moment CONSTANT timestamptz := clock_timestamp();
    queues text[];
    keys   text[];
    after  bigint[] := '{}';
    live   bigint[];
    ids    bigint[];
    one    record;
    other  bigint;
BEGIN
    PERFORM queue_internal.check_tasks(tasks);
    FOR one IN SELECT t.* FROM queue_internal.given_tasks(tasks) AS t ORDER BY t.nth LOOP
        PERFORM queue_internal.check_task_options(
            one.queue, one.priority, one.run_at, one.delay, one.key, one.on_duplicate, one.group_key, one.max_attempts,
            one.headers, one.after, one.backoff, one.key_ttl, one.on_predecessor_failure, one.key_ttl_from);
        PERFORM queue_internal.check_right('producer', one.queue);
        queues := queues || one.queue;
        keys := keys || CASE WHEN one.on_duplicate IN ('replace', 'reschedule') THEN one.key END;
        FOREACH other IN ARRAY coalesce(one.after, '{}') LOOP
            after := after || other;
        END LOOP;
    END LOOP;
    live := queue_internal.lock_before_push(
        queues, keys, CASE WHEN cardinality(array_remove(keys, NULL)) > 0 THEN 'replace' ELSE 'skip' END, after);
    FOR one IN
        SELECT t.* FROM queue_internal.given_tasks(tasks) AS t ORDER BY t.queue COLLATE "C", t.key COLLATE "C", t.nth
    LOOP
        one.run_at := coalesce(one.run_at, moment + coalesce(one.delay, '0'));
        IF one.key IS NULL AND one.after IS NULL THEN
            ids[one.nth] := queue.push(
                queue => one.queue, payload => one.payload, priority => one.priority, run_at => one.run_at,
                group_key => one.group_key, max_attempts => one.max_attempts, headers => one.headers,
                backoff => one.backoff);
        ELSE
            ids[one.nth] := (queue_internal.push_linked(
                one.queue, one.payload, one.priority, one.run_at, one.key, one.on_duplicate, one.group_key,
                one.max_attempts, one.headers, one.after, one.backoff,
                queue_internal.stored_ttl(one.key_ttl, one.key_ttl_from), one.on_predecessor_failure, live)).id;
        END IF;
    END LOOP;
    RETURN QUERY SELECT i.id FROM unnest(ids) WITH ORDINALITY AS i (id, nth) ORDER BY i.nth;
END
$$;
COMMENT ON FUNCTION queue.push_tasks IS
'Adds many different tasks, each to a queue and with options of its own, and returns the ids in the order of the array: all
of them or none. Where a key is taken, the row has the id of the task that has it. An empty array adds nothing and returns
no rows. Needs the producer''s right on each of the queues.

- tasks: a JSON array of at most 100000 objects, such as [{"queue": "mail", "payload": {"to": "ada"}, "delay": "1 hour"}].
  Their members have the names, meanings and defaults of the parameters of queue.push. Only queue is required. Times and
  intervals are strings, and after is an array. Null means the default, except that a payload of null is stored.

Errors: as queue.push. 22023: a member is unknown or has the wrong type.';

CREATE FUNCTION queue_internal.check_tasks(tasks jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    members CONSTANT text[] :=
        '{queue, payload, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after, backoff,
          key_ttl, on_predecessor_failure, key_ttl_from}';
    odd     text;
BEGIN
    IF tasks IS NULL THEN
        PERFORM queue_internal.raise_null('tasks');
    ELSIF jsonb_typeof(tasks) <> 'array' THEN
        PERFORM queue_internal.raise_invalid('tasks', 'must be a JSON array', 'of type ' || jsonb_typeof(tasks));
    ELSIF jsonb_array_length(tasks) > 100000 THEN
        PERFORM queue_internal.raise_too_large('tasks', '100000 elements', jsonb_array_length(tasks) || ' elements');
    END IF;
    SELECT jsonb_typeof(e.value) INTO odd FROM jsonb_array_elements(tasks) AS e (value)
    WHERE jsonb_typeof(e.value) <> 'object' LIMIT 1;
    IF FOUND THEN
        PERFORM queue_internal.raise_invalid('tasks', 'must be an array of JSON objects', 'an array with an element of type ' || odd);
    END IF;
    SELECT m.name INTO odd FROM jsonb_array_elements(tasks) AS e (value), jsonb_object_keys(e.value) AS m (name)
    WHERE m.name <> ALL (members) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'argument "tasks" has no member "%"', left(odd, 64)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('The members are %s.', array_to_string(members, ', '));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_tasks IS 'Checks the shape of the argument of queue.push_tasks.';

CREATE FUNCTION queue_internal.given_tasks(tasks jsonb)
RETURNS TABLE (
    nth bigint, queue text, payload jsonb, priority integer, run_at timestamptz, delay interval, key text,
    on_duplicate text, group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb,
    key_ttl interval, on_predecessor_failure text, key_ttl_from text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- jsonb_to_record would make a payload of null into no payload.
    RETURN QUERY
    SELECT e.nth, t.queue, coalesce(e.value -> 'payload', '{}'), coalesce(t.priority, 0), t.run_at, t.delay, t.key,
           coalesce(t.on_duplicate, 'skip'), t.group_key, t.max_attempts, t.headers, t.after, t.backoff, t.key_ttl,
           t.on_predecessor_failure, t.key_ttl_from
    FROM jsonb_array_elements(tasks) WITH ORDINALITY AS e (value, nth),
         LATERAL jsonb_to_record(e.value) AS t (
             queue text, priority integer, run_at timestamptz, delay interval, key text, on_duplicate text,
             group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb, key_ttl interval,
             on_predecessor_failure text, key_ttl_from text);
EXCEPTION WHEN data_exception THEN
    RAISE EXCEPTION 'argument "tasks" has a member of the wrong type'
        USING ERRCODE = 'invalid_parameter_value', DETAIL = upper(left(SQLERRM, 1)) || substr(SQLERRM, 2) || '.';
END
$$;
COMMENT ON FUNCTION queue_internal.given_tasks IS 'Returns the tasks that were passed to queue.push_tasks, one a row.';
