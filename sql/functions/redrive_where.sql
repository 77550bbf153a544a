-- CALL queue.redrive_where(filter, to_queue, dry_run, batch_size, tasks)
--
--   Puts the dead letters that match the filter back into their queues, or into "to_queue"; each as
--   queue.retry() would.
--   API:      public; an operator's. Takes tasks of the operator's queues only
--   States:   failed
--   Returns:  in "tasks", how many; with "dry_run", how many there are, and nothing is done
--   Errors:   22004, 22023, 54000 for the arguments and for the filter's options; 42501 or QX002 for
--             a queue that is named
--   Touches:  queue.dead_letters (deletes), queue.tasks (inserts)
--   Filter, batches and locks: see filter_condition and in_batches, in sql/internal

CREATE PROCEDURE queue.redrive_where(
    filter     jsonb,
    to_queue   text    DEFAULT NULL,
    dry_run    boolean DEFAULT false,
    batch_size integer DEFAULT 1000,
    INOUT tasks bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    tasks := 0;
    CALL queue_internal.in_batches(
        '{redrive}', filter, dry_run, batch_size, to_queue, NULL, tasks);
END
$$;
COMMENT ON PROCEDURE queue.redrive_where(jsonb, text, boolean, integer, bigint) IS
    'Puts the dead letters that match a filter back into a queue, batch by batch.';
