-- CALL queue.wait_result(id, timeout, state, result)
--
--   Waits until the task is completed, cancelled or failed for good, or until "timeout" is over.
--   API:      public; needs to read the task, as queue.get() does
--   Returns:  in "state", the state that the task is in now, null if it is gone without a trace; in
--             "result", what its worker gave to queue.complete()
--   Errors:   QX003 no such task; 22004, 22023, 54000 for the arguments; 2D000 in a transaction block, if it
--             would have to wait
--   Touches:  queue.tasks, queue.dead_letters, queue.history (reads)
--   How:      as queue.wait(): it looks, commits, and sleeps

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
        EXIT WHEN queue_internal.is_end(state) OR pause IS NULL;
        COMMIT;
        PERFORM pg_catalog.pg_sleep(pause);
    END LOOP;
END
$$;
COMMENT ON PROCEDURE queue.wait_result(bigint, interval, text, jsonb) IS
    'Waits until a task is finished, holding no transaction for longer than a pause; tells its state and result.';

CREATE FUNCTION queue_internal.is_end(state text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN state IS NULL OR state IN ('completed', 'cancelled', 'failed');
COMMENT ON FUNCTION queue_internal.is_end(text) IS 'Whether a task in that state is finished, or gone.';
