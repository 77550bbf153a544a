-- queue.steps
--
--   Touches:  queue_internal.steps, queue_internal.awaits (reads)

CREATE FUNCTION queue.steps(id bigint)
RETURNS TABLE (name text, value jsonb, stored_at timestamptz, kind text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM queue_internal.check_id(id);
    IF queue_internal.state_of(id, 'worker') IS NULL THEN
        PERFORM queue_internal.raise_unknown_task(id);
    END IF;
    RETURN QUERY
    SELECT s.name, s.value, s.stored_at, s.kind FROM queue_internal.steps AS s
    WHERE s.task_id = steps.id ORDER BY s.number;
    RETURN QUERY
    SELECT coalesce(a.event, a.predecessor_id::text), NULL::jsonb, NULL::timestamptz,
           CASE WHEN a.event IS NOT NULL THEN 'event' ELSE 'task' END
    FROM queue_internal.awaits AS a JOIN queue.tasks AS t ON t.id = a.task_id AND t.token = a.token
    WHERE a.task_id = steps.id;
END
$$;
COMMENT ON FUNCTION queue.steps IS
'Returns the steps of a task in the order in which they were stored, wherever the task is: the name, the value, stored_at,
and the kind. The kind is step for queue.step; sleep for a queue.sleep with a name, whose value is the time; event and
task for what queue.await_event and queue.await_task have returned, whose value is null if that timed out. A last row
without stored_at is what the task waits for now. Needs the worker''s right on the queue.

- id: the task.

Errors: QX003: the task does not exist, or the caller has no right on its queue. 22004 or 22023: the argument is null or
invalid.';
