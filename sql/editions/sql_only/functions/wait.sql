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
    pause    double precision := queue_internal.vain_pause(queues, deadline);
    first    bigint;
BEGIN
    -- Without a COMMIT, which a transaction block does not allow: this has something to return at once.
    PERFORM pg_catalog.pg_sleep(pause);
    LOOP
        first := queue_internal.first_ready(queues);
        ready := first IS NOT NULL;
        EXIT WHEN ready;
        pause := queue_internal.next_pause(pause, deadline);
        EXIT WHEN pause IS NULL;
        COMMIT;
        PERFORM pg_catalog.pg_sleep(pause);
        -- One of them may have been dropped.
        PERFORM queue_internal.check_wait(queues, timeout);
    END LOOP;
    IF ready THEN
        PERFORM pg_catalog.set_config('queue_wait.ready', pg_catalog.concat(first, ' ', pause), false);
    END IF;
END
$$;
COMMENT ON PROCEDURE queue.wait(text[], interval, boolean) IS
    'Waits until there is something to claim from any of the queues.';

-- What the session found last and has not claimed is locked, as a rule: a session that waits and claims in turn pauses
-- before it is told of the same again, and longer each time.
CREATE FUNCTION queue_internal.vain_pause(queues text[], deadline timestamptz) RETURNS float8
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept CONSTANT text[] := string_to_array(current_setting('queue_wait.ready', true), ' ');
BEGIN
    IF kept[1] = queue_internal.first_ready(queues)::text THEN
        RETURN coalesce(queue_internal.next_pause(kept[2]::float8, deadline), 0);
    END IF;
    RETURN 0;
END
$$;
COMMENT ON FUNCTION queue_internal.vain_pause(text[], timestamptz) IS
    'How long to sleep before the first look: not at all, unless it would find what the last wait of the session found.';

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
