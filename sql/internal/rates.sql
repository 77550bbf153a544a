-- How many tasks may start in a period: of a queue (rate_limit), and of each of its groups (group_rate_limit).
--
--   A start counts as much as the weight of the task. A weight that is larger than the limit, for example because the limit
--   was lowered, counts as the whole limit; otherwise the task could never start.
--
--   rate_limit: the queue can start that many tasks, spread over up to 64 rate buckets (queue_internal.rate_buckets). A
--   start uses up one, which becomes available again rate_period later. So in no span of that length, wherever it begins,
--   can more tasks start. A task with a larger weight uses up several at once. Tasks behind it must leave enough of them
--   available, or it might wait for ever while lighter tasks use each one that becomes available.
--
--   group_rate_limit: each start of a task of a group is a row of queue_internal.group_starts. A task is admitted in its
--   group (groups.sql) only if its weight, the starts of the last period, and the weights of the tasks that are admitted
--   but do not run yet, together do not exceed the limit. Between its admission and its start, that sum can only
--   decrease. So the limit is exact although a start inserts a row and locks none. Until the rate allows the next
--   task, the group is blocked, so that no claim meets its tasks, and has an event that is due at that time. A task that
--   is requeued has to be admitted again (recheck_group).
--
--   Times that lie more than a period in the future were written before the clock was set back, and do not count.

-- Returns when each bucket has its next start available, or since when it has had one. Reads only.
CREATE FUNCTION queue_internal.rate_bucket_times(
    source queue.queues, until timestamptz, wanted integer,
    OUT bucket integer, OUT version bigint, OUT free_at timestamptz)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    buckets CONSTANT integer := least(source.rate_limit, 64);
    start   CONSTANT integer := floor(random() * buckets);
    horizon CONSTANT timestamptz := clock_timestamp() + source.rate_period;
BEGIN
    RETURN QUERY
    SELECT newest.bucket, newest.version, due.at
    FROM generate_series(start, start + buckets - 1) AS i,
         LATERAL (SELECT s.bucket, s.version, s.rate_limit, s.rate_period,
                         s.taken[1 + cardinality(s.taken) - s.capacity] AS blocking
                  FROM queue_internal.rate_buckets AS s
                  WHERE s.queue = source.name AND s.bucket = 1 + i % buckets
                  ORDER BY s.version DESC LIMIT 1) AS newest,
         LATERAL (SELECT CASE WHEN newest.blocking < horizon THEN newest.blocking + source.rate_period
                              ELSE '-infinity' END AS at) AS due
    WHERE due.at <= until AND newest.rate_limit = source.rate_limit AND newest.rate_period = source.rate_period
    LIMIT wanted;
END
$$;
COMMENT ON FUNCTION queue_internal.rate_bucket_times IS
    'Returns up to so many rate buckets of a queue that have a start by the time given.';

-- Returns all starts of the buckets that are available by a time, one row for each. Reads only.
CREATE FUNCTION queue_internal.starts_until(
    source queue.queues, until timestamptz, OUT bucket integer, OUT version bigint, OUT free_at timestamptz)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    horizon CONSTANT timestamptz := clock_timestamp() + source.rate_period;
BEGIN
    RETURN QUERY
    SELECT newest.bucket, newest.version, due.at
    FROM generate_series(1, least(source.rate_limit, 64)) AS i,
         LATERAL (SELECT s.bucket, s.version, s.rate_limit, s.rate_period, s.capacity, s.taken
                  FROM queue_internal.rate_buckets AS s
                  WHERE s.queue = source.name AND s.bucket = i ORDER BY s.version DESC LIMIT 1) AS newest,
         generate_series(1, newest.capacity) AS n,
         LATERAL (SELECT newest.taken[cardinality(newest.taken) - newest.capacity + n] AS at) AS blocking,
         LATERAL (SELECT CASE WHEN blocking.at < horizon THEN blocking.at + source.rate_period
                              ELSE '-infinity' END AS at) AS due
    WHERE due.at <= until AND newest.rate_limit = source.rate_limit AND newest.rate_period = source.rate_period;
END
$$;
COMMENT ON FUNCTION queue_internal.starts_until IS
    'Returns the starts of a queue''s rate buckets that are available by the time given, one a row.';

CREATE FUNCTION queue_internal.starts_at(source queue.queues, weight integer) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF weight = 1 THEN
        RETURN (SELECT min(b.free_at) FROM queue_internal.rate_bucket_times(source, 'infinity', NULL) AS b);
    END IF;
    RETURN (SELECT s.free_at FROM queue_internal.starts_until(source, 'infinity') AS s
            ORDER BY s.free_at OFFSET least(weight, source.rate_limit) - 1 LIMIT 1);
