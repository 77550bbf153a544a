-- queue.push_tasks
--
--   Promise:  all of the tasks or none
--   Waits:    as push_many: it locks all tasks that it will wait for or change before it takes the first key, and takes
--             the keys in the order of queue and key
--   Touches:  queue.tasks (inserts, or updates the tasks with the keys)

CREATE FUNCTION queue.push_tasks(tasks jsonb) RETURNS SETOF bigint
-- So much memory is not needed, but allowed: with less, millions of predecessors are not found in a hash table.
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET work_mem = '256MB' AS $$
DECLARE
    -- One time for all: among equals the id decides.
    moment CONSTANT timestamptz := clock_timestamp();
    queues text[];
    keys   text[];
    after  bigint[] := '{}';
    batches bigint[] := '{}';
    pushed record;
    live   bigint[];
    ids    bigint[];
    one    record;
    other  bigint;
BEGIN
    PERFORM queue_internal.check_tasks(tasks);
    FOR one IN SELECT t.* FROM queue_internal.given_tasks(tasks) AS t ORDER BY t.nth LOOP
        PERFORM queue_internal.check_task_options(
            one.queue, one.priority, one.run_at, one.delay, one.key, one.on_duplicate, one.group_key, one.max_attempts,
            one.headers, one.after, one.backoff, one.key_ttl, one.on_predecessor_failure, one.key_ttl_from,
            one.kind, one.lease, one.timeout, one.start_by, one.ttl, one.weight, one.batch);
        PERFORM queue_internal.check_right('producer', one.queue);
        queues := queues || one.queue;
        keys := keys || CASE WHEN one.on_duplicate IN ('replace', 'reschedule') THEN one.key END;
        FOREACH other IN ARRAY coalesce(one.after, '{}') LOOP
            after := after || other;
        END LOOP;
        batches := batches || one.batch;
    END LOOP;
    live := queue_internal.lock_before_push(
        queues, keys, CASE WHEN cardinality(array_remove(keys, NULL)) > 0 THEN 'replace' ELSE 'skip' END,
        after || array_remove(batches, NULL));
    PERFORM queue_internal.lock_batches(batches);
    -- Made in one piece: the tasks are not pushed in their order.
    ids := array_fill(NULL::bigint, ARRAY[jsonb_array_length(tasks)]);
    FOR one IN
        -- IS TRUE keeps the planner from joining: a hash table for all tasks tells which predecessors are live.
        SELECT t.*, ARRAY(SELECT a.id FROM unnest(t.after) AS a (id) WHERE (a.id IN (SELECT unnest(live))) IS TRUE) AS locked
        FROM queue_internal.given_tasks(tasks) AS t ORDER BY t.queue COLLATE "C", t.key COLLATE "C", t.nth
    LOOP
        one.run_at := coalesce(one.run_at, moment + coalesce(one.delay, '0'));
        IF one.key IS NULL AND one.after IS NULL AND one.batch IS NULL THEN
            ids[one.nth] := queue.push(
                queue => one.queue, payload => one.payload, priority => one.priority, run_at => one.run_at,
                group_key => one.group_key, max_attempts => one.max_attempts, headers => one.headers,
                backoff => one.backoff, kind => one.kind, lease => one.lease, timeout => one.timeout,
                start_by => one.start_by, ttl => one.ttl, weight => one.weight);
        ELSE
            IF one.batch IS NOT NULL THEN
                PERFORM queue_internal.check_no_cycle(one.batch, one.after);
            END IF;
            SELECT p.id, p.pushed INTO pushed FROM queue_internal.push_linked(
                one.queue, one.payload, one.priority, one.run_at, one.key, one.on_duplicate, one.group_key,
                one.max_attempts, one.headers, one.after, one.backoff,
                queue_internal.stored_ttl(one.key_ttl, one.key_ttl_from), one.on_predecessor_failure,
                one.locked, one.kind, one.lease, one.timeout,
                queue_internal.start_deadline(queue_internal.open_queue(one.queue, 'producer'), one.start_by, one.ttl),
                one.weight) AS p;
            ids[one.nth] := pushed.id;
            IF pushed.pushed AND one.batch IS NOT NULL THEN
                PERFORM queue_internal.join_batch(one.batch, ARRAY[pushed.id]);
            END IF;
        END IF;
    END LOOP;
    RETURN QUERY SELECT i.id FROM unnest(ids) WITH ORDINALITY AS i (id, nth) ORDER BY i.nth;
