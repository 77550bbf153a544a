-- queue_internal.due_queues(since, until)
--
--   The queues, not paused, in which a queued task came due after "since" and up to "until" or in which an event
--   is due for the next claim, and the next run_at beyond "until" in any queue. Of a queue with more than 100 priorities,
--   only the first 100 are looked at: it counts as ready, and is looked at again within a second.

CREATE FUNCTION queue_internal.due_queues(
    since timestamptz, until timestamptz, OUT ready text[], OUT next_run_at timestamptz)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    name  text;
    level integer;
    later timestamptz;
    looks integer;
BEGIN
    ready := '{}';
    FOR name IN SELECT q.name FROM queue.queues AS q WHERE q.paused_at IS NULL LOOP
        IF EXISTS (SELECT FROM queue_internal.events AS e WHERE e.queue = name AND e.due_at <= until) THEN
            ready := ready || name;
        END IF;
        -- One that was postponed.
        SELECT e.due_at INTO later FROM queue_internal.events AS e
        WHERE e.queue = name AND e.due_at > until ORDER BY e.due_at LIMIT 1;
        next_run_at := least(next_run_at, later);
        FOR in_bucket IN 0 .. queue_internal.buckets() - 1 LOOP
            SELECT f.level INTO level FROM queue_internal.first_task(in_bucket, name, false) AS f;
            looks := 0;
            WHILE level IS NOT NULL LOOP
                looks := looks + 1;
                IF looks > 100 THEN
                    ready := CASE WHEN name = ANY (ready) THEN ready ELSE ready || name END;
                    next_run_at := least(next_run_at, until + interval '1 second');
                    EXIT;
                END IF;
                IF name <> ALL (ready) AND EXISTS (
                    SELECT FROM queue.tasks AS t
                    WHERE t.bucket = in_bucket AND t.queue = name AND t.priority = level AND t.gate < 2
                      AND t.run_at > since AND t.run_at <= until AND t.state = 'queued')
                THEN
                    ready := ready || name;
                END IF;
                SELECT t.run_at INTO later FROM queue.tasks AS t
                WHERE t.bucket = in_bucket AND t.queue = name AND t.priority = level AND t.gate < 2
                  AND t.run_at > until
                ORDER BY t.run_at LIMIT 1;
                next_run_at := least(next_run_at, later);
                SELECT n.level INTO level FROM queue_internal.next_level(in_bucket, name, level) AS n;
            END LOOP;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.due_queues(timestamptz, timestamptz) IS
    'The queues in which tasks came due in a span of time, and when the next task comes due.';
