-- CALL queue.wait_result(id, timeout, state, result)
--
--   Waits until the task is completed, cancelled or failed for good, or until "timeout" is over.
--   API:      public; needs to read the task, as queue.get() does
--   Returns:  in "state", the state that the task is in now, null if it is gone without a trace; in
--             "result", what its worker gave to queue.complete()
--   Errors:   QX003 no such task; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks, queue.dead_letters, queue.history (reads)
--   Locks:    none while it waits, and neither a snapshot nor a transaction: it commits and sleeps until
--             the task's end wakes it (src/wait.rs). In a transaction block it cannot, and does not wait.

CREATE PROCEDURE queue.wait_result(
    id           bigint,
    timeout      interval DEFAULT '30 seconds',
    INOUT state  text     DEFAULT NULL,
    INOUT result jsonb    DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queue_wait_result';
COMMENT ON PROCEDURE queue.wait_result(bigint, interval, text, jsonb) IS
    'Waits until a task is finished, holding neither a transaction nor a snapshot; tells its state and result.';

CREATE FUNCTION queue_internal.check_wait_result(id bigint, timeout interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deadline timestamptz;
BEGIN
    PERFORM queue_internal.check_id(id);
    deadline := queue_internal.wait_deadline(timeout);
    IF queue_internal.state_of(id) IS NULL THEN
        PERFORM queue_internal.raise_unknown_task(id);
    END IF;
    RETURN deadline;
END
$$;
COMMENT ON FUNCTION queue_internal.check_wait_result(bigint, interval) IS
    'Checks the arguments of queue.wait_result(); returns until when it waits.';

CREATE FUNCTION queue_internal.wait_deadline(timeout interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF timeout IS NULL THEN
        PERFORM queue_internal.raise_null('timeout');
    END IF;
    PERFORM queue_internal.check_delay('timeout', timeout);
    RETURN clock_timestamp() + timeout;
END
$$;
COMMENT ON FUNCTION queue_internal.wait_deadline(interval) IS
    'Until when to wait; checks the argument "timeout".';

-- One snapshot for all tables, since it is STABLE: a task on its way from one to the other is missed
-- in neither.
CREATE FUNCTION queue_internal.outcome(id bigint, OUT state text, OUT result jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    state := queue_internal.state_of(id);
    IF state = 'completed' THEN
        SELECT h.result INTO result FROM queue.history AS h WHERE h.id = outcome.id;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.outcome(bigint) IS 'The state of a task, wherever it is, and its result.';
