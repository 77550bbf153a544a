-- queue_internal.reap(max_tasks, after, max_rows)
--
--   Ends up to "max_tasks" attempts whose lease has expired, those that expired last first, and returns when the next
--   lease expires. It leaves attempts that cannot be ended, and after a second all others, for the next call. "reading"
--   is how long it read, without waits for locks.
--   Pieces:   with "max_rows" it reads only so many tasks in the order of their ids, after the id "after". "last" is
--             where to continue: "after" again if there may be more to end, null at the end of the table. So a caller
--             can do other work in between, however many tasks there are. Natively the tasks that ended count while
--             their index entries are there
--   Clock:    after the clock was set back, an existing lease may end years ahead. A lease that was given at a time
--             that is in the future now ends at most queue.max_lease from now
--   Touches:  queue.tasks (reads all of it, or the piece: leases are in no index, so that claims stay HOT)

CREATE FUNCTION queue_internal.reap(
    max_tasks bigint, after bigint DEFAULT NULL, max_rows integer DEFAULT NULL,
    OUT reaped bigint, OUT next_expiry timestamptz, OUT reading interval, OUT last bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    moment    CONSTANT timestamptz := clock_timestamp();
    most      CONSTANT bigint := least(coalesce(max_tasks, 2147483647), 2147483647);
    first     CONSTANT bigint := coalesce(after, -9223372036854775808);
    bound     bigint;
    final     bigint;
    read_rows bigint;
    due       bigint[];
    tried     integer := 0;
    upto      integer;
    ended     record;
    cut       timestamptz;
BEGIN
    reaped := 0;
    -- May wait for the table's lock.
    PERFORM FROM queue.tasks AS t LIMIT 0;
    reading := clock_timestamp() - moment;
    bound := queue_internal.id_bound(first, max_rows);
    SELECT max(t.id), count(*),
           array_agg(t.id ORDER BY t.lease_until DESC) FILTER (WHERE t.state = 'running' AND t.lease_until <= moment),
           min(t.lease_until) FILTER (WHERE t.state = 'running' AND t.lease_until > moment),
           max(t.lease_until) FILTER (WHERE t.state = 'running' AND t.updated_at > moment + interval '1 minute')
    INTO final, read_rows, due, next_expiry, cut
    -- A whole table is read without its index, which takes half as long.
    FROM (SELECT l.id, l.state, l.lease_until, l.updated_at FROM queue.tasks AS l
          WHERE max_rows IS NULL AND l.id > first AND l.state = 'running'
          UNION ALL
          (SELECT l.id, l.state, l.lease_until, l.updated_at FROM queue.tasks AS l
           WHERE max_rows IS NOT NULL AND l.id > first AND l.id <= coalesce(bound, 9223372036854775807)
           ORDER BY l.id LIMIT max_rows)) AS t;
    reading := clock_timestamp() - moment - reading;
    -- Tasks that others have inserted since the bound was read may come before it, and LIMIT left out as many.
    last := CASE WHEN read_rows >= max_rows THEN final ELSE bound END;
    WHILE tried < cardinality(due) LOOP
        IF reaped >= most THEN
            -- The next call does the rest of the piece.
            last := first;
            next_expiry := moment;
            EXIT;
        END IF;
        upto := least(cardinality(due), tried + most - reaped);
        SELECT * INTO ended FROM queue_internal.expire(
            due[tried + 1:upto], CASE WHEN max_rows IS NOT NULL THEN interval '50 ms' END);
        reaped := reaped + ended.expired;
        tried := upto;
        IF ended.rest <> '{}' THEN
            -- The next call does the rest of the piece.
            last := first;
            next_expiry := moment;
            EXIT;
        END IF;
        -- A task that another transaction has locked is checked again after a growing pause, as in expiry.rs.
        next_expiry := least(next_expiry, (
            SELECT min(CASE WHEN e > moment THEN e
                            ELSE moment + least(greatest(moment - e, interval '100 ms'), interval '5 seconds') END)
            FROM unnest(ended.lease_ends) AS e));
        IF tried < cardinality(due) AND reaped < most AND clock_timestamp() > moment + interval '1 second' THEN
            next_expiry := moment;
            EXIT;
        END IF;
    END LOOP;
    IF cut IS NOT NULL THEN
        cut := moment + queue_internal.setting('max_lease', '7d')::interval;
        UPDATE queue.tasks AS t SET lease_until = cut
        WHERE t.id IN (
            SELECT l.id FROM queue.tasks AS l
            WHERE l.id > first AND l.id <= final
              AND l.state = 'running' AND l.lease_until > cut AND l.updated_at > moment + interval '1 minute'
            ORDER BY l.id FOR NO KEY UPDATE SKIP LOCKED);
        next_expiry := least(next_expiry, cut);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.reap IS
    'Ends attempts whose lease has expired; returns how many, when the next lease expires, how long it read, and where '
    'to continue.';
