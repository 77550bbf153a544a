-- queue.complete
--
--   Promise:  at most one completion of a task is ever accepted. A stale token raises an error, so that the changes
--             that the caller made in the same transaction are rolled back as well
--   Waits:    for transactions that have pushed after the task, and for one that ends a task which was to replace it
--   Touches:  queue.tasks (deletes; of a group, admits the next task, and has it locked until the transaction ends),
--             queue.history (inserts)
--   How:      a plain task, which has no key, is moved in one statement, and the next one looks for its dependents: see
--             notify_dependents()

CREATE FUNCTION queue.complete(id bigint, token bigint, result jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.tasks;
    done bigint;
    done_in    text;
    done_group text;
BEGIN
    WITH ended AS (
        DELETE FROM queue.tasks AS t
        WHERE t.id = complete.id AND t.token = complete.token AND t.state = 'running'
          AND t.key IS NULL
          AND (SELECT q.keep_history AND q.keep_payloads AND q.max_running IS NULL FROM queue.queues AS q WHERE q.name = t.queue)
          AND queue_internal.has_right('worker', t.queue)
        RETURNING t.*
    ), archived AS (
        INSERT INTO queue.history (
            id, queue, state, priority, run_at, attempt, max_attempts, token, worker, claimed_at,
            created_at, key, group_key, kind, lease, timeout, start_by, weight, headers, payload, progress, errors, result)
        SELECT e.id, e.queue, 'completed', e.priority, e.run_at, e.attempt, e.max_attempts, e.token, e.worker,
               e.claimed_at, e.created_at, e.key, e.group_key, e.kind, e.lease, e.timeout, e.start_by, e.weight, e.headers,
               e.payload, e.progress, e.errors, complete.result
        FROM ended AS e
    )
    SELECT e.id, e.queue, e.group_key INTO done, done_in, done_group FROM ended AS e;
    IF done IS NOT NULL THEN
        IF done_group IS NOT NULL THEN
            PERFORM queue_internal.hand_over(ARRAY[done_in], ARRAY[done_group]);
        END IF;
        IF EXISTS (SELECT FROM queue_internal.dependencies AS d WHERE d.predecessor_id = done) THEN
            PERFORM queue_internal.notify_dependents(ARRAY[done], 'completed');
        END IF;
        RETURN;
    END IF;
    SELECT t.* INTO task FROM queue.tasks AS t
    WHERE t.id = complete.id AND t.token = complete.token AND t.state = 'running'
      AND queue_internal.has_right('worker', t.queue)
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM queue_internal.check_lease_holder(id, token);
        PERFORM queue_internal.raise_lease_lost(id, token);
    END IF;
    PERFORM queue_internal.archive(task, 'completed', result);
END
$$;
COMMENT ON FUNCTION queue.complete IS
'Completes a task and moves it to queue.history, or deletes it if its queue keeps no history. Needs the worker''s right
on the queue.

- id, token: the task and the token of its lease, as claim returned them.
- result: any JSON value, kept in queue.history and returned by queue.get and queue.wait_result. Null (default) means
  none.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004 or 22023: an argument is null or invalid.';
