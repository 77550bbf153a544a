-- CALL queue.reprioritise_where(filter, priority, dry_run, batch_size, tasks)
--
--   Gives the tasks that match the filter another priority. For a running one it counts when the task
--   comes back to its queue. Those that have that priority already are not counted.
--   API:      public; an operator's. Takes tasks of the operator's queues only
--   States:   queued, scheduled, waiting, running
--   Returns:  in "tasks", how many; with "dry_run", how many there are, and nothing is done
--   Errors:   22004, 22023, 54000 for the arguments and for the filter's options; 42501 or QX002 for
--             a queue that is named
--   Touches:  queue.tasks (updates)
--   Filter, batches and locks: see filter_condition and in_batches, in sql/internal

CREATE PROCEDURE queue.reprioritise_where(
    filter     jsonb,
    priority   integer,
    dry_run    boolean DEFAULT false,
    batch_size integer DEFAULT 1000,
    INOUT tasks bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    tasks := 0;
    CALL queue_internal.in_batches(
        '{reprioritise}', filter, dry_run, batch_size, NULL, priority,
        tasks);
END
$$;
COMMENT ON PROCEDURE queue.reprioritise_where(jsonb, integer, boolean, integer, bigint) IS
    'Gives the tasks that match a filter another priority, batch by batch.';
