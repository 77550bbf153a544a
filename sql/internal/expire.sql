-- queue_internal.expire(ids)
--
--   Ends the attempts of those of the tasks whose lease ran out, without waiting for anybody's lock;
--   returns how many, and which ones still run, with the ends of their leases: somebody else has them
--   locked, or has extended or claimed them.
--   Touches:  queue.tasks

CREATE FUNCTION queue_internal.expire(ids bigint[], OUT expired bigint, OUT running bigint[], OUT lease_ends timestamptz[])
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
        SELECT array_agg(t.id), array_agg(t.lease_until) INTO running, lease_ends
        FROM queue.tasks AS t WHERE t.id = ANY (ids) AND t.state = 'running';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.expire(bigint[]) IS
    'Ends attempts whose lease ran out, of the tasks given; returns how many, and which still run.';
