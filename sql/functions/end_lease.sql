-- queue.end_lease
--
--   Waits:    for a transaction that is working on the task
--   Touches:  queue.tasks (updates or deletes)

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
            id, 'operator', 'has no lease', 'Only a running task has a lease: see state and lease_until in queue.get().');
    END IF;
    RETURN queue_internal.end_attempt(task, 'lease ended by an operator', '0', false);
END
$$;
COMMENT ON FUNCTION queue.end_lease IS
'Ends the lease of a running task now, as if it had expired, for a worker that hangs. The worker is refused when it
reports the task. Returns the new state of the task: queued, failed if this was its last attempt, or cancelled if that
was requested. Needs the operator''s right on the queue.

- id: the task.

Errors: QX003: the task does not exist, or the caller has no right on its queue. QX005: it is not running. 22004 or
22023: the argument is null or invalid.';
