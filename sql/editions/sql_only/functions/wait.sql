-- queue.wait
--
--   Touches:  queue.queues, queue.tasks (reads)
--   How:      it reads, commits, sleeps, and reads again; the pause is 5 ms at first and grows up to the setting
--             "queue.poll_interval". No snapshot gets older than a pause
--   Why it has no SET clause, and no operators: see queue.maintain().

CREATE PROCEDURE queue.wait(
    queue       text     DEFAULT 'default',
    timeout     interval DEFAULT '30 seconds',
    INOUT ready boolean  DEFAULT NULL,
    worker      text     DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    -- For errors that name this argument.
    PERFORM queue_internal.check_wait(queue, timeout, worker);
    CALL queue.wait(ARRAY[queue], timeout, ready, worker);
END
$$;
COMMENT ON PROCEDURE queue.wait(text, interval, boolean, text) IS
'Waits until a task of the queue can be claimed, and sets ready to true; or until the timeout ends, and sets it to
false. It claims nothing: another worker may be quicker, so queue.claim can return no rows afterwards. One new task
wakes one waiting session. It holds no transaction for longer than poll_interval. Needs the worker''s right on the
queue.

- queue: name of the queue. Default "default".
- timeout: how long to wait, at most 100 years. 0 returns at once. Default 30 seconds.
- ready: the result; pass nothing.
- worker: name of the worker, 1 to 128 bytes. Here queue.workers does not show who waits. Null (default) means none.

Errors: 42501: no right on the queue. QX002: the queue does not exist, or was dropped meanwhile. 2D000: in a
transaction block, if it would have to wait. 22004, 22023 or 54000: an argument is null, invalid or too large.';

-- The same for several queues.
CREATE PROCEDURE queue.wait(
    queues      text[],
    timeout     interval DEFAULT '30 seconds',
    INOUT ready boolean  DEFAULT NULL,
    worker      text     DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
    deadline pg_catalog.timestamptz := queue_internal.check_wait(queues, timeout, worker);
    pause    double precision := queue_internal.first_pause(queues, deadline);
    first    bigint;
BEGIN
    -- In the same CALL: queue.take has claimed in vain since. It gives up if this goes on in one transaction.
    IF pg_catalog.split_part(pg_catalog.current_setting('queue_wait.ready', true), ' ', 3)
       OPERATOR(pg_catalog.=) queue_internal.moment_of_call()
       AND pg_catalog.clock_timestamp() OPERATOR(pg_catalog.<) deadline THEN
        COMMIT;
    END IF;
    -- Sleeps without a COMMIT, which a transaction block does not allow: there may be something to return at once.
    PERFORM pg_catalog.pg_sleep(pause);
    LOOP
        first := queue_internal.first_ready(queues);
        ready := first IS NOT NULL;
        EXIT WHEN ready;
        pause := queue_internal.next_pause(pause, deadline);
        EXIT WHEN pause IS NULL;
        COMMIT;
        PERFORM pg_catalog.pg_sleep(pause);
        -- A queue may have been dropped.
        PERFORM queue_internal.check_wait(queues, timeout, worker);
    END LOOP;
    IF ready THEN
        PERFORM pg_catalog.set_config('queue_wait.ready', pg_catalog.concat(
            first, ' ', pause, ' ', queue_internal.moment_of_call()), false);
    END IF;
END
$$;
COMMENT ON PROCEDURE queue.wait(text[], interval, boolean, text) IS
'Waits until a task of any of the queues can be claimed, or until the timeout ends. Needs the worker''s right on each of
the queues.

- queues: names of the queues, at least one.
- timeout, ready, worker: as for one queue.

Errors: as for one queue.';

CREATE FUNCTION queue_internal.moment_of_call() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN concat(date_part('epoch', statement_timestamp()), '/', date_part('epoch', now()));
END
$$;
COMMENT ON FUNCTION queue_internal.moment_of_call IS
    'Returns what two calls have in common that are in the same statement and the same transaction.';

-- What the last wait of the session found and a claim did not get is usually locked. So a session that waits and
-- claims in turn pauses before it gets the same result again, longer each time.
CREATE FUNCTION queue_internal.first_pause(queues text[], deadline timestamptz) RETURNS float8
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
COMMENT ON FUNCTION queue_internal.first_pause IS
    'Returns how long to sleep before the first check: 0 unless it would find the same as the last wait of the session.';

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
COMMENT ON FUNCTION queue_internal.next_pause IS
    'Returns how long to sleep after a pause of so many seconds; null after the deadline.';
