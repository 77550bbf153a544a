-- queue_internal.expire(ids)
--
--   Ends the attempts of those of the tasks whose lease ran out, without waiting for anybody's lock;
--   returns how many, and which ones somebody else has locked, if any.
--   Touches:  queue.tasks

CREATE FUNCTION queue_internal.expire(ids bigint[], OUT expired bigint, OUT locked bigint[])
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
        locked := ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.id = ANY (ids) AND t.state = 'running' AND t.lease_until <= clock_timestamp());
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.expire(bigint[]) IS
    'Ends attempts whose lease ran out, of the tasks given; returns how many, and which are locked.';
