-- queue_internal.reap(max_tasks)
--
--   Ends up to "max_tasks" attempts whose lease ran out, without waiting for anybody's lock, and
--   tells when the next lease expires.
--   Touches:  queue.tasks (reads all of it: leases are in no index, so that claims stay HOT)

CREATE FUNCTION queue_internal.reap(max_tasks bigint, OUT reaped bigint, OUT next_expiry timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    task   queue.tasks;
BEGIN
    reaped := 0;
    FOR task IN
        SELECT t.* FROM queue.tasks AS t
        WHERE t.state = 'running' AND t.lease_until <= moment
        LIMIT max_tasks
        FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM queue_internal.end_attempt(task, 'lease expired', '0', false);
        reaped := reaped + 1;
    END LOOP;
    SELECT min(t.lease_until) INTO next_expiry FROM queue.tasks AS t WHERE t.state = 'running';
END
$$;
COMMENT ON FUNCTION queue_internal.reap(bigint) IS
    'Ends attempts whose lease ran out; returns how many, and when the next one expires.';
