-- queue.get
--
--   Touches:  queue.tasks, queue.dead_letters, queue.history (reads)

CREATE FUNCTION queue.get(id bigint) RETURNS queue.all_tasks
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.all_tasks;
BEGIN
    PERFORM queue_internal.check_id(id);
    SELECT a.* INTO task FROM queue.all_tasks AS a
    WHERE a.id = get.id AND queue_internal.has_right('operator', a.queue);
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_unknown_task(id);
    END IF;
    RETURN task;
END
$$;
COMMENT ON FUNCTION queue.get IS
'Returns one task from wherever it is, as a row of queue.all_tasks: live, finished, or a dead letter. Needs the
operator''s right on the queue.

- id: the task.

Errors: QX003: the task does not exist, or the caller has no right on its queue. 22004 or 22023: the argument is null
or invalid.';
