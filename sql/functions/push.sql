-- queue.push
--
--   Promise:  the task exists if and only if the transaction commits
--   Waits:    for another transaction that is pushing the same key, and for one that is ending a predecessor; if the task that
--             has the key has expired, also for one that is ending it or the task that it replaces; with
--             "replace" and "reschedule" also for one that is working on the task to be changed
--   Touches:  queue.tasks (inserts, or updates the task with the key). The triggers task_arrives and tasks_inserted
--             take the key and announce the task

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
    id     bigint;
BEGIN
    IF num_nonnulls(run_at, delay, key, group_key, max_attempts, headers, after, backoff, key_ttl, on_predecessor_failure,
                    key_ttl_from, kind, lease, timeout, start_by, ttl, batch) = 0
       AND on_duplicate = 'skip' AND weight = 1 AND priority IS NOT NULL AND payload IS NOT NULL THEN
        id := queue_internal.push_plain(queue, payload, priority);
        IF id IS DISTINCT FROM 0 THEN
            RETURN id;
        END IF;
    END IF;
    PERFORM queue_internal.check_task_options(
        queue, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after,
        backoff, key_ttl, on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight, batch);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    source := queue_internal.open_queue(queue, 'producer');
    run_at := coalesce(run_at, clock_timestamp() + coalesce(delay, '0'));
    start_by := queue_internal.start_deadline(source, start_by, ttl);
    IF key IS NULL AND after IS NULL AND batch IS NULL THEN
        IF source.max_queued IS NOT NULL THEN
            PERFORM queue_internal.check_depth(source, 1);
        END IF;
        INSERT INTO queue.tasks AS t (
            queue, payload, priority, run_at, max_attempts, headers, group_key, backoff, kind, lease, timeout,
            start_by, weight)
        VALUES (push.queue, push.payload, push.priority, push.run_at, push.max_attempts, push.headers,
                push.group_key, push.backoff, push.kind, push.lease, push.timeout, push.start_by, push.weight)
        RETURNING t.id INTO id;
        RETURN id;
    END IF;
    RETURN (queue_internal.push_one(
        queue, payload, priority, run_at, key, on_duplicate, group_key, max_attempts, headers, after, backoff,
        queue_internal.stored_ttl(key_ttl, key_ttl_from), on_predecessor_failure, batch, kind, lease, timeout,
        start_by, weight)).id;
END
$$;
COMMENT ON FUNCTION queue.push IS
'Adds a task to a queue and returns its id. If another task has the key, returns the id of that task instead, or does
what on_duplicate says. The task exists once the transaction commits. Needs the producer''s right on the queue.

- queue: name of the queue.
- payload: what the worker is to do, any JSON value. Default {}.
- priority: the task with the smallest priority is claimed first. Default 0.
- run_at: earliest time at which the task can be claimed. Null means now.
- delay: the same as an interval from now, at most 100 years. Cannot be combined with run_at. Null means no delay.
- key: at most one waiting, queued or running task of the queue has this key, of up to 512 bytes. Null means no key.
- on_duplicate: what to do if the key is taken. skip (default): add nothing. replace: give that task the new payload,
  kind, lease, timeout, start deadline, weight, headers, priority and run_at; if it is running, add a task that waits
  for its end. reschedule: give it the new run_at, unless it is running. error: raise QX004. A task that has finished
  and keeps its key is not changed.
- group_key: tasks of a queue with the same group key run in order, max_running_per_group at a time. At most 512
  bytes. Null means no group.
- max_attempts: number of attempts after which the task becomes a dead letter, 1 to 10000. Null means the queue''s
  option.
- headers: a JSON object with metadata, such as a trace context. Null means none.
- after: ids of up to 100000 tasks that must complete before this one can be claimed. Null means none.
- backoff: a JSON object with kind, base, max and jitter, as in queue.create. Null, and each part that is missing,
  means the queue''s option.
- key_ttl: how long the key stays taken after the task completed or was cancelled, at most 100 years. Needs a key.
  Null means the queue''s option.
- on_predecessor_failure: what happens to this task if a task in after fails or is cancelled: cancel, fail or
  continue. Needs after. Null means the queue''s option.
- key_ttl_from: end (default if null) or push: whether key_ttl counts from the end of the task or from its push. A task
  that takes longer than key_ttl keeps its key until it ends. Needs key_ttl.
- kind: what sort of work this is, 1 to 128 bytes, by which workers choose their code. Null means none.
- lease: how long a claim lasts that names no lease; more than 0, at most queue.max_lease. Null means the queue''s
  option.
- timeout: how long an attempt may take; more than 0, at most a year. Then the attempt has failed with the error "timed
  out", and its lease cannot be extended further. Null means the queue''s option.
- start_by: the start deadline. If no worker has claimed the task by then, it expires: it becomes a dead letter with the
  error "expired", or is cancelled if the queue''s option on_expired is cancel. A task that is scheduled for later or
  waits for other tasks expires too. Null (default) means that ttl applies.
- ttl: the start deadline as an interval from now, more than 0, at most 100 years. Cannot be combined with start_by. Null
  (default) means the queue''s option ttl.
- weight: how much of rate_limit and group_rate_limit the task uses up when it starts, from 1 to the smaller of these
  limits. Default 1.
- batch: the batch, as returned by queue.create_batch, to which the task is added if it is new. Needs the producer''s
  right on the queue of the batch too. Null means no batch.

Errors: 42501: no right on the queue. QX002: the queue does not exist. QX003: a task in after does not exist. QX004: the
key is taken and on_duplicate is error. QX006: the queue is full. QX007: the batch does not exist. QX008: the batch is
sealed. 22004, 22023 or 54000: an argument is null, invalid or too large.';

