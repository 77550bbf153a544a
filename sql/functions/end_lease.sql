-- queue.end_lease(id)
--
--   Ends the lease of a running task at once, as if its time were over: the task goes back to its queue, or where its
--   last attempt leads. Its worker has lost the task, and is refused when it comes back. For a worker that hangs.
--   API:      public; needs the operator's right on the queue
--   Returns:  the state that the task is in now: queued, failed, or cancelled where that was asked for
--   Errors:   QX003 no such task; QX005 it is not running; 22004, 22023 for the argument
--   Touches:  queue.tasks (waits for a transaction that is working on the task; updates or deletes)

CREATE FUNCTION queue.end_lease(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.tasks;
BEGIN
    PERFORM queue_internal.check_id(id);
    SELECT t.* INTO task FROM queue.tasks AS t
    WHERE t.id = end_lease.id AND t.state = 'running' AND queue_internal.has_right('operator', t.queue)
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_wrong_state(
            id, 'operator', 'has no lease', 'Only a running task has one: state and lease_until in queue.get().');
    END IF;
    RETURN queue_internal.end_attempt(task, 'lease ended by an operator', '0', false);
END
$$;
COMMENT ON FUNCTION queue.end_lease(bigint) IS
    'Ends the lease of a running task at once, as if it had expired; returns the state that the task is in then.';
