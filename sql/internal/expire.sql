-- queue_internal.expire(ids)
--
--   Ends the attempts of those of the tasks whose lease ran out, without waiting for anybody's lock.
--   Returns:  in "expired" how many; in "running" those that run on, because somebody else has locked
--             them or they have another lease by now, and in "ends" when that ends
--   Touches:  queue.tasks

CREATE FUNCTION queue_internal.expire(ids bigint[], OUT expired bigint, OUT running bigint[], OUT ends timestamptz[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    task queue.tasks;
BEGIN
    expired := 0;
    FOR task IN
        SELECT t.* FROM queue.tasks AS t
        WHERE t.id = ANY (ids) AND t.state = 'running' AND t.lease_until <= clock_timestamp()
        ORDER BY t.id
        FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM queue_internal.end_attempt(task, 'lease expired', '0', false);
        expired := expired + 1;
    END LOOP;
    IF expired < cardinality(ids) THEN
        SELECT array_agg(t.id), array_agg(t.lease_until) INTO running, ends FROM queue.tasks AS t
        WHERE t.id = ANY (ids) AND t.state = 'running';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.expire(bigint[]) IS
    'Ends attempts whose lease ran out, of the tasks given; how many, and which of them run on.';
