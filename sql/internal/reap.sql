-- queue_internal.reap(max_tasks)
--
--   Ends up to "max_tasks" attempts whose lease ran out, those that ran out last first, and tells when the next lease
--   expires. Those that cannot be ended are left for the next time; after a second of trying, so is the rest.
--   "reading" is how long it read, without what it waited for locks.
--   Clock:    where it was put back, a lease given before may end years ahead. No lease lasts longer from now
--             than queue.max_lease, if it was given at a time that is still to come.
--   Touches:  queue.tasks (reads all of it: leases are in no index, so that claims stay HOT)

CREATE FUNCTION queue_internal.reap(
    max_tasks bigint, OUT reaped bigint, OUT next_expiry timestamptz, OUT reading interval)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    most   CONSTANT bigint := coalesce(max_tasks, 9223372036854775807);
    wanted bigint;
    tried  bigint[] := '{}';
    failed bigint[] := '{}';
    batch  bigint[];
    ended  record;
    last   timestamptz;
    since  timestamptz;
BEGIN
    reaped := 0;
    reading := '0';
    -- Waits for the table's lock.
    PERFORM FROM queue.tasks AS t LIMIT 0;
    LOOP
        since := clock_timestamp();
        wanted := most - reaped;
        batch := ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.state = 'running' AND t.lease_until <= moment AND t.id <> ALL (tried)
            ORDER BY t.lease_until DESC LIMIT wanted);
        reading := reading + (clock_timestamp() - since);
        SELECT * INTO ended FROM queue_internal.expire(batch);
        reaped := reaped + ended.expired;
        tried := tried || batch;
        failed := failed || ended.failed;
        EXIT WHEN ended.expired = wanted OR cardinality(batch) < wanted
            OR ended.expired < cardinality(batch) AND clock_timestamp() > moment + interval '1 second';
    END LOOP;
    since := clock_timestamp();
    SELECT min(t.lease_until), max(t.lease_until) FILTER (WHERE t.updated_at > moment + interval '1 minute')
    INTO next_expiry, last FROM queue.tasks AS t WHERE t.state = 'running' AND t.id <> ALL (failed);
    reading := reading + (clock_timestamp() - since);
    IF last IS NOT NULL THEN
        last := moment + queue_internal.setting('max_lease', '7d')::interval;
        UPDATE queue.tasks AS t SET lease_until = last
        WHERE t.id IN (
            SELECT l.id FROM queue.tasks AS l
            WHERE l.state = 'running' AND l.lease_until > last AND l.updated_at > moment + interval '1 minute'
            ORDER BY l.id FOR NO KEY UPDATE SKIP LOCKED);
        next_expiry := least(next_expiry, last);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.reap(bigint) IS
    'Ends attempts whose lease ran out; returns how many, when the next one expires, and what it took to find them.';
