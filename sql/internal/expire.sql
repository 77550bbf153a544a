-- queue_internal.expire(ids)
--
--   Ends the attempts of those of the tasks whose lease ran out, without waiting for anybody's lock;
--   returns how many.
--   Touches:  queue.tasks

CREATE FUNCTION queue_internal.expire(ids bigint[]) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    task    queue.tasks;
    expired bigint := 0;
BEGIN
    FOR task IN
        SELECT t.* FROM queue.tasks AS t
        WHERE t.id = ANY (ids) AND t.state = 'running' AND t.lease_until <= clock_timestamp()
        ORDER BY t.id
        FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM queue_internal.end_attempt(task, 'lease expired', '0', false);
        expired := expired + 1;
    END LOOP;
    RETURN expired;
END
$$;
COMMENT ON FUNCTION queue_internal.expire(bigint[]) IS
    'Ends attempts whose lease ran out, of the tasks given; returns how many.';
