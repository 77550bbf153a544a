-- CALL queue.retry_where(filter, dry_run, batch_size, tasks)
--
--   Makes the tasks that match the filter and are scheduled due at once: those that wait after a failed
--   attempt, and those that were pushed for later. Their attempts count on.
--   API:      public; an operator's. Takes tasks of the operator's queues only
--   States:   scheduled
--   Returns:  in "tasks", how many; with "dry_run", how many there are, and nothing is done
--   Errors:   22004, 22023, 54000 for the arguments and for the filter's options; 42501 or QX002 for
--             a queue that is named
--   Touches:  queue.tasks (updates)
--   Filter, batches and locks: see filter_condition and in_batches, in sql/internal

CREATE PROCEDURE queue.retry_where(
    filter     jsonb,
    dry_run    boolean DEFAULT false,
    batch_size integer DEFAULT 1000,
    INOUT tasks bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    tasks := 0;
    CALL queue_internal.in_batches(
        '{retry}', filter, dry_run, batch_size, NULL, NULL, tasks);
END
$$;
COMMENT ON PROCEDURE queue.retry_where(jsonb, boolean, integer, bigint) IS
    'Makes the scheduled tasks that match a filter due at once, batch by batch.';