END
$$;
COMMENT ON FUNCTION queue.push_tasks IS
'Adds many different tasks, each to a queue and with options of its own, and returns the ids in the order of the array:
all of them or none. Where a key is taken, the row has the id of the task that has it. An empty array adds nothing and
returns no rows. Needs the producer''s right on each of the queues.

- tasks: a JSON array of at most 100000 objects, such as [{"queue": "mail", "payload": {"to": "ada"}, "delay": "1
  hour"}]. Their members have the names, meanings and defaults of the parameters of queue.push. Only queue is required.
  Times and intervals are strings, and after is an array. Null means the default, except that a payload of null is
  stored.

Errors: as queue.push. 22023: a member is unknown or has the wrong type; the message has its name and the position of the
element, from 1.';

CREATE FUNCTION queue_internal.check_tasks(tasks jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    types CONSTANT jsonb := queue_internal.task_members();
    odd   record;
BEGIN
    IF tasks IS NULL THEN
        PERFORM queue_internal.raise_null('tasks');
    ELSIF jsonb_typeof(tasks) <> 'array' THEN
        PERFORM queue_internal.raise_invalid('tasks', 'must be a JSON array', 'of type ' || jsonb_typeof(tasks));
    ELSIF jsonb_array_length(tasks) > 100000 THEN
        PERFORM queue_internal.raise_too_large('tasks', '100000 elements', jsonb_array_length(tasks) || ' elements');
    END IF;
    SELECT e.nth, jsonb_typeof(e.value) AS type INTO odd FROM jsonb_array_elements(tasks) WITH ORDINALITY AS e (value, nth)
    WHERE jsonb_typeof(e.value) <> 'object' ORDER BY e.nth LIMIT 1;
    IF FOUND THEN
        PERFORM queue_internal.raise_invalid(
            'tasks', 'must be an array of JSON objects', format('an array whose element %s is of type %s', odd.nth, odd.type));
    END IF;
    -- Numbers that are no integers, and strings that are no times or intervals, are left to the conversion.
    SELECT e.nth, m.name, v.type INTO odd
    FROM jsonb_array_elements(tasks) WITH ORDINALITY AS e (value, nth), jsonb_object_keys(e.value) AS m (name),
         LATERAL (SELECT e.value -> m.name, types ->> m.name) AS v (value, type)
    WHERE CASE jsonb_typeof(v.value)
              WHEN 'null' THEN v.type IS NULL
              WHEN 'string' THEN coalesce(v.type NOT IN ('a string', 'a time', 'an interval', 'a value'), true)
              WHEN 'number' THEN coalesce(v.type NOT IN ('an integer', 'a value'), true)
              WHEN 'boolean' THEN coalesce(v.type <> 'a value', true)
              WHEN 'object' THEN coalesce(v.type NOT IN ('an object', 'a value'), true)
              WHEN 'array' THEN CASE WHEN v.type = 'an array of integers' THEN EXISTS (
                  SELECT FROM jsonb_array_elements(v.value) AS i (value) WHERE jsonb_typeof(i.value) NOT IN ('number', 'null'))
                  ELSE coalesce(v.type <> 'a value', true) END
          END
    ORDER BY e.nth, m.name LIMIT 1;
    IF odd.type IS NOT NULL THEN
        PERFORM queue_internal.raise_wrong_member(odd.nth, odd.name, odd.type);
    ELSIF FOUND THEN
        -- A long name may be part of a payload.
        RAISE EXCEPTION 'element % of argument "tasks" has an unknown member%', odd.nth,
                        CASE WHEN octet_length(odd.name) <= 64 THEN format(' "%s"', odd.name) ELSE '' END
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('The members are %s.', (SELECT string_agg(k.name, ', ' ORDER BY k.name) FROM jsonb_object_keys(types) AS k (name)));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_tasks IS 'Checks the shape of the argument of queue.push_tasks.';

CREATE FUNCTION queue_internal.task_members() RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN '{"queue": "a string", "payload": "a value", "priority": "an integer", "run_at": "a time", "delay": "an interval",
             "key": "a string", "on_duplicate": "a string", "group_key": "a string", "max_attempts": "an integer",
             "headers": "an object", "after": "an array of integers", "backoff": "an object", "key_ttl": "an interval",
             "on_predecessor_failure": "a string", "key_ttl_from": "a string", "kind": "a string", "lease": "an interval",
             "timeout": "an interval", "start_by": "a time", "ttl": "an interval",
             "weight": "an integer", "batch": "an integer"}';
END
$$;
COMMENT ON FUNCTION queue_internal.task_members IS 'Returns the members of a task for queue.push_tasks, with their types.';

CREATE FUNCTION queue_internal.raise_wrong_member(nth bigint, name text, type text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'member "%" of element % of argument "tasks" must be %', name, nth, type
        USING ERRCODE = 'invalid_parameter_value';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_wrong_member IS 'Raises 22023, without the value, which may be part of a payload.';

CREATE FUNCTION queue_internal.given_tasks(tasks jsonb)
RETURNS TABLE (
    nth bigint, queue text, payload jsonb, priority integer, run_at timestamptz, delay interval, key text,
    on_duplicate text, group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb,
    key_ttl interval, on_predecessor_failure text, key_ttl_from text, kind text, lease interval, timeout interval,
    start_by timestamptz, ttl interval, weight integer, batch bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- jsonb_to_record would make a payload of null into no payload.
    RETURN QUERY
    SELECT e.nth, t.queue, coalesce(e.value -> 'payload', '{}'), coalesce(t.priority, 0), t.run_at, t.delay, t.key,
           coalesce(t.on_duplicate, 'skip'), t.group_key, t.max_attempts, t.headers, t.after, t.backoff, t.key_ttl,
           t.on_predecessor_failure, t.key_ttl_from, t.kind, t.lease, t.timeout, t.start_by, t.ttl,
           coalesce(t.weight, 1), t.batch
    FROM jsonb_array_elements(tasks) WITH ORDINALITY AS e (value, nth),
         LATERAL jsonb_to_record(e.value) AS t (
             queue text, priority integer, run_at timestamptz, delay interval, key text, on_duplicate text,
             group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb, key_ttl interval,
             on_predecessor_failure text, key_ttl_from text, kind text, lease interval, timeout interval, start_by timestamptz,
             ttl interval, weight integer, batch bigint);
EXCEPTION WHEN data_exception THEN
    -- Its message has the value.
    PERFORM queue_internal.raise_inconvertible(tasks);
    RAISE;
END
$$;
COMMENT ON FUNCTION queue_internal.given_tasks IS 'Returns the tasks that were passed to queue.push_tasks, one a row.';

CREATE FUNCTION queue_internal.raise_inconvertible(tasks jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT e.nth, m.name, m.type, e.value -> m.name AS value
        FROM jsonb_array_elements(tasks) WITH ORDINALITY AS e (value, nth),
             jsonb_each_text(queue_internal.task_members()) AS m (name, type)
        WHERE e.value ? m.name AND m.type IN ('an integer', 'a time', 'an interval', 'an array of integers')
        ORDER BY e.nth, m.name
    LOOP
        BEGIN
            CASE one.type
                WHEN 'an integer' THEN
                    PERFORM CASE one.name WHEN 'batch' THEN (one.value #>> '{}')::bigint ELSE (one.value #>> '{}')::integer END;
                WHEN 'a time' THEN PERFORM (one.value #>> '{}')::timestamptz;
                WHEN 'an interval' THEN PERFORM (one.value #>> '{}')::interval;
                ELSE PERFORM i.value::bigint FROM jsonb_array_elements_text(nullif(one.value, 'null')) AS i (value);
            END CASE;
        EXCEPTION WHEN data_exception THEN
            PERFORM queue_internal.raise_wrong_member(one.nth, one.name, one.type);
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.raise_inconvertible IS 'Raises 22023 for the first member that cannot be converted to its type.';
