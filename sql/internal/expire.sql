-- queue_internal.expire(ids)
--
--   Ends the attempts of those of the tasks whose lease ran out, without waiting for anybody's lock;
--   returns how many, which ones run on, with the ends of their leases, and which could not be ended, if any.
--   Those that run on: somebody else has them locked, or has extended or claimed them.
--   Promise:  a task that cannot be ended is in no other's way, and the log says why: by a constraint or
--             a trigger that somebody added, or by what a role with rights on its queue has written
--   Touches:  queue.tasks

CREATE FUNCTION queue_internal.expire(
    ids bigint[], OUT expired bigint, OUT running bigint[], OUT lease_ends timestamptz[], OUT failed bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task_id bigint;
BEGIN
    failed := '{}';
    BEGIN
        expired := queue_internal.end_expired(ids);
    EXCEPTION WHEN OTHERS THEN
        expired := 0;
        FOREACH task_id IN ARRAY ids LOOP
            BEGIN
                expired := expired + queue_internal.end_expired(ARRAY[task_id]);
            EXCEPTION WHEN OTHERS THEN
                failed := failed || task_id;
                RAISE WARNING 'the lease of task % ran out, but its attempt cannot be ended: %', task_id, SQLERRM;
            END;
        END LOOP;
    END;
    IF expired + cardinality(failed) < cardinality(ids) THEN
        SELECT array_agg(t.id), array_agg(t.lease_until) INTO running, lease_ends
        FROM queue.tasks AS t WHERE t.id = ANY (ids) AND t.id <> ALL (failed) AND t.state = 'running';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.expire(bigint[]) IS
    'Ends attempts whose lease ran out, of the tasks given; returns how many, and which it could not end.';

CREATE FUNCTION queue_internal.end_expired(ids bigint[]) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task  queue.tasks;
    ended bigint := 0;
BEGIN
    FOR task IN
        SELECT t.* FROM queue.tasks AS t
        WHERE t.id = ANY (ids) AND t.state = 'running' AND t.lease_until <= clock_timestamp()
        ORDER BY t.id
        FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM queue_internal.end_attempt(task, 'lease expired', '0', false);
        ended := ended + 1;
    END LOOP;
    RETURN ended;
END
$$;
COMMENT ON FUNCTION queue_internal.end_expired(bigint[]) IS
    'Ends attempts whose lease ran out, all of them or none; returns how many.';
