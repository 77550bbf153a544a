-- queue_internal.is_ready(queues)
--
--   Whether a claim from any of the queues would get something. Reads only; like a claim it walks the order of each
--   bucket one priority at a time.

CREATE FUNCTION queue_internal.is_ready(queues text[]) RETURNS boolean
LANGUAGE plpgsql
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
BEGIN
    FOR source IN SELECT q.* FROM queue.queues AS q WHERE q.name = ANY (queues) AND q.paused_at IS NULL
                    AND queue_internal.has_right('worker', q.name)
    LOOP
        IF source.rate_limit IS NOT NULL AND NOT EXISTS (
            SELECT FROM queue_internal.bucket_times(source, moment, 1)) THEN
            PERFORM queue_internal.announce_token(source);
            CONTINUE;
        END IF;
        CONTINUE WHEN source.max_running IS NOT NULL
                      AND NOT EXISTS (SELECT FROM queue_internal.free_slots(source, 1))
                      AND NOT queue_internal.has_expired_holder(source, moment);
        IF EXISTS (SELECT FROM queue_internal.events AS e WHERE e.queue = source.name AND e.due_at <= moment) THEN
            RETURN true;
        END IF;
        FOR in_bucket IN 0 .. queue_internal.buckets() - 1 LOOP
            SELECT f.level INTO level FROM queue_internal.first_task(in_bucket, source.name, false) AS f;
            WHILE level IS NOT NULL LOOP
                IF EXISTS (
                    SELECT FROM queue.tasks AS t
                    WHERE t.bucket = in_bucket AND t.queue = source.name AND t.priority = level AND t.gate < 2
                      AND t.run_at <= moment
                      AND (t.state = 'queued' OR t.state = 'running' AND t.lease_until <= moment))
                THEN
                    RETURN true;
                END IF;
                SELECT n.level INTO level FROM queue_internal.next_level(in_bucket, source.name, level) AS n;
            END LOOP;
        END LOOP;
    END LOOP;
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue_internal.is_ready(text[]) IS
    'Whether there is something to claim from any of the queues.';