END
$$;
COMMENT ON FUNCTION queue_internal.starts_at IS
    'Returns when a task of this weight can start by a queue''s rate limit, or since when.';

CREATE FUNCTION queue_internal.announce_start(source queue.queues, weight integer DEFAULT 1) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.announce_task(source.name, queue_internal.starts_at(source, weight));
END
$$;
COMMENT ON FUNCTION queue_internal.announce_start IS
    'Announces when the rate limit of a queue next allows a task of this weight to start.';

CREATE FUNCTION queue_internal.lock_bucket(source queue.queues, bucket integer, version bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM FROM queue_internal.rate_buckets AS s
    WHERE s.queue = source.name AND s.bucket = lock_bucket.bucket AND s.version = lock_bucket.version
    FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_bucket IS
    'Locks a version of a rate bucket; false if another transaction has it locked or has changed the bucket.';

CREATE FUNCTION queue_internal.use_bucket(
    source queue.queues, bucket integer, version bigint, starts integer, moment timestamptz)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE queue_internal.rate_buckets AS s
    SET version = s.version + 1,
        taken = ARRAY(SELECT u.at FROM unnest(s.taken) WITH ORDINALITY AS u (at, position)
                      WHERE u.at > moment - source.rate_period AND u.at < moment + source.rate_period
                      ORDER BY u.position) || array_fill(moment, ARRAY[starts])
    WHERE s.queue = source.name AND s.bucket = use_bucket.bucket AND s.version = use_bucket.version;
END
$$;
COMMENT ON FUNCTION queue_internal.use_bucket IS 'Uses so many starts of a rate bucket that is locked.';

-- Returns when the start was taken; null if there is none. "reserve" is the weight of a task that comes first.
CREATE FUNCTION queue_internal.take_start(source queue.queues, weight integer, reserve integer) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted integer;
    free   record;
    moment timestamptz;
BEGIN
    IF weight > 1 OR reserve > 0 THEN
        RETURN queue_internal.take_starts(source, weight, reserve);
    END IF;
    FOREACH wanted IN ARRAY ARRAY[2, 64] LOOP
        FOR free IN
            SELECT b.bucket, b.version FROM queue_internal.rate_bucket_times(source, clock_timestamp(), wanted) AS b
        LOOP
            IF queue_internal.lock_bucket(source, free.bucket, free.version) THEN
                moment := clock_timestamp();
                PERFORM queue_internal.use_bucket(source, free.bucket, free.version, 1, moment);
                RETURN moment;
            END IF;
        END LOOP;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.take_start IS
    'Takes a start from a queue''s rate buckets; returns when, or null if there is none.';

-- Takes all starts at the same time, after it has locked all buckets. If it could lock only a part of them, the exception
-- handler releases these locks.
CREATE FUNCTION queue_internal.take_starts(source queue.queues, weight integer, reserve integer) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted  integer := least(weight, source.rate_limit);
    until   timestamptz := clock_timestamp();
    buckets jsonb := '{}';
    free    record;
    moment  timestamptz;
BEGIN
    -- If both together exceed the limit, the lighter task may start only after the queue has started nothing for a period and
    -- a second. Then another transaction must have the heavier task locked without claiming it.
    IF wanted + reserve > source.rate_limit THEN
        reserve := source.rate_limit - wanted;
        until := until - interval '1 second';
    END IF;
    IF (SELECT count(*) FROM queue_internal.starts_until(source, until)) < wanted + reserve THEN
        RETURN NULL;
    END IF;
    FOR free IN
        SELECT s.bucket, s.version, count(*)::integer AS starts FROM queue_internal.starts_until(source, until) AS s
        GROUP BY s.bucket, s.version ORDER BY random()
    LOOP
        IF queue_internal.lock_bucket(source, free.bucket, free.version) THEN
            free.starts := least(free.starts, wanted);
            buckets := buckets || jsonb_build_object(free.bucket, jsonb_build_array(free.version, free.starts));
            wanted := wanted - free.starts;
            EXIT WHEN wanted = 0;
        END IF;
    END LOOP;
    IF wanted > 0 THEN
        RAISE lock_not_available;
    END IF;
    moment := clock_timestamp();
    PERFORM queue_internal.use_bucket(source, b.key::integer, (b.value ->> 0)::bigint, (b.value ->> 1)::integer, moment)
    FROM jsonb_each(buckets) AS b;
    RETURN moment;
EXCEPTION WHEN lock_not_available THEN
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.take_starts IS
    'Takes as many starts from a queue''s rate buckets as a task weighs, if others are left; returns when, or null.';

-- Returns when enough starts of a group will be available again; null if that would take more starts than there are.
CREATE FUNCTION queue_internal.group_free_at(source queue.queues, group_key text, wanted bigint) RETURNS timestamptz
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    since CONSTANT timestamptz := clock_timestamp() - source.rate_period;
BEGIN
    RETURN (SELECT min(c.started_at) FROM (
                SELECT s.started_at, sum(s.weight) OVER (ORDER BY s.started_at) AS weight
                FROM queue_internal.group_starts AS s
                WHERE s.queue = source.name AND s.group_key = group_free_at.group_key
                  AND s.started_at > since AND s.started_at < since + 2 * source.rate_period) AS c
            WHERE c.weight >= wanted) + source.rate_period;
END
$$;
COMMENT ON FUNCTION queue_internal.group_free_at IS
    'Returns when starts of this weight of a group will have come back.';

-- If several tasks of a group can run at a time, the next one may have to wait until this start no longer counts, and no
-- other event would cause the group to be checked then. Otherwise it waits for the end of this task.
CREATE FUNCTION queue_internal.record_group_start(source queue.queues, task queue.tasks, started timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    back CONSTANT timestamptz := started + source.rate_period;
BEGIN
    INSERT INTO queue_internal.group_starts (queue, group_key, started_at, task_id, weight, expires_at)
    VALUES (source.name, task.group_key, started, task.id, task.weight, back);
    IF source.max_running_per_group > 1 THEN
        -- An event that exists already is not enough. Another session may process it before this transaction commits: it
        -- would see the task as not running, and add no further event. If a claim stays open for longer, the sweep finds
        -- its group.
        PERFORM queue_internal.recheck_group_at(source, task.group_key, back, clock_timestamp() + interval '5 seconds');
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.record_group_start IS 'Counts the start of a task against the rate limit of its group.';

-- Adds an event that causes a group to be checked at a time in the future, unless there is one after "since" that is due
-- then or before. Processing that one adds the next. Does not look at more than a hundred events, because a group to which
-- many tasks were pushed has an event for each: one too many does no harm.
CREATE FUNCTION queue_internal.recheck_group_at(
    source queue.queues, group_key text, moment timestamptz, since timestamptz DEFAULT clock_timestamp())
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    -- The ORDER BY as in has_event.
    IF (SELECT e.id
        FROM (SELECT l.id, l.tries, l.due_at FROM queue_internal.events AS l
              WHERE l.queue = source.name AND l.group_key = recheck_group_at.group_key
              ORDER BY l.id DESC LIMIT 100) AS e
        WHERE e.tries = 0 AND e.due_at > since AND e.due_at <= moment LIMIT 1) IS NULL THEN
        INSERT INTO queue_internal.events (queue, group_key, due_at)
        VALUES (source.name, recheck_group_at.group_key, moment);
        PERFORM queue_internal.announce_task(source.name, moment);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.recheck_group_at IS 'Leaves an event for a group that is due at a time.';

CREATE FUNCTION queue_internal.retire_group_starts(max_starts integer) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    -- In a variable, because a volatile function is no condition for an index.
    moment  CONSTANT timestamptz := clock_timestamp();
    expired record;
    retired integer := 0;
BEGIN
    FOR expired IN
        SELECT s.queue, s.group_key, s.started_at, s.task_id, s.started_at + (
                   SELECT q.rate_period FROM queue.queues AS q
                   WHERE q.name = s.queue AND q.group_rate_limit IS NOT NULL) AS expires_at
        FROM queue_internal.group_starts AS s
        WHERE s.expires_at <= moment ORDER BY s.expires_at LIMIT max_starts FOR UPDATE SKIP LOCKED
    LOOP
        IF expired.expires_at > moment THEN
            -- The period is longer than the one that the claim knew.
            UPDATE queue_internal.group_starts AS s SET expires_at = expired.expires_at
            WHERE s.queue = expired.queue AND s.group_key = expired.group_key
              AND s.started_at = expired.started_at AND s.task_id = expired.task_id;
        ELSE
            DELETE FROM queue_internal.group_starts AS s
            WHERE s.queue = expired.queue AND s.group_key = expired.group_key
              AND s.started_at = expired.started_at AND s.task_id = expired.task_id;
        END IF;
        retired := retired + 1;
    END LOOP;
    IF retired < max_starts THEN
        PERFORM queue_internal.retire_groups();
    END IF;
    RETURN retired >= max_starts;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_group_starts IS
    'Deletes starts of groups that count no longer; returns whether there may be more. At the end also what is left of groups.';
