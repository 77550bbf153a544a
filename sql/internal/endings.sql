-- How a task leaves queue.tasks, how it returns to its queue after an attempt, and how its order or its queue changes.
-- The caller holds a lock on the task's row: FOR NO KEY UPDATE, or FOR UPDATE if the task is to end. A transaction that
-- has pushed after the task conflicts only with FOR UPDATE (dependencies.sql).

-- Must run in a statement before the one that looks for dependents of the task. With "wait" it waits for
-- transactions that have pushed after the task, or have its key; otherwise it returns false.
CREATE FUNCTION queue_internal.lock_to_end(task_id bigint, wait boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    locked record;
BEGIN
    IF wait THEN
        SELECT t.queue, t.key INTO locked FROM queue.tasks AS t WHERE t.id = task_id FOR UPDATE;
    ELSE
        SELECT t.queue, t.key INTO locked FROM queue.tasks AS t WHERE t.id = task_id FOR UPDATE SKIP LOCKED;
    END IF;
    RETURN FOUND AND (locked.key IS NULL OR queue_internal.lock_key(locked.queue, locked.key, wait));
END
$$;
COMMENT ON FUNCTION queue_internal.lock_to_end IS
    'Locks a task that is to end, and its key; false if that would have to wait.';

-- Bounded, because each failure writes the whole array again, also if the background worker ends the attempt.
CREATE FUNCTION queue_internal.with_error(task queue.tasks, error text, details jsonb DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    longest CONSTANT integer := 65536;
    errors  jsonb := coalesce(task.errors, '[]');
    mark    text;
BEGIN
    IF length(error) > longest THEN
        mark := format(' [cut, of %s characters]', length(error));
        error := left(error, longest - length(mark)) || mark;
    END IF;
    IF jsonb_array_length(CASE jsonb_typeof(errors) WHEN 'array' THEN errors END) >= 20 THEN
        errors := errors - 10;
    END IF;
    RETURN errors || (
        jsonb_build_object('attempt', task.attempt, 'claimed_at', task.claimed_at, 'at', clock_timestamp(),
                           'worker', task.worker, 'error', error)
        || CASE WHEN details IS NULL THEN '{}' ELSE jsonb_build_object('details', details) END);
END
$$;
COMMENT ON FUNCTION queue_internal.with_error IS
    'Returns the errors of a task with one more, cut to 65536 characters; of more than twenty errors, the first ten and '
    'the last ten.';

-- A trigger of the user can suppress the deletion. Then the task must not end: it would run again.
CREATE FUNCTION queue_internal.archive(task queue.tasks, state text, result jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    kept    boolean;
    whole   boolean;
    awaited boolean;
    ended   bigint;
BEGIN
    -- At REPEATABLE READ and SERIALIZABLE the snapshot may not show all dependents. Then notify_dependents records the
    -- outcome.
    SELECT q.keep_history, q.keep_payloads,
           q.max_running IS NOT NULL
           OR NOT q.keep_history AND current_setting('transaction_isolation') <> 'read committed'
           OR EXISTS (SELECT FROM queue_internal.dependencies AS d WHERE d.predecessor_id = task.id)
    INTO kept, whole, awaited
    FROM queue.queues AS q WHERE q.name = task.queue;
    -- One statement, so that a trigger of the user after it finds the task in the history.
    WITH gone AS (
        DELETE FROM queue.tasks AS t WHERE t.id = task.id RETURNING t.id
    ), archived AS (
        INSERT INTO queue.history (
            id, queue, state, priority, run_at, attempt, max_attempts, token, worker, claimed_at,
            created_at, key, group_key, kind, lease, timeout, start_by, weight, headers, payload, progress, errors,
            result)
        SELECT g.id, task.queue, archive.state, task.priority, task.run_at, task.attempt, task.max_attempts,
               task.token, task.worker, task.claimed_at, task.created_at, task.key, task.group_key,
               task.kind, task.lease, task.timeout, task.start_by, task.weight, task.headers,
               CASE WHEN whole IS DISTINCT FROM false THEN task.payload END, task.progress, task.errors, archive.result
        FROM gone AS g WHERE kept IS DISTINCT FROM false
    )
    SELECT g.id INTO ended FROM gone AS g;
    IF ended IS NULL THEN
        PERFORM queue_internal.raise_kept(task.id, 'queue.tasks');
    END IF;
    -- Null if a dump has brought the task but not yet its queue.
    IF awaited IS NOT FALSE OR task.key IS NOT NULL OR task.group_key IS NOT NULL OR task.state = 'waiting' THEN
        PERFORM queue_internal.on_task_end(task, archive.state);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.archive IS
    'Moves a finished task to the history, or deletes it if its queue keeps none.';

-- The effects of the end of a task on others: its key is free, its group and its slot have room, and its dependents
-- get its outcome. Must run in a statement after the one that locked or deleted the task: see notify_dependents().
CREATE FUNCTION queue_internal.on_task_end(task queue.tasks, outcome text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF task.key IS NOT NULL THEN
        -- Work that failed may be pushed again at once.
        PERFORM queue_internal.release_key(task, outcome IN ('purged', 'failed'));
    END IF;
    IF task.group_key IS NOT NULL AND task.state = 'running' THEN
        PERFORM queue_internal.hand_over(ARRAY[task.queue], ARRAY[task.group_key]);
    ELSIF task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key) VALUES (task.queue, task.group_key);
    END IF;
    IF task.state = 'waiting' THEN
        PERFORM queue_internal.delete_dependencies(task.id);
        DELETE FROM queue_internal.batches AS b WHERE b.task_id = task.id;
    END IF;
    PERFORM queue_internal.notify_dependents(ARRAY[task.id], outcome);
    IF task.state = 'running' THEN
        PERFORM queue_internal.announce_free_slot(task.queue);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.on_task_end IS
    'Releases the key and the slot of a task that has ended, gives its turn in its group to the next one, and leaves events '
    'for its dependents.';

CREATE FUNCTION queue_internal.announce_free_slot(queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (SELECT FROM queue.queues AS q WHERE q.name = announce_free_slot.queue AND q.max_running IS NOT NULL) THEN
        PERFORM queue_internal.announce_task(queue, clock_timestamp());
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.announce_free_slot IS
    'Called when a task stops running: wakes workers of a queue with max_running, in which other tasks may wait for its slot.';

CREATE FUNCTION queue_internal.cancel_now(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.archive(task, 'cancelled', NULL);
END
$$;
COMMENT ON FUNCTION queue_internal.cancel_now IS 'Moves a task to the history as cancelled.';

CREATE FUNCTION queue_internal.cancel_or_request(task queue.tasks) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF task.state = 'running' THEN
        UPDATE queue.tasks AS t
        SET cancel_requested_at = coalesce(t.cancel_requested_at, clock_timestamp()),
            updated_at = clock_timestamp()
        WHERE t.id = task.id;
        RETURN 'running';
    END IF;
    PERFORM queue_internal.cancel_now(task);
    RETURN 'cancelled';
END
$$;
COMMENT ON FUNCTION queue_internal.cancel_or_request IS
    'Cancels a task, or records the request for a running one; returns its state.';

CREATE FUNCTION queue_internal.discard(task queue.tasks) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    DELETE FROM queue.tasks AS t WHERE t.id = task.id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM queue_internal.on_task_end(task, 'purged');
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.discard IS
    'Deletes a task without recording it in the history; false if a trigger of the user has suppressed that.';

CREATE FUNCTION queue_internal.move_to_dead_letters(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    ended bigint;
BEGIN
    WITH gone AS (
        DELETE FROM queue.tasks AS t WHERE t.id = task.id RETURNING t.id
    ), moved AS (
        INSERT INTO queue.dead_letters (
            id, queue, priority, run_at, attempt, max_attempts, token, worker, claimed_at,
            created_at, key, group_key, backoff, kind, lease, timeout, start_by, weight, headers, payload, progress, errors,
            key_ttl)
        SELECT g.id, task.queue, task.priority, task.run_at, task.attempt, task.max_attempts, task.token,
               task.worker, task.claimed_at, task.created_at, task.key, task.group_key, task.backoff,
               task.kind, task.lease, task.timeout, task.start_by, task.weight, task.headers, task.payload, task.progress,
               task.errors,
               (SELECT k.ttl FROM queue_internal.keys AS k
                WHERE k.queue = task.queue AND k.key = task.key AND k.task_id = task.id)
        FROM gone AS g
    )
    SELECT g.id INTO ended FROM gone AS g;
    IF ended IS NULL THEN
        PERFORM queue_internal.raise_kept(task.id, 'queue.tasks');
    END IF;
    PERFORM queue_internal.on_task_end(task, 'failed');
END
$$;
COMMENT ON FUNCTION queue_internal.move_to_dead_letters IS 'Moves a task to the dead letters.';

CREATE FUNCTION queue_internal.requeue(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE queue.tasks AS t
    SET state = 'queued', attempt = task.attempt, run_at = task.run_at, errors = task.errors,
        lease_until = NULL, worker = NULL, claimed_at = NULL, updated_at = clock_timestamp()
    WHERE t.id = task.id;
    IF task.group_key IS NOT NULL THEN
        PERFORM queue_internal.recheck_group(task);
    END IF;
    -- A task that is due is announced itself.
    IF task.run_at > clock_timestamp() THEN
        PERFORM queue_internal.announce_free_slot(task.queue);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.requeue IS
    'Requeues a running task with the attempt, run_at and errors given.';

CREATE FUNCTION queue_internal.reorder(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE queue.tasks AS t
    SET priority = task.priority, run_at = task.run_at, updated_at = clock_timestamp()
    WHERE t.id = task.id;
END
$$;
COMMENT ON FUNCTION queue_internal.reorder IS 'Changes the priority and the run_at of a task.';

-- Returns false, and does nothing, if another task of that queue has the key.
CREATE FUNCTION queue_internal.move(task queue.tasks, to_queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF task.key IS NOT NULL AND task.queue <> to_queue THEN
        IF NOT queue_internal.take_key(to_queue, task.key, task.id) THEN
            RETURN false;
        END IF;
        UPDATE queue_internal.keys AS k SET ttl = o.ttl FROM queue_internal.keys AS o
        WHERE k.queue = to_queue AND k.key = task.key AND o.queue = task.queue AND o.key = task.key
          AND o.task_id = task.id AND o.ttl IS NOT NULL;
        PERFORM queue_internal.release_key(task, true);
    END IF;
    -- An event in the other queue admits it when it is its turn in its group.
    UPDATE queue.tasks AS t
    SET queue = to_queue, updated_at = clock_timestamp(),
        admission = CASE WHEN t.state = 'waiting' OR t.group_key IS NOT NULL THEN 2 ELSE 0 END
    WHERE t.id = task.id;
    IF task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key, arrived)
        VALUES (task.queue, task.group_key, NULL), (to_queue, task.group_key, task.id);
        PERFORM queue_internal.note_return(to_queue, task.group_key, task.id);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.move IS
    'Moves a task that is not running to another queue; false if its key is taken there.';

CREATE FUNCTION queue_internal.has_timed_out(task queue.tasks) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN coalesce(queue_internal.timeout_at(task.claimed_at, coalesce(
        task.timeout, (SELECT q.timeout FROM queue.queues AS q WHERE q.name = task.queue)))
        <= least(task.lease_until, clock_timestamp()), false);
END
$$;
COMMENT ON FUNCTION queue_internal.has_timed_out IS
    'Returns whether the timeout of a running task has passed, rather than only its lease.';

-- Ends a failed attempt: cancels the task if that was requested; else requeues it or moves it to the dead letters. A
-- task that was replaced is cancelled instead of requeued. Without "wait" it returns null and does nothing if it
-- would have to wait for a transaction that has pushed after the task or is replacing it.
CREATE FUNCTION queue_internal.end_attempt(
    task queue.tasks, error text, retry_in interval, permanent boolean, wait boolean DEFAULT true,
    details jsonb DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source  queue.queues;
    is_last boolean;
    outcome text;
BEGIN
    task.errors := queue_internal.with_error(task, error, details);
    SELECT q.* INTO source FROM queue.queues AS q WHERE q.name = task.queue;
    -- A dump may bring a task before its queue. Until then it is unknown whether this was the last attempt.
    IF NOT wait AND source.name IS NULL THEN
        RETURN NULL;
    END IF;
    is_last := permanent OR coalesce(task.attempt >= coalesce(task.max_attempts, source.max_attempts), false);
    -- The first to lock the key decides whether a push replaces this task. A caller that waits has locked a task with a
    -- key FOR UPDATE, so that a push that replaces it comes before or after (leased_task).
    IF NOT wait AND task.key IS NOT NULL AND NOT is_last AND NOT queue_internal.lock_key(task.queue, task.key, false) THEN
        RETURN NULL;
    END IF;
    outcome := CASE WHEN task.cancel_requested_at IS NOT NULL THEN 'cancelled'
                    WHEN is_last THEN 'failed'
                    WHEN queue_internal.is_replaced(task) THEN 'cancelled' END;
    IF outcome IS NOT NULL AND NOT queue_internal.lock_to_end(task.id, wait) THEN
        RETURN NULL;
    ELSIF outcome = 'cancelled' THEN
        PERFORM queue_internal.cancel_now(task);
        RETURN outcome;
    ELSIF outcome = 'failed' THEN
        PERFORM queue_internal.move_to_dead_letters(task);
        RETURN outcome;
    END IF;
    retry_in := coalesce(retry_in, queue_internal.backoff(source, task));
    -- Without a delay the task keeps its place in the queue.
    IF extract(epoch FROM retry_in) > 0 THEN
        task.run_at := clock_timestamp() + retry_in;
    END IF;
    PERFORM queue_internal.requeue(task);
    RETURN 'queued';
END
$$;
COMMENT ON FUNCTION queue_internal.end_attempt IS
    'Ends an attempt that did not succeed; returns the new state of the task.';
