-- CALL queue.wait(queue, timeout, ready)
--
--   Waits until there is something to claim from the queue, or until "timeout" is over.
--   API:      public; needs the worker's right on the queue
--   Returns:  in "ready", whether there is something to claim
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments; 2D000 in a transaction block, if it
--             would have to wait
--   Touches:  queue.queues, queue.tasks (reads)
--   How:      it looks, commits, sleeps, and looks again, after 5 ms at first, then after longer and longer
--             pauses up to the setting "queue.poll_interval". No snapshot gets older than a pause.
--   Why it has no SET clause, and no operators: see queue.maintain().

CREATE PROCEDURE queue.wait(
    queue       text     DEFAULT 'default',
    timeout     interval DEFAULT '30 seconds',
    INOUT ready boolean  DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    -- For its errors, which name this argument.
    PERFORM queue_internal.check_wait(queue, timeout);
    CALL queue.wait(ARRAY[queue], timeout, ready);
END
$$;
COMMENT ON PROCEDURE queue.wait(text, interval, boolean) IS
    'Waits until there is something to claim, holding no transaction for longer than a pause.';

-- The same for several queues: until there is something in any of them.
CREATE PROCEDURE queue.wait(
    queues      text[],
    timeout     interval DEFAULT '30 seconds',
    INOUT ready boolean  DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
    deadline pg_catalog.timestamptz := queue_internal.check_wait(queues, timeout);
    pause    double precision := 0;
BEGIN
    LOOP
        ready := queue_internal.is_ready(queues);
        -- An event is for the next claim, which may not be able to process it yet: a session that waits and claims in
        -- turn shall not do so without a pause.
        EXIT WHEN ready AND (pause OPERATOR(pg_catalog.>) 0 OR NOT queue_internal.has_events(queues));
        pause := queue_internal.next_pause(pause, deadline);
        EXIT WHEN pause IS NULL;
        COMMIT;
        PERFORM pg_catalog.pg_sleep(pause);
        -- One of them may have been dropped.
        PERFORM queue_internal.check_wait(queues, timeout);
    END LOOP;
END
$$;
COMMENT ON PROCEDURE queue.wait(text[], interval, boolean) IS
    'Waits until there is something to claim from any of the queues.';

CREATE FUNCTION queue_internal.has_events(queues text[]) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM queue_internal.events AS e WHERE e.queue = ANY (queues) AND e.due_at <= clock_timestamp()
                     AND queue_internal.has_right('worker', e.queue));
END
$$;
COMMENT ON FUNCTION queue_internal.has_events(text[]) IS 'Whether a claim from any of the queues has events to process.';

CREATE FUNCTION queue_internal.next_pause(pause float8, deadline timestamptz) RETURNS float8
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    longest CONSTANT interval := queue_internal.setting('poll_interval', '200 ms');
    left_over CONSTANT float8 := extract(epoch FROM deadline - clock_timestamp());
BEGIN
    RETURN CASE WHEN left_over > 0
           THEN least(greatest(pause * 1.5, 0.005), extract(epoch FROM longest), left_over) END;
END
$$;
COMMENT ON FUNCTION queue_internal.next_pause(float8, timestamptz) IS
    'How long to sleep after a pause of so many seconds; null if the deadline is over.';
