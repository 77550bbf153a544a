-- Start deadlines: a task that no worker has claimed by "start_by" expires.
--
--   A claim raises the token of a task, and nothing lowers it. So a task with the token 0 has never been claimed. After its
--   first claim the deadline has no effect, even if the task is retried, released or suspended.
--   Promise:  no claim starts a task whose deadline has passed, by the server's clock. Claims check each row (claim_from,
--             and natively src/verbs/grant.rs)
--   Promise:  a task whose deadline has passed ends, whatever it waits for: the background worker sleeps until the next
--             deadline; queue.maintain(), queue.reap() and claims in SQL end it too. If it is locked, a later call does
--   Index:    tasks_start_by, which holds only tasks with a deadline

CREATE FUNCTION queue_internal.check_deadline(start_by timestamptz, ttl interval) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF start_by IS NOT NULL AND ttl IS NOT NULL THEN
        PERFORM queue_internal.raise_invalid('ttl', 'cannot be combined with "start_by"', ttl::text);
    ELSIF NOT isfinite(start_by) THEN
        PERFORM queue_internal.raise_invalid('start_by', 'must be finite', start_by::text);
    END IF;
    PERFORM queue_internal.check_delay('ttl', ttl);
    IF extract(epoch FROM ttl) = 0 THEN
        PERFORM queue_internal.raise_invalid('ttl', 'must be greater than zero', ttl::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_deadline IS 'Checks the start deadline of a task, which may be null.';

CREATE FUNCTION queue_internal.start_deadline(source queue.queues, start_by timestamptz, ttl interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(start_by, clock_timestamp() + make_interval(secs => extract(epoch FROM coalesce(ttl, source.ttl))::float8));
END
$$;
COMMENT ON FUNCTION queue_internal.start_deadline IS
    'Returns by when a task that is pushed now has to be started; null for no deadline.';

-- For tasks that were not inserted by a push.
CREATE FUNCTION queue_internal.set_start_by(source queue.queues, ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE queue.tasks AS t SET start_by = queue_internal.start_deadline(source, NULL, NULL) WHERE t.id = ANY (ids);
END
$$;
COMMENT ON FUNCTION queue_internal.set_start_by IS 'Gives new tasks the start deadline of their queue.';

-- The task is locked FOR NO KEY UPDATE. Returns false if another transaction has pushed after it or has its key locked, or
-- if a dump has brought it before its queue.
CREATE FUNCTION queue_internal.end_unstarted(task queue.tasks) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    manner CONSTANT text := (SELECT q.on_expired FROM queue.queues AS q WHERE q.name = task.queue);
BEGIN
    IF manner IS NULL OR NOT queue_internal.lock_to_end(task.id, false) THEN
        RETURN false;
    END IF;
    task.errors := queue_internal.with_error(task, 'expired');
    IF manner = 'cancel' THEN
        PERFORM queue_internal.cancel_now(task);
    ELSE
        PERFORM queue_internal.move_to_dead_letters(task);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.end_unstarted IS
    'Ends a task whose start deadline has passed, as the queue says; false if it could not.';

-- Ends up to "max_tasks" tasks whose start deadline has passed, null for all, in the order of their deadlines, and returns
-- the next deadline.
--   Pieces:   continues after the deadline "since" and the id "since_id". Natively it reads at most "max_entries" index
--             entries. "last" and "last_id" are where to continue; null if no deadline up to "until" is left
--   Locks:    "skipped" says whether some tasks could not be ended. They are read again by a call that starts before them
CREATE FUNCTION queue_internal.expire_unstarted(
    max_tasks integer, since timestamptz DEFAULT '-infinity', since_id bigint DEFAULT 0, max_entries integer DEFAULT NULL,
    OUT expired bigint, OUT skipped boolean, OUT next_start_by timestamptz, OUT until timestamptz, OUT last timestamptz,
    OUT last_id bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    bound record;
    late  bigint[];
    times timestamptz[];
    ended record;
BEGIN
    until := clock_timestamp();
    SELECT b.start_by, b.id INTO bound FROM queue_internal.deadline_bound(since, since_id, max_entries) AS b;
    -- Reads "max_tasks" from each bucket, because only the merged order shows where to continue.
    SELECT coalesce(array_agg(l.id), '{}'), array_agg(l.start_by) INTO late, times
    FROM (SELECT p.id, p.start_by
          FROM generate_series(0, queue_internal.buckets() - 1) AS b (in_bucket), LATERAL (
              SELECT t.id, t.start_by FROM queue.tasks AS t
              WHERE queue_internal.task_in_bucket(t, b.in_bucket) AND t.start_by <= until
                AND (t.start_by, t.id) > (since, since_id)
                AND (t.start_by, t.id) <= (coalesce(bound.start_by, 'infinity'), coalesce(bound.id, 9223372036854775807))
                AND t.token = 0 AND t.state <> 'running'
              ORDER BY t.start_by, t.id LIMIT max_tasks) AS p
          ORDER BY p.start_by, p.id LIMIT max_tasks) AS l;
    IF cardinality(late) = max_tasks THEN
        last := times[max_tasks];
        last_id := late[max_tasks];
    ELSIF bound.start_by <= until THEN
        -- There are no more up to the bound.
        last := bound.start_by;
        last_id := bound.id;
    END IF;
    expired := 0;
    skipped := false;
    IF late <> '{}' THEN
        SELECT * INTO ended FROM queue_internal.expire(late, CASE WHEN max_entries IS NOT NULL THEN interval '50 ms' END);
        expired := ended.expired;
        skipped := expired + cardinality(ended.rest) < ended.tried;
        -- The next call does the rest of the piece.
        IF ended.rest <> '{}' THEN
            last := since;
            last_id := since_id;
        ELSIF ended.tried < cardinality(late) THEN
            last := times[ended.tried];
            last_id := late[ended.tried];
        END IF;
    END IF;
    IF last IS NULL THEN
        -- If only entries of ended tasks follow, continue after the last of them.
        SELECT b.start_by, b.id INTO bound
        FROM queue_internal.deadline_bound(until, 9223372036854775807, max_entries) AS b;
        FOR in_bucket IN 0 .. queue_internal.buckets() - 1 LOOP
            next_start_by := least(next_start_by, (
                SELECT t.start_by FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.start_by > until
                  AND (t.start_by, t.id) <= (coalesce(bound.start_by, 'infinity'), coalesce(bound.id, 9223372036854775807))
                ORDER BY t.start_by, t.id LIMIT 1));
        END LOOP;
        next_start_by := coalesce(next_start_by, bound.start_by);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.expire_unstarted IS
    'Ends tasks whose start deadline has passed; returns how many, the next deadline, and where to continue.';
