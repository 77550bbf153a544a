-- CALL queue.cancel_where(filter, dry_run, batch_size, tasks)
--
--   Cancels the tasks that match the filter, each as queue.cancel() would: for a running one the
--   request is noted. Those that were asked before are not counted again.
--   API:      public; an operator's. Takes tasks of the operator's queues only
--   States:   queued, scheduled, waiting, running
--   Returns:  in "tasks", how many; with "dry_run", how many there are, and nothing is done
--   Errors:   22004, 22023, 54000 for the arguments and for the filter's options; 42501 or QX002 for
--             a queue that is named
--   Touches:  queue.tasks (updates or deletes), queue.history (inserts)
--   Filter, batches and locks: see filter_condition and in_batches, in sql/internal

CREATE PROCEDURE queue.cancel_where(
    filter     jsonb,
    dry_run    boolean DEFAULT false,
    batch_size integer DEFAULT 1000,
    INOUT tasks bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    tasks := 0;
    CALL queue_internal.in_batches(
        '{cancel}', filter, dry_run, batch_size, NULL, NULL, tasks);
END
$$;
COMMENT ON PROCEDURE queue.cancel_where(jsonb, boolean, integer, bigint) IS
    'Cancels the tasks that match a filter, batch by batch.';
