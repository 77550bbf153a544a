-- queue.cancel
--
--   Waits:    for a transaction that is working on the task; if the task is not running, also for one that has pushed
--             after it, or has ended the task before it in its group; by key, also for one that is pushing a replacement of
--             the running task
--   Touches:  queue.tasks (updates or deletes), queue.history (inserts)

CREATE FUNCTION queue.cancel(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.tasks;
BEGIN
    PERFORM queue_internal.check_id(id);
    -- A running task is only asked to stop and does not end here, so a weaker lock is enough.
    SELECT t.* INTO task FROM queue.tasks AS t
    WHERE t.id = cancel.id AND t.state = 'running' AND queue_internal.has_right('operator', t.queue)
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        SELECT t.* INTO task FROM queue.tasks AS t
        WHERE t.id = cancel.id AND queue_internal.has_right('operator', t.queue)
        FOR UPDATE;
    END IF;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_wrong_state(
            id, 'operator', 'cannot be cancelled', 'Only waiting, queued and running tasks can be cancelled.');
    END IF;
    RETURN queue_internal.cancel_or_request(task);
END
$$;
COMMENT ON FUNCTION queue.cancel(bigint) IS
'Cancels a task that is not running. For a running task it records the request: the worker learns of it at its next
queue.extend, and the task is cancelled when the worker confirms it, fails or releases the task, or loses its lease.
If the worker completes the task first, it is completed. Returns the new state: cancelled or running. Needs the
operator''s right on the queue.

- id: the task.

Errors: QX003: the task does not exist, or the caller has no right on its queue. QX005: it has finished already. 22004
or 22023: the argument is null or invalid.';

-- The same for the task with a key. The key may pass to another task while this waits for the lock on the task, or while
-- a push that replaces a running task is open. So it locks the task, then the key, and starts again if another task has
-- the key by then.
CREATE FUNCTION queue.cancel(queue text, key text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    holder  bigint;
    is_live boolean;
    task    queue.tasks;
BEGIN
    PERFORM queue_internal.open_queue(queue, 'operator');
    IF key IS NULL THEN
        PERFORM queue_internal.raise_null('key');
    END IF;
    PERFORM queue_internal.check_key('key', key);
    LOOP
        SELECT k.task_id INTO holder FROM queue_internal.keys AS k WHERE k.queue = cancel.queue AND k.key = cancel.key
        ORDER BY k.task_id DESC LIMIT 1;
        SELECT t.* INTO task FROM queue.tasks AS t
        WHERE t.id = holder AND t.queue = cancel.queue AND t.state = 'running'
        FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            SELECT t.* INTO task FROM queue.tasks AS t
            WHERE t.id = holder AND t.queue = cancel.queue
            FOR UPDATE;
        END IF;
        is_live := FOUND;
        IF is_live THEN
            PERFORM queue_internal.lock_key(queue, key, true);
        END IF;
        -- A new snapshot.
        IF holder IS NOT DISTINCT FROM (
            SELECT k.task_id FROM queue_internal.keys AS k WHERE k.queue = cancel.queue AND k.key = cancel.key
            ORDER BY k.task_id DESC LIMIT 1) THEN
            RETURN CASE WHEN is_live THEN queue_internal.cancel_or_request(task) END;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.cancel(text, text) IS
'Cancels the task of a queue that has this key, as queue.cancel(id) does, and returns its new state: cancelled or
running. Returns null if no waiting, queued or running task has the key. A task that ends or loses the key before it can
be cancelled is left alone, and the task that has the key by then is cancelled instead. If a running task is being
replaced, the task that waits for its end has the key. Needs the operator''s right on the queue.

- queue: name of the queue.
- key: the key, exactly as it was pushed.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: an argument is null,
invalid or too large.';
