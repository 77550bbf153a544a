-- queue.cancel(id)
--
--   Cancels a task that is not running. For a running one the request is noted: its worker sees it
--   at the next extend, and the task is cancelled when the worker fails or releases it, says
--   queue.cancelled(), or its lease runs out. A worker that completes it first is not refused.
--   API:      public; an operator's
--   Returns:  the state that the task is in now: cancelled, or running
--   Errors:   QX003 no such task; QX005 it has finished already; 22004, 22023 for the argument
--   Waits:    for a transaction that is working on the task; if it does not run, for one that has pushed after it, too
--   Touches:  queue.tasks (updates or deletes), queue.history (inserts)

CREATE FUNCTION queue.cancel(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.tasks;
BEGIN
    PERFORM queue_internal.check_id(id);
    -- What runs is asked to stop, and does not end with that.
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
    RETURN queue_internal.cancel_or_ask(task);
END
$$;
COMMENT ON FUNCTION queue.cancel(bigint) IS
    'Cancels a task, or asks its worker to stop; returns the state that the task is in now.';
