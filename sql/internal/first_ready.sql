-- queue_internal.first_ready(queues)
--
--   Returns what a claim from any of the queues would find first: the id of a task, or the negated id of an event; null
--   if a claim would return nothing. Another transaction may have it locked, and then a claim skips it: SQL cannot see
--   a lock without taking it. So wait() pauses if it finds the same again.
--   Reads only. Like claim_from, it scans the order index one priority at a time and never reads the scheduled tasks.

CREATE FUNCTION queue_internal.first_ready(queues text[]) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    source queue.queues;
    level  integer;
    first  bigint;
    ahead  record;
BEGIN
    <<queues>>
    FOR source IN SELECT q.* FROM queue.queues AS q WHERE q.name = ANY (queues) AND q.paused_at IS NULL
                    AND queue_internal.has_right('worker', q.name)
    LOOP
        IF source.rate_limit IS NOT NULL AND NOT EXISTS (
            SELECT FROM queue_internal.rate_bucket_times(source, moment, 1)) THEN
            PERFORM queue_internal.announce_start(source);
            CONTINUE;
        END IF;
        CONTINUE WHEN source.max_running IS NOT NULL
                      AND NOT EXISTS (SELECT FROM queue_internal.free_slots(source, 1))
                      AND NOT EXISTS (SELECT FROM queue_internal.expired_holders(source, moment));
        SELECT -e.id INTO first FROM queue_internal.events AS e
        WHERE e.queue = source.name AND e.due_at <= moment ORDER BY e.due_at, e.id LIMIT 1;
        IF FOUND THEN
            RETURN first;
        END IF;
        FOR in_bucket IN 0 .. queue_internal.buckets() - 1 LOOP
            SELECT f.level INTO level
            FROM queue_internal.first_task(in_bucket, source.name, -2147483648, '-infinity', false) AS f;
            WHILE level IS NOT NULL LOOP
                SELECT t.id, t.state, t.weight INTO ahead FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.priority = level
                  AND t.admission < 2 AND t.run_at <= moment
                  AND (t.state = 'queued' AND (t.token = 0 AND t.start_by <= moment) IS NOT TRUE
                       OR t.state = 'running' AND t.lease_until <= moment)
                ORDER BY t.run_at, t.id LIMIT 1;
                IF FOUND AND ahead.weight > 1 AND ahead.state = 'queued' AND source.rate_limit IS NOT NULL
                   AND queue_internal.starts_at(source, ahead.weight) > moment THEN
                    -- Lighter tasks behind it do not start before it. With ageing, those of the next level may come first.
                    PERFORM queue_internal.announce_start(source, ahead.weight);
                    CONTINUE queues WHEN source.ageing IS NULL;
                ELSIF FOUND THEN
                    RETURN ahead.id;
                END IF;
                SELECT t.priority INTO level FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.admission < 2
                  AND t.priority > level ORDER BY t.priority LIMIT 1;
            END LOOP;
        END LOOP;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.first_ready IS
    'Returns the id of the first task that can be claimed from any of the queues; null if there is none.';
