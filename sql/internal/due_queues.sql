-- queue_internal.due_queues(since, until)
--
--   Returns the queues, except paused ones, in which a queued task became due after "since" and up to "until", or in
--   which an event is due; and the next time after "until" at which a task or a postponed event is due in any queue.
--   It reads a few entries of the order index for each queue and priority, however many tasks there are. A notification
--   is only a hint, so a queue counts as ready as well, and is checked again within a second, where that would read
--   much: of a queue with more than 100 priorities it reads only the first 100, and after 100 ms none; natively it reads
--   5,000 entries for each question, if they are all those of finished tasks or others that are not queued.

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
    most    CONSTANT integer := 5000;
    starts  CONSTANT boolean := queue_internal.has_scan_starts();
    name    text;
    after   bigint;
    bound   record;
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
        after := CASE WHEN starts THEN (queue_internal.get_scan_start(name)).event ELSE 0 END;
        IF EXISTS (SELECT FROM queue_internal.events AS e
                   WHERE e.queue = name AND (e.due_at, e.id) > ('-infinity', after) AND e.due_at <= until) THEN
            ready := ready || name;
        END IF;
        -- A postponed event.
        SELECT e.due_at INTO later FROM queue_internal.events AS e
        WHERE e.queue = name AND e.due_at > until ORDER BY e.due_at LIMIT 1;
        next_run_at := least(next_run_at, later);
        FOR in_bucket IN 0 .. queue_internal.buckets() - 1 LOOP
            level := queue_internal.next_level(in_bucket, name, -2147483648);
            checked := 0;
            WHILE level IS NOT NULL LOOP
                checked := checked + 1;
                IF checked > 100 OR clock_timestamp() > stop THEN
                    ready := CASE WHEN name = ANY (ready) THEN ready ELSE ready || name END;
                    next_run_at := least(next_run_at, until + interval '1 second');
                    EXIT;
                END IF;
                IF name <> ALL (ready) THEN
                    SELECT b.run_at, b.id INTO bound
                    FROM queue_internal.order_bound(in_bucket, name, level, since, most) AS b;
                    IF bound.run_at <= until OR EXISTS (
                        SELECT FROM queue.tasks AS t
                        WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = name AND t.priority = level
                          AND t.admission < 2 AND t.run_at > since AND t.run_at <= until AND t.state = 'queued')
                    THEN
                        ready := ready || name;
                    END IF;
                END IF;
                SELECT b.run_at, b.id INTO bound
                FROM queue_internal.order_bound(in_bucket, name, level, until, most) AS b;
                SELECT t.run_at INTO later FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = name AND t.priority = level
                  AND t.admission < 2 AND t.run_at > until
                  AND (t.run_at, t.id) <= (coalesce(bound.run_at, 'infinity'), coalesce(bound.id, 9223372036854775807))
                ORDER BY t.run_at, t.id LIMIT 1;
                IF NOT FOUND THEN
                    later := greatest(bound.run_at, CASE WHEN bound.id IS NOT NULL THEN until + interval '1 second' END);
                END IF;
                next_run_at := least(next_run_at, later);
                level := CASE WHEN level < 2147483647 THEN queue_internal.next_level(in_bucket, name, level + 1) END;
            END LOOP;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.due_queues IS
    'Returns the queues in which tasks became due in an interval, and when the next task becomes due.';
