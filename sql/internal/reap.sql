-- queue_internal.reap(max_tasks)
--
--   Ends up to "max_tasks" attempts whose lease ran out, without waiting for anybody's lock, and
--   tells when the next lease expires. Those that cannot be ended are left for the next time.
--   Touches:  queue.tasks (reads all of it: leases are in no index, so that claims stay HOT)

CREATE FUNCTION queue_internal.reap(max_tasks bigint, OUT reaped bigint, OUT next_expiry timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    wanted bigint;
    tried  bigint[] := '{}';
    failed bigint[] := '{}';
    batch  bigint[];
    ended  record;
BEGIN
    reaped := 0;
    LOOP
        wanted := max_tasks - reaped;
        batch := ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.state = 'running' AND t.lease_until <= moment AND t.id <> ALL (tried)
            LIMIT wanted);
        SELECT * INTO ended FROM queue_internal.expire(batch);
        reaped := reaped + ended.expired;
        tried := tried || batch;
        failed := failed || ended.failed;
        EXIT WHEN ended.expired = wanted OR cardinality(batch) < wanted;
    END LOOP;
    SELECT min(t.lease_until) INTO next_expiry FROM queue.tasks AS t
    WHERE t.state = 'running' AND t.id <> ALL (failed);
END
$$;
COMMENT ON FUNCTION queue_internal.reap(bigint) IS
    'Ends attempts whose lease ran out; returns how many, and when the next one expires.';