-- A push with a key or with predecessors, which depends on other tasks. "live" are the predecessors that are locked
-- already. "pushed" is false if the id is that of a task that existed before. "key_ttl" is as in queue_internal.keys.
-- With "is_callback" the task waits, and the caller adds the row of its batch.
CREATE FUNCTION queue_internal.push_linked(
    queue text, payload jsonb, priority integer, run_at timestamptz, key text, on_duplicate text,
    group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb, key_ttl interval,
    on_predecessor_failure text, live bigint[], kind text, lease interval, timeout interval, start_by timestamptz, weight integer,
    is_callback boolean DEFAULT false, OUT id bigint, OUT pushed boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    source  CONSTANT queue.queues := queue_internal.open_queue(queue, 'producer');
    waits   CONSTANT boolean := after <> '{}';
    task    queue.tasks;
    running bigint;
    new_id  bigint;
    again   boolean := false;
BEGIN
    task.queue := queue;
    task.key := key;
    task.payload := payload;
    task.priority := priority;
    task.run_at := run_at;
    task.headers := headers;
    task.kind := kind;
    task.lease := lease;
    task.timeout := timeout;
    task.start_by := start_by;
    task.weight := weight;
    -- Locks the table, as an INSERT does before it takes an id (internal/settled_id.sql).
    PERFORM FROM queue.tasks AS t WHERE false FOR KEY SHARE;
    LOOP
        new_id := nextval('queue.tasks_id_seq');
        -- The trigger task_arrives takes the key, too. But if a trigger of the user suppresses the task before that, only this
        -- shows that no other task has the key.
        IF NOT again OR queue_internal.take_key(queue, key, new_id, keeps_errors => false) THEN
            INSERT INTO queue.tasks AS t (
                id, queue, payload, priority, run_at, max_attempts, headers, key, group_key, backoff, kind, lease, timeout,
                start_by, weight, state)
            VALUES (new_id, push_linked.queue, push_linked.payload, push_linked.priority, push_linked.run_at,
                    push_linked.max_attempts, push_linked.headers, push_linked.key, push_linked.group_key,
                    push_linked.backoff, push_linked.kind, push_linked.lease, push_linked.timeout, push_linked.start_by, push_linked.weight,
                    CASE WHEN waits OR is_callback OR running IS NOT NULL THEN 'waiting' ELSE 'queued' END)
            RETURNING t.id INTO id;
            IF FOUND THEN
                IF key_ttl IS NOT NULL THEN
                    UPDATE queue_internal.keys AS k SET ttl = key_ttl
                    WHERE k.queue = push_linked.queue AND k.key = push_linked.key AND k.task_id = id;
                END IF;
                -- The replaced task is waited for however it ends, even if it is named in "after".
                after := array_remove(after, running);
                IF after <> '{}' THEN
                    -- Taking a key, for this task or another one of the call, has ended the task that had it, if it was past its
                    -- start deadline.
                    live := ARRAY(SELECT t.id FROM queue.tasks AS t WHERE t.id = ANY (live));
                    PERFORM queue_internal.add_dependencies(
                        id, queue, after, coalesce(on_predecessor_failure, source.on_predecessor_failure), live);
                END IF;
                IF running IS NOT NULL THEN
                    PERFORM queue_internal.add_dependencies(id, queue, ARRAY[running], 'continue', ARRAY[running]);
                END IF;
                pushed := true;
                RETURN;
            ELSIF key IS NULL OR queue_internal.give_back_key(queue, key, new_id, running) THEN
                -- A trigger that the user added has suppressed it.
                pushed := false;
                RETURN;
            END IF;
        END IF;
        -- Null if the key is free now, or can be taken over.
        SELECT s.id, s.running INTO id, running FROM queue_internal.resolve_duplicate(task, on_duplicate) AS s;
        IF id IS NOT NULL THEN
            pushed := false;
            RETURN;
        END IF;
        again := true;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.push_linked IS 'Pushes a task that has a key or waits for others.';

-- A push of one task that has a key, waits for others, or is added to a batch. "pushed" and "key_ttl" are as in push_linked.
CREATE FUNCTION queue_internal.push_one(
    queue text, payload jsonb, priority integer, run_at timestamptz, key text, on_duplicate text,
    group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb, key_ttl interval,
    on_predecessor_failure text, batch bigint, kind text, lease interval, timeout interval, start_by timestamptz, weight integer,
    OUT id bigint, OUT pushed boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    others CONSTANT bigint[] := array_remove(after || batch, NULL);
    live   bigint[];
BEGIN
    IF others <> '{}' THEN
        live := queue_internal.lock_before_push(ARRAY[queue], ARRAY[key], on_duplicate, others);
    END IF;
    IF batch IS NOT NULL THEN
        PERFORM queue_internal.lock_batches(ARRAY[batch]);
        PERFORM queue_internal.check_no_cycle(batch, after);
    END IF;
    SELECT p.id, p.pushed INTO id, pushed FROM queue_internal.push_linked(
        queue, payload, priority, run_at, key, on_duplicate, group_key, max_attempts, headers, after, backoff, key_ttl,
        on_predecessor_failure, live, kind, lease, timeout, start_by, weight) AS p;
    IF pushed AND batch IS NOT NULL THEN
        PERFORM queue_internal.join_batch(batch, ARRAY[id]);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.push_one IS
    'Pushes a task that has a key or waits for others, or, if it is new, adds it to a batch.';
