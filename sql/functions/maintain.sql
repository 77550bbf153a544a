-- CALL queue.maintain()
--
--   Locks:    short transactions of up to 1000 tasks each, none of which waits for a lock for longer than a second
--   Bounds:   each part works for a minute at most, and leaves the rest to the next call; the search for lost events
--             runs to its end
--   In time:  due schedules run first, and again between the transactions of the other parts, so that no schedule waits
--             for the rest of the maintenance. They get at most half of the time, and what is left of those that are far
--             behind runs last, so that the rest of the maintenance does not wait for them either
--   Counting: the SQL-only edition counts many tasks at the end, in one transaction (count_all)
--   Failing:  a part that fails is reported as a WARNING and does not affect the others
--   Why it has no SET clause: a procedure with one cannot commit. So it qualifies all that it uses.

CREATE PROCEDURE queue.maintain()
LANGUAGE plpgsql AS $$
DECLARE
    part  pg_catalog.text;
    until pg_catalog.timestamptz;
    rest  pg_catalog.timestamptz;
    late  pg_catalog.timestamptz := '-infinity';
    late_id pg_catalog.int8 := 0;
    pos queue_internal.sweep_position;
BEGIN
    -- Events are only processed at READ COMMITTED. COMMIT AND CHAIN keeps the isolation level.
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    rest := queue_internal.maintain_schedules(NULL);
    COMMIT AND CHAIN;
    until := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval;
    LOOP
        SELECT d.last, d.last_id INTO late, late_id FROM queue_internal.maintain_deadlines(late, late_id) AS d;
        COMMIT AND CHAIN;
        rest := queue_internal.maintain_schedules(rest);
        COMMIT AND CHAIN;
        EXIT WHEN late IS NULL OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) until;
    END LOOP;
    FOREACH part IN ARRAY ARRAY[
        'leases', 'dependents', 'events', 'partitions', 'history', 'dead letters', 'keys', 'starts', 'schedules', 'lanes'
    ] LOOP
        -- Sweeps first, so that the events it leaves are processed as well.
        WHILE part OPERATOR(pg_catalog.=) 'events' LOOP
            pos := queue_internal.maintain_sweep(pos);
            COMMIT AND CHAIN;
            rest := queue_internal.maintain_schedules(rest);
            COMMIT AND CHAIN;
            EXIT WHEN pos IS NULL;
        END LOOP;
        until := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval;
        WHILE queue_internal.maintain_part(part) LOOP
            COMMIT AND CHAIN;
            IF part OPERATOR(pg_catalog.<>) 'schedules' THEN
                rest := queue_internal.maintain_schedules(rest);
                COMMIT AND CHAIN;
            END IF;
            EXIT WHEN pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) until;
        END LOOP;
        COMMIT AND CHAIN;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE queue.maintain IS
'Does one round of the background worker''s work, for databases without one: requeues tasks whose lease has expired, ends
tasks that were not claimed by their start deadline, runs the schedules that are due, unblocks tasks that waited for a
predecessor or their turn, creates and drops partitions of the history, and deletes old dead letters, keys, steps and
events. Call it once a minute, from pg_cron or another scheduler. Only the owner of the extension can call it, because
it creates and drops tables.

Errors: 2D000: it was called in a transaction block. A part that fails raises a WARNING, and the others still run.';

-- A call takes up to 100 ms if schedules are behind, and next to nothing if none is due.
CREATE FUNCTION queue_internal.maintain_schedules(rest timestamptz) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    begun CONSTANT timestamptz := clock_timestamp();
    ended timestamptz;
BEGIN
    IF begun < rest THEN
        RETURN rest;
    END IF;
    PERFORM queue_internal.maintain_part('schedules');
    ended := clock_timestamp();
    RETURN ended + (ended - begun);
END
$$;
COMMENT ON FUNCTION queue_internal.maintain_schedules IS
    'Runs due schedules between the other parts of queue.maintain(), unless it is before the time given; returns until '
    'when the other parts have their turn.';

CREATE FUNCTION queue_internal.maintain_sweep(pos queue_internal.sweep_position)
RETURNS queue_internal.sweep_position
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    RETURN queue_internal.sweep(pos, 1000, again => false);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'queue.maintain() could not finish the search for lost events: %', SQLERRM;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.maintain_sweep IS
    'Does one transaction of the search for lost events in queue.maintain(); returns where to continue.';

-- Continues after the last task that it tried, so that tasks that cannot be ended now do not delay the others.
CREATE FUNCTION queue_internal.maintain_deadlines(
    since timestamptz, since_id bigint, OUT last timestamptz, OUT last_id bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    SELECT e.last, e.last_id INTO last, last_id FROM queue_internal.expire_unstarted(1000, since, since_id) AS e;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'queue.maintain() could not finish its part "deadlines": %', SQLERRM;
END
$$;
COMMENT ON FUNCTION queue_internal.maintain_deadlines IS
    'Ends tasks that were not started in time, in one transaction of queue.maintain(); returns where to continue.';

CREATE FUNCTION queue_internal.maintain_part(part text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    CASE part
        WHEN 'leases' THEN RETURN (queue_internal.reap(1000)).reaped >= 1000;
        WHEN 'schedules' THEN RETURN (queue_internal.fire_schedules(1000, '30 seconds')).last IS NOT NULL;
        -- Before the sweep, which would leave an event for each.
        WHEN 'dependents' THEN RETURN queue_internal.notify_rests() > 0;
        WHEN 'events' THEN RETURN queue_internal.process_all_events(1000) > 0;
        WHEN 'partitions' THEN PERFORM queue_internal.extend_history();
        WHEN 'history' THEN RETURN queue_internal.retire_history(1000);
        WHEN 'dead letters' THEN RETURN queue_internal.retire_dead_letters(1000);
        WHEN 'keys' THEN RETURN queue_internal.retire_keys(1000);
        WHEN 'starts' THEN RETURN queue_internal.retire_group_starts(1000);
        WHEN 'lanes' THEN PERFORM queue_internal.sweep_lanes();
    END CASE;
    RETURN false;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'queue.maintain() could not finish its part "%": %', part, SQLERRM;
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue_internal.maintain_part IS
    'Does one transaction of a part of queue.maintain(); returns whether there may be more to do.';
