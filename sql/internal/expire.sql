-- queue_internal.expire(ids, patience)
--
--   Ends the attempts of those of the tasks whose lease has expired, and the tasks whose start deadline has passed
--   (deadlines.sql). Returns how many; which tasks still run, with the
--   ends of their leases; and which could not be ended, if any. A task still runs if another transaction has it locked,
--   or has extended or claimed it. A transaction that has pushed after a task prevents its end, but not that it is
--   requeued.
--   Promise:  a task that cannot be ended, because of a constraint or a trigger that somebody added or because of what
--             was written into its row, does not delay others. The log says why, at first and then once an hour, for a few
--             tasks of each queue (may_log.sql)
--   Time:     begins with no further task after "patience", null for no limit. "rest" is what it did not come to
--   Locks:    waits 100 ms for one, and 300 ms for all of them. A task that could not be ended because of them still
--             runs. "tried" is how many of the tasks given it tried before that
--   Touches:  queue.tasks

CREATE FUNCTION queue_internal.expire(
    ids bigint[], patience interval DEFAULT NULL,
    OUT rest bigint[], OUT expired bigint, OUT running bigint[], OUT lease_ends timestamptz[], OUT failed bigint[],
    OUT tried integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET lock_timeout = '100ms'
AS $$
DECLARE
    started timestamptz := clock_timestamp();
    task_id bigint;
    stuck   record;
BEGIN
    failed := '{}';
    rest := '{}';
    tried := cardinality(ids);
    BEGIN
        SELECT * INTO expired, rest FROM queue_internal.end_expired(ids, started + patience);
    EXCEPTION WHEN OTHERS THEN
        expired := 0;
        tried := 0;
        -- The time starts after the first attempt. If that took longer, no task would be tried here.
        started := clock_timestamp();
        FOREACH task_id IN ARRAY ids LOOP
            EXIT WHEN clock_timestamp() > started + interval '300 ms';
            tried := tried + 1;
            BEGIN
                expired := expired + (queue_internal.end_expired(ARRAY[task_id], NULL)).ended;
            EXCEPTION
                WHEN lock_not_available OR deadlock_detected OR serialization_failure THEN
                    NULL;
                WHEN OTHERS THEN
                    failed := failed || task_id;
                    SELECT t.queue, t.lease_until IS NULL AS unstarted,
                           CASE WHEN isfinite(coalesce(t.lease_until, t.start_by))
                                THEN extract(epoch FROM started - coalesce(t.lease_until, t.start_by))::bigint END AS overdue
                    INTO stuck FROM queue.tasks AS t WHERE t.id = task_id;
                    IF coalesce(stuck.overdue % 3600, 0) < 60 AND queue_internal.may_log('lease', stuck.queue) THEN
                        RAISE WARNING '% of task % expired, but % cannot be ended: %',
                            CASE WHEN stuck.unstarted THEN 'the start deadline' ELSE 'the lease' END, task_id,
                            CASE WHEN stuck.unstarted THEN 'it' ELSE 'its attempt' END, SQLERRM;
                    END IF;
            END;
        END LOOP;
    END;
    IF expired + cardinality(failed) + cardinality(rest) < cardinality(ids) THEN
        SELECT array_agg(t.id), array_agg(t.lease_until) INTO running, lease_ends
        FROM queue.tasks AS t WHERE t.id = ANY (ids) AND t.id <> ALL (failed || rest) AND t.state = 'running';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.expire IS
    'Ends attempts whose lease has expired, and tasks whose start deadline has passed, of the tasks given; returns how '
    'many, and which it could not end.';

CREATE FUNCTION queue_internal.end_expired(ids bigint[], until timestamptz, OUT ended bigint, OUT rest bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task      queue.tasks;
    timed_out boolean;
BEGIN
    ended := 0;
    rest := '{}';
    FOR task IN
        SELECT t.* FROM queue.tasks AS t
        WHERE t.id = ANY (ids)
          AND (t.state = 'running' AND t.lease_until <= clock_timestamp()
               OR t.state <> 'running' AND t.token = 0 AND t.start_by <= clock_timestamp())
        ORDER BY t.id
        FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        IF task.state = 'running' THEN
            timed_out := queue_internal.has_timed_out(task);
            CONTINUE WHEN queue_internal.end_attempt(
                task, CASE WHEN timed_out THEN 'timed out' ELSE 'lease expired' END,
                CASE WHEN NOT timed_out THEN '0'::interval END, false, wait => false) IS NULL;
        ELSE
            CONTINUE WHEN NOT queue_internal.end_unstarted(task);
        END IF;
        ended := ended + 1;
        IF clock_timestamp() > until THEN
            rest := ARRAY(SELECT u.id FROM unnest(ids) AS u (id) WHERE u.id > task.id);
            EXIT;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.end_expired IS
    'Ends attempts whose lease has expired, and tasks that were not started, until a time; returns how many, and the tasks that it did not come to.';
