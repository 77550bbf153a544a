-- queue_internal.due_queues(since, until)
--
--   Returns the queues, except paused ones, in which a queued task became due after "since" and up to "until", or in
--   which an event is due; and the next time after "until" at which a task or a postponed event is due in any queue. It
--   reads one entry of the order index for each queue and priority, however many tasks there are. Of a queue with more
--   than 100 priorities it reads only the first 100, and after 100 ms none; such a queue counts as ready and is checked
--   again within a second, because a notification is only a hint.

CREATE FUNCTION queue_internal.due_queues(
    since timestamptz, until timestamptz, OUT ready text[], OUT next_run_at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    stop    CONSTANT timestamptz := clock_timestamp() + interval '100 ms';
    name    text;
    level   integer;
    later   timestamptz;
    checked integer;
BEGIN
    ready := '{}';
    FOR name IN SELECT q.name FROM queue.queues AS q WHERE q.paused_at IS NULL LOOP
        IF clock_timestamp() > stop THEN
            ready := ready || name;
            next_run_at := least(next_run_at, until + interval '1 second');
            CONTINUE;
        END IF;
        IF EXISTS (SELECT FROM queue_internal.events AS e WHERE e.queue = name AND e.due_at <= until) THEN
            ready := ready || name;
        END IF;
        -- A postponed event.
        SELECT e.due_at INTO later FROM queue_internal.events AS e
        WHERE e.queue = name AND e.due_at > until ORDER BY e.due_at LIMIT 1;
        next_run_at := least(next_run_at, later);
        FOR in_bucket IN 0 .. queue_internal.buckets() - 1 LOOP
            SELECT f.level INTO level
            FROM queue_internal.first_task(in_bucket, name, -2147483648, '-infinity', false) AS f;
            checked := 0;
            WHILE level IS NOT NULL LOOP
                checked := checked + 1;
                IF checked > 100 OR clock_timestamp() > stop THEN
                    ready := CASE WHEN name = ANY (ready) THEN ready ELSE ready || name END;
                    next_run_at := least(next_run_at, until + interval '1 second');
                    EXIT;
                END IF;
                IF name <> ALL (ready) AND EXISTS (
                    SELECT FROM queue.tasks AS t
                    WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = name AND t.priority = level
                      AND t.admission < 2 AND t.run_at > since AND t.run_at <= until AND t.state = 'queued')
                THEN
                    ready := ready || name;
                END IF;
                SELECT t.run_at INTO later FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = name AND t.priority = level
                  AND t.admission < 2 AND t.run_at > until
                ORDER BY t.run_at LIMIT 1;
                next_run_at := least(next_run_at, later);
                SELECT t.priority INTO level FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = name AND t.admission < 2
                  AND t.priority > level ORDER BY t.priority LIMIT 1;
            END LOOP;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.due_queues IS
    'Returns the queues in which tasks became due in an interval, and when the next task becomes due.';
