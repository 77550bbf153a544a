-- CALL queue.redrive_where
--
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
COMMENT ON PROCEDURE queue.redrive_where IS
'Puts the dead letters that match a filter back into their queues, or into another one, each as queue.retry does. A
dead letter whose key another task has stays where it is. Commits after each batch if it is called outside a
transaction block. Skips tasks that another transaction has locked, and waits for one that is taking a key. Changes only tasks of queues on which the caller
has the operator''s right.

- filter: a JSON object; a task has to match all of its options: queue, kind, worker, state (failed), older_than and
  newer_than (intervals, by created_at), key, group_key and error (LIKE patterns), payload and headers (JSON that the
  task''s contains), ids (an array), all (true, every task). Must not be empty.
- to_queue: name of the queue to put them into. Null (default) means the queue of each.
- dry_run: true counts the matching tasks and changes nothing. Default false.
- batch_size: number of tasks in each batch, 1 to 100000. Default 1000.
- tasks: the result: how many tasks were changed, or with dry_run match. Pass nothing.

Errors: 42501: no right on to_queue or the queue that the filter names. QX002: it does not exist. 22004, 22023 or
54000: an argument or an option of the filter is null, invalid or too large.';
