-- queue.wait_result
--
--   Touches:  queue.tasks, queue.dead_letters, queue.history (reads)
--   How:      as queue.wait(): it reads, commits, and sleeps

CREATE PROCEDURE queue.wait_result(
    id           bigint,
    timeout      interval DEFAULT '30 seconds',
    INOUT state  text     DEFAULT NULL,
    INOUT result jsonb    DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
    deadline pg_catalog.timestamptz := queue_internal.check_wait_result(id, timeout);
    pause    double precision := 0;
BEGIN
    LOOP
        SELECT o.state, o.result INTO state, result FROM queue_internal.outcome(id) AS o;
        pause := queue_internal.next_pause(pause, deadline);
        EXIT WHEN queue_internal.is_finished(state) OR pause IS NULL;
        COMMIT;
        PERFORM pg_catalog.pg_sleep(pause);
    END LOOP;
END
$$;
COMMENT ON PROCEDURE queue.wait_result IS
'Waits until a task is completed, cancelled or failed, or until the timeout ends. It holds no transaction for longer
than poll_interval. Needs the operator''s right on the queue.

- id: the task.
- timeout: how long to wait, at most 100 years. 0 returns at once. Default 30 seconds.
- state: the result; pass nothing. The state of the task. Null if it left no trace, because its queue keeps no history
  or it was purged.
- result: the result; pass nothing. What the worker passed to queue.complete, or null.

Errors: QX003: the task does not exist, or the caller has no right on its queue. 2D000: in a transaction block, if it
would have to wait. 22004, 22023 or 54000: an argument is null, invalid or too large.';

CREATE FUNCTION queue_internal.is_finished(state text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN state IS NULL OR state IN ('completed', 'cancelled', 'failed');
COMMENT ON FUNCTION queue_internal.is_finished IS 'Returns whether a task in that state is finished, or gone.';
