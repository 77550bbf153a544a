-- queue.get(id)
--
--   The task wherever it is: live, finished, or among the dead letters.
--   API:      public
--   Errors:   QX003 no such task; 22004, 22023 for the argument
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
COMMENT ON FUNCTION queue.get(bigint) IS 'The task wherever it is.';
