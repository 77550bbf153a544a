-- CALL queue.purge_where(filter, dry_run, batch_size, tasks)
--
--   Deletes the tasks and dead letters that match the filter and are not running, without a trace in
--   the history.
--   API:      public; an operator's. Takes tasks of the operator's queues only
--   States:   queued, scheduled, waiting, failed
--   Returns:  in "tasks", how many; with "dry_run", how many there are, and nothing is done
--   Errors:   22004, 22023, 54000 for the arguments and for the filter's options; 42501 or QX002 for
--             a queue that is named
--   Touches:  queue.tasks, queue.dead_letters (deletes)
--   Filter, batches and locks: see filter_condition and in_batches, in sql/internal

CREATE PROCEDURE queue.purge_where(
    filter     jsonb,
    dry_run    boolean DEFAULT false,
    batch_size integer DEFAULT 1000,
    INOUT tasks bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    tasks := 0;
    CALL queue_internal.in_batches(
        '{discard, forget}', filter, dry_run, batch_size, NULL, NULL, tasks);
END
$$;
COMMENT ON PROCEDURE queue.purge_where(jsonb, boolean, integer, bigint) IS
    'Deletes the tasks and dead letters that match a filter, batch by batch.';
