-- CALL queue.move_where(filter, to_queue, dry_run, batch_size, tasks)
--
--   Moves the tasks that match the filter and are not running to another queue. They keep their ids,
--   priorities and times, and their keys: one whose key another task has there stays where it is.
--   API:      public; an operator's. Takes tasks of the operator's queues only
--   States:   queued, scheduled, waiting
--   Returns:  in "tasks", how many; with "dry_run", how many there are, and nothing is done
--   Errors:   22004, 22023, 54000 for the arguments and for the filter's options; 42501 or QX002 for
--             a queue that is named
--   Touches:  queue.tasks (updates)
--   Filter, batches and locks: see filter_condition and in_batches, in sql/internal

CREATE PROCEDURE queue.move_where(
    filter     jsonb,
    to_queue   text,
    dry_run    boolean DEFAULT false,
    batch_size integer DEFAULT 1000,
    INOUT tasks bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    tasks := 0;
    CALL queue_internal.in_batches(
        '{move}', filter, dry_run, batch_size, to_queue, NULL, tasks);
END
$$;
COMMENT ON PROCEDURE queue.move_where(jsonb, text, boolean, integer, bigint) IS
    'Moves the tasks that match a filter to another queue, batch by batch; those whose key is taken there stay.';
