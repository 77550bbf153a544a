-- queue.cancel
--
--   Waits:    for a transaction that is working on the task; if the task is not running, also for one that has pushed
--             after it
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
COMMENT ON FUNCTION queue.cancel IS
'Cancels a task that is not running. For a running task it records the request: the worker learns of it at its next
queue.extend, and the task is cancelled when the worker confirms it, fails or releases the task, or loses its lease.
If the worker completes the task first, it is completed. Returns the new state: cancelled or running. Needs the
operator''s right on the queue.

- id: the task.

Errors: QX003: the task does not exist, or the caller has no right on its queue. QX005: it has finished already. 22004
or 22023: the argument is null or invalid.';
