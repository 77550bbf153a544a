-- queue.await_task
--
--   Promise:  as queue.await_event, for the end of another task
--   Waits:    as queue.release, and for a transaction that is ending the other task. The end of that task waits for the
--             transaction of this call, as for a push after it
--   Touches:  queue.tasks (updates; locks the other task KEY SHARE, both in the order of ids), queue_internal.dependencies,
--             queue_internal.awaits, queue_internal.steps

CREATE FUNCTION queue.await_task(id bigint, token bigint, other bigint, timeout interval DEFAULT NULL)
RETURNS TABLE (ended boolean, state text, result jsonb)
LANGUAGE plpgsql ROWS 1 SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task    queue.tasks;
    earlier record;
    awaited queue_internal.awaits;
BEGIN
    IF other IS NULL THEN
        PERFORM queue_internal.raise_null('other');
    ELSIF other < 1 THEN
        PERFORM queue_internal.raise_invalid('other', 'must be greater than zero', other::text);
    ELSIF other = id THEN
        PERFORM queue_internal.raise_invalid('other', 'must be another task');
    END IF;
    PERFORM queue_internal.check_delay('timeout', timeout);
    PERFORM queue_internal.check_lease_holder(id, token);
    IF other < id THEN
        PERFORM queue_internal.lock_awaited(other);
    END IF;
    task := queue_internal.leased_task(id, token, false);
    SELECT s.stored, s.value INTO earlier FROM queue_internal.stored_step(id, 'task', other::text) AS s;
    IF earlier.stored THEN
        ended := earlier.value IS NOT NULL;
        state := earlier.value ->> 'state';
        result := earlier.value -> 'result';
        RETURN NEXT;
        RETURN;
    END IF;
    awaited := queue_internal.awaits_of(task, NULL, other, timeout);
    state := coalesce(awaited.outcome, (SELECT d.outcome FROM queue_internal.dependencies AS d
                                        WHERE d.predecessor_id = other AND d.task_id = await_task.id));
    IF state IS NULL AND NOT queue_internal.lock_awaited(other) THEN
        state := queue_internal.state_of(other, 'any');
        IF state NOT IN ('completed', 'cancelled', 'failed') THEN
            -- It was put back from the dead letters meanwhile.
            PERFORM queue_internal.lock_awaited(other);
            state := NULL;
        ELSIF state IS NULL THEN
            -- It left no trace; or the caller has no right on its queue.
            IF queue_internal.is_recorded(other) THEN
                PERFORM queue_internal.raise_unknown_task(other);
            END IF;
            SELECT coalesce(o.outcome, 'purged') INTO state
            FROM queue_internal.awaits AS a LEFT JOIN queue_internal.outcomes AS o ON o.task_id = other
            WHERE a.task_id = await_task.id AND a.predecessor_id = other;
            IF NOT FOUND THEN
                PERFORM queue_internal.raise_unknown_task(other);
            END IF;
        END IF;
    END IF;
    IF state IS NULL AND (awaited.until <= clock_timestamp()) IS NOT TRUE THEN
        PERFORM queue_internal.suspend_for(task, awaited);
        RETURN;
    END IF;
    ended := state IS NOT NULL;
    IF state = 'completed' THEN
        SELECT h.result INTO result FROM queue.history AS h
        WHERE h.id = other AND queue_internal.has_right('worker', h.queue);
    END IF;
    PERFORM queue_internal.store_step(
        id, 'task', other::text,
        CASE WHEN ended THEN jsonb_build_object('state', state)
                             || CASE WHEN result IS NULL THEN '{}' ELSE jsonb_build_object('result', result) END END);
    PERFORM queue_internal.delete_dependencies(id);
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION queue.await_task IS
'Returns how another task ended, or suspends the running task until it has ended. Returns one row if the task can go on:
ended is true, with the state (completed, failed, cancelled, or purged if it was deleted) and the result; or false,
without these, if that timed out. Returns no row if the task was suspended, as queue.await_event does. All later
attempts get the same row. A task that failed for good has ended, and one that will be retried has not. Two tasks that
wait for each other wait for ever, unless one has a timeout. Needs the worker''s right on the queue of the task, and any
right on the queue of the other one; without the worker''s right there, result is null.

- id, token: the task and the token of its lease, as claim returned them.
- other: the other task. Its result is null if its queue keeps no history.
- timeout: how long to wait, counted from the first call for the other task, at most 100 years. Null (default) means for
  ever.

Errors: QX001: the lease is no longer held. QX003: one of the tasks does not exist, or the caller has no right on its
queue; or the other one had ended before the first call, in a queue that keeps no history. 22004, 22023 or 54000: an
argument is null, invalid or too large.';

-- As a push locks its predecessors.
CREATE FUNCTION queue_internal.lock_awaited(other bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM FROM queue.tasks AS t WHERE t.id = other AND queue_internal.has_right('any', t.queue) FOR KEY SHARE;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_awaited IS 'Prevents the end of a task that another one is going to wait for; false if it is not live.';
