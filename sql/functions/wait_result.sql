-- CALL queue.wait_result(id, timeout, state, result)
--
--   Waits until the task is completed, cancelled or failed for good, or until "timeout" is over.
--   API:      public; needs to read the task, as queue.get() does
--   Returns:  in "state", the state that the task is in now, null if it is gone without a trace; in
--             "result", what its worker gave to queue.complete()
--   Errors:   QX003 no such task; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks, queue.dead_letters, queue.history (reads)
--   Locks:    none while it waits, and neither a snapshot: it commits and looks again, after 5 ms at
--             first and every 200 ms later. In a transaction block it cannot, and does not wait.
--   Why it has no SET clause, and no operators: see queue.maintain().

CREATE PROCEDURE queue.wait_result(
    id           bigint,
    timeout      interval DEFAULT '30 seconds',
    INOUT state  text     DEFAULT NULL,
    INOUT result jsonb    DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
    deadline  CONSTANT pg_catalog.timestamptz := queue_internal.wait_deadline(id, timeout);
    pause     double precision;
    committed boolean;
BEGIN
    SELECT o.state, o.result INTO state, result FROM queue_internal.outcome(id) AS o;
    IF state IS NULL THEN
        PERFORM queue_internal.raise_unknown_task(id);
    END IF;
    LOOP
        pause := queue_internal.next_pause(state, deadline, pause);
        EXIT WHEN pause IS NULL;
        CALL queue_internal.commit_and_wait(pause, committed);
        IF NOT committed THEN
            RAISE NOTICE 'task % is not waited for, since the transaction cannot be committed here', id
                USING HINT = 'Call queue.wait_result() outside a transaction block.';
            EXIT;
        END IF;
        SELECT o.state, o.result INTO state, result FROM queue_internal.outcome(id) AS o;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE queue.wait_result(bigint, interval, text, jsonb) IS
    'Waits until a task is finished, holding neither a transaction nor a snapshot; tells its state and result.';

CREATE FUNCTION queue_internal.wait_deadline(id bigint, timeout interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_id(id);
    IF timeout IS NULL THEN
        PERFORM queue_internal.raise_null('timeout');
    END IF;
    PERFORM queue_internal.check_delay('timeout', timeout);
    RETURN clock_timestamp() + timeout;
END
$$;
COMMENT ON FUNCTION queue_internal.wait_deadline(bigint, interval) IS
    'Checks the arguments of queue.wait_result(); returns until when it waits.';

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

CREATE FUNCTION queue_internal.next_pause(state text, deadline timestamptz, pause double precision)
RETURNS double precision
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    left_over double precision := extract(epoch FROM deadline - clock_timestamp());
BEGIN
    IF state IS NULL OR state IN ('completed', 'cancelled', 'failed') OR left_over <= 0 THEN
        RETURN NULL;
    END IF;
    RETURN least(coalesce(pause * 1.5, 0.005), 0.2, left_over);
END
$$;
COMMENT ON FUNCTION queue_internal.next_pause(text, timestamptz, double precision) IS
    'How many seconds queue.wait_result() waits until it looks again; null if it need not.';
