-- queue.purge(name)
--
--   Deletes the tasks of a queue that are not running, and its dead letters, without a trace in
--   the history. Running tasks are left to their workers.
--   API:      public; an operator's
--   Returns:  how many were deleted
--   Empty:    0
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the argument
--   Touches:  queue.tasks, queue.dead_letters (deletes; never waits for a lock)

CREATE FUNCTION queue.purge(name text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tasks   bigint;
    letters bigint;
BEGIN
    PERFORM queue_internal.check_queue(name);
    -- Dead letters first, as redrive takes them before it makes tasks; those that it has locked are left to it.
    WITH dead AS MATERIALIZED (
        SELECT d.id FROM queue.dead_letters AS d WHERE d.queue = purge.name ORDER BY d.id FOR UPDATE SKIP LOCKED
    )
    DELETE FROM queue.dead_letters AS l USING dead AS d WHERE l.id = d.id;
    GET DIAGNOSTICS letters = ROW_COUNT;
    PERFORM queue_internal.discard(i.task) FROM (
        SELECT t AS task FROM queue.tasks AS t
        WHERE t.queue = purge.name AND t.state <> 'running' ORDER BY t.id FOR UPDATE SKIP LOCKED
    ) AS i;
    GET DIAGNOSTICS tasks = ROW_COUNT;
    RETURN tasks + letters;
END
$$;
COMMENT ON FUNCTION queue.purge(text) IS
    'Deletes the tasks of a queue that are not running, and its dead letters; returns how many.';
