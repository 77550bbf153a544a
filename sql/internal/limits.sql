-- How many tasks of a queue may run at a time, and how many may start in a period.
--
--   max_running: the queue has that many slots (queue_internal.slots). A task needs a slot to start. A slot is free if
--   the task that is written in it no longer runs with the token that is written in it. So each end of a task frees its
--   slot by itself, at the commit, exactly once.
--
--   rate_limit: see rates.sql.
--
--   Concurrent claims take different slots and buckets, and none waits for another. All of it is part of the caller's
--   transaction: a claim that rolls back has taken nothing.

-- Returns up to "wanted" free slots, starting with a random one. Reads only. After the limit was lowered, as many
-- free slots stay unused as tasks still run in slots beyond it. All claims leave the same ones unused, the first, so
-- that together they cannot exceed the limit. Why subqueries and no joins: a join may read all tasks to find a few.
CREATE FUNCTION queue_internal.free_slots(
    source queue.queues, wanted integer, OUT slot integer, OUT version bigint)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    start  integer := floor(random() * source.max_running);
    beyond bigint;
BEGIN
    SELECT count(*) INTO beyond FROM queue_internal.slots AS s
    WHERE s.queue = source.name AND s.slot > source.max_running
      AND (SELECT t.state FROM queue.tasks AS t WHERE t.id = s.task_id AND t.token = s.token) = 'running';
    IF beyond > 0 THEN
        start := 0;
    END IF;
    FOR slot, version IN
        SELECT newest.slot, newest.version
        FROM generate_series(start, start + source.max_running - 1) AS i,
             LATERAL (SELECT s.slot, s.version, s.task_id, s.token FROM queue_internal.slots AS s
                      WHERE s.queue = source.name AND s.slot = 1 + i % source.max_running
                      ORDER BY s.version DESC LIMIT 1) AS newest
        WHERE (SELECT t.state FROM queue.tasks AS t WHERE t.id = newest.task_id AND t.token = newest.token)
              IS DISTINCT FROM 'running'
        OFFSET beyond LIMIT wanted
    LOOP
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.free_slots IS 'Returns slots of a queue in which no task runs.';

CREATE FUNCTION queue_internal.take_slot(source queue.queues, task_id bigint, token bigint) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted integer;
    free   record;
BEGIN
    -- Other claims may be taking the same few: then check all of them.
    FOREACH wanted IN ARRAY ARRAY[2, source.max_running] LOOP
        FOR free IN SELECT f.slot, f.version FROM queue_internal.free_slots(source, wanted) AS f LOOP
            UPDATE queue_internal.slots AS s
            SET version = s.version + 1, task_id = take_slot.task_id, token = take_slot.token
            WHERE s.queue = source.name AND s.slot = free.slot AND s.version = (
                SELECT l.version FROM queue_internal.slots AS l
                WHERE l.queue = source.name AND l.slot = free.slot AND l.version = free.version
                FOR UPDATE SKIP LOCKED);
            IF FOUND THEN
                RETURN free.slot;
            END IF;
        END LOOP;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.take_slot IS
    'Takes a slot for a task and returns its number; null if none is free.';

-- Takes what a task needs to start: a slot, and a start from a rate bucket. Returns the time of the start, or null if
-- the task may not start. Gives a slot without a start back, or the task would later have two. "reserve" is the weight of
-- a task that comes first (take_start).
CREATE FUNCTION queue_internal.take_capacity(
    source queue.queues, task_id bigint, token bigint, weight integer, reserve integer)
RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    free_slot integer;
    started   timestamptz;
    later     timestamptz;
BEGIN
    IF source.max_running IS NOT NULL THEN
        free_slot := queue_internal.take_slot(source, task_id, token);
        IF free_slot IS NULL THEN
            RETURN NULL;
        END IF;
        started := clock_timestamp();
    END IF;
    IF source.rate_limit IS NOT NULL THEN
        started := queue_internal.take_start(source, weight, reserve);
        IF started IS NULL THEN
            -- If a start is available now, the call only met buckets that other sessions have locked.
            later := queue_internal.starts_at(source, weight + reserve);
            IF later > clock_timestamp() THEN
                PERFORM queue_internal.announce_task(source.name, later);
            END IF;
            UPDATE queue_internal.slots AS s SET task_id = NULL
            WHERE s.queue = source.name AND s.slot = free_slot AND s.task_id = take_capacity.task_id;
        END IF;
    END IF;
    RETURN started;
END
$$;
COMMENT ON FUNCTION queue_internal.take_capacity IS
    'Takes a slot and a start for a task; returns when it starts, or null if it may not.';

-- Of each slot only the newest version, because the older ones may be many that cannot be vacuumed yet. Reads only.
CREATE FUNCTION queue_internal.expired_holders(source queue.queues, moment timestamptz) RETURNS TABLE (task_id bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT h.task_id FROM (
        SELECT newest.task_id, newest.token
        FROM generate_series(1, source.max_running) AS i,
             LATERAL (SELECT s.task_id, s.token FROM queue_internal.slots AS s
                      WHERE s.queue = source.name AND s.slot = i ORDER BY s.version DESC LIMIT 1) AS newest
        UNION ALL
        SELECT s.task_id, s.token FROM queue_internal.slots AS s
        WHERE s.queue = source.name AND s.slot > source.max_running) AS h
    WHERE (SELECT t.lease_until FROM queue.tasks AS t
           WHERE t.id = h.task_id AND t.token = h.token AND t.state = 'running') <= moment;
END
$$;
COMMENT ON FUNCTION queue_internal.expired_holders IS
    'Returns the tasks that occupy the slots of a queue and whose leases have expired.';

-- A claim that was open while the limit was set, or that the transaction which set it did not see, took no slot. For
-- some time after that, claims look for running tasks without a slot and give them slots beyond the limit, which
-- count until these tasks end (free_slots). It reads all tasks of the queue, so it is done at most once a second and
-- for a twentieth of the time. Concurrent claims use what they see.
CREATE FUNCTION queue_internal.count_open_claims(source queue.queues) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    begun CONSTANT float8 := extract(epoch FROM clock_timestamp());
    ended float8;
    until bigint;
BEGIN
    -- In this row "version" is the time of the next check, as part of the key, and "token" the time of the last one.
    SELECT s.token INTO until FROM queue_internal.slots AS s
    WHERE s.queue = source.name AND s.slot = 0 AND s.version <= begun * 1000000 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO queue_internal.slots (queue, slot, task_id, token)
    SELECT source.name, row_number() OVER (ORDER BY t.id) + (
               SELECT max(s.slot) FROM queue_internal.slots AS s WHERE s.queue = source.name), t.id, t.token
    FROM queue.tasks AS t
    WHERE t.queue = source.name AND t.admission < 2 AND t.state = 'running'
      AND (t.id, t.token) NOT IN (
          SELECT s.task_id, s.token FROM queue_internal.slots AS s
          WHERE s.queue = source.name AND s.task_id IS NOT NULL AND s.token IS NOT NULL);
    ended := extract(epoch FROM clock_timestamp());
    IF ended * 1000000 < until THEN
        UPDATE queue_internal.slots AS s SET version = (ended + greatest(20 * (ended - begun), 1)) * 1000000
        WHERE s.queue = source.name AND s.slot = 0;
    ELSE
        DELETE FROM queue_internal.slots AS s WHERE s.queue = source.name AND s.slot = 0;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.count_open_claims IS
    'Counts tasks against a new limit whose claims were open when it was set.';

-- Checked before any row is locked, so that claims from a queue at its limit write nothing. It also ends expired
-- attempts in the slots, because no scan may meet those tasks.
CREATE FUNCTION queue_internal.has_capacity(source queue.queues) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF source.rate_limit IS NOT NULL AND NOT EXISTS (
        SELECT FROM queue_internal.rate_bucket_times(source, clock_timestamp(), 1)) THEN
        PERFORM queue_internal.announce_start(source);
        RETURN false;
    END IF;
    IF source.max_running IS NOT NULL THEN
        PERFORM queue_internal.count_open_claims(source);
    END IF;
    IF source.max_running IS NOT NULL AND NOT EXISTS (SELECT FROM queue_internal.free_slots(source, 1)) THEN
        -- Not all at once: the next claim ends the others.
        RETURN (queue_internal.expire(ARRAY(
            SELECT h.task_id FROM queue_internal.expired_holders(source, clock_timestamp()) AS h LIMIT 32))).expired > 0;
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.has_capacity IS 'Returns whether a task may start in a queue with limits.';

-- Creates the slots for the option. The caller has locked those that are deleted, and slot 0, so that no claim creates slots
-- with the same numbers meanwhile (count_open_claims).
CREATE FUNCTION queue_internal.provide_slots(source queue.queues) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF source.max_running IS NULL THEN
        DELETE FROM queue_internal.slots AS s WHERE s.queue = source.name;
        RETURN;
    END IF;
    -- A new limit counts the tasks that run already, and for ten minutes those that claims open now will commit.
    INSERT INTO queue_internal.slots (queue, slot, token)
    SELECT source.name, 0, (extract(epoch FROM clock_timestamp()) + 600) * 1000000
    WHERE NOT EXISTS (SELECT FROM queue_internal.slots AS s WHERE s.queue = source.name)
      AND (current_setting('transaction_isolation') <> 'read committed'
           OR EXISTS (SELECT FROM queue.tasks AS t WHERE t.queue = source.name));
    INSERT INTO queue_internal.slots (queue, slot, task_id, token)
    SELECT source.name, row_number() OVER (ORDER BY t.id), t.id, t.token FROM queue.tasks AS t
    WHERE t.queue = source.name AND t.state = 'running'
      AND NOT EXISTS (SELECT FROM queue_internal.slots AS s WHERE s.queue = source.name AND s.slot > 0);
    INSERT INTO queue_internal.slots (queue, slot)
    SELECT source.name, i FROM generate_series(1, source.max_running) AS i
    WHERE NOT EXISTS (SELECT FROM queue_internal.slots AS s WHERE s.queue = source.name AND s.slot = i);
    DELETE FROM queue_internal.slots AS s
    WHERE s.queue = source.name AND s.slot > source.max_running
      AND NOT EXISTS (SELECT FROM queue.tasks AS t
                      WHERE t.id = s.task_id AND t.token = s.token AND t.state = 'running');
END
$$;
COMMENT ON FUNCTION queue_internal.provide_slots IS 'Makes the slots of a queue match max_running.';

-- Creates the rate buckets for the options. The caller has locked the old ones.
CREATE FUNCTION queue_internal.provide_buckets(source queue.queues) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    buckets CONSTANT integer := CASE WHEN source.rate_limit IS NOT NULL THEN least(source.rate_limit, 64) END;
BEGIN
    -- A changed rate starts with the starts of the last period. Their versions are new: a claim that has read an old bucket
    -- must not lock a new one instead.
    WITH old AS (
        DELETE FROM queue_internal.rate_buckets AS s WHERE s.queue = source.name RETURNING s.version, s.taken
    ), recent AS (
        SELECT u.at, row_number() OVER (ORDER BY u.at DESC) - 1 AS rank
        FROM old AS o, unnest(o.taken) AS u (at) WHERE u.at > clock_timestamp() - source.rate_period
    )
    INSERT INTO queue_internal.rate_buckets (queue, bucket, version, rate_limit, rate_period, capacity, taken)
    SELECT source.name, b, coalesce((SELECT max(o.version) + 1 FROM old AS o), 0), source.rate_limit, source.rate_period,
           source.rate_limit / buckets + (b <= source.rate_limit % buckets)::integer,
           ARRAY(SELECT r.at FROM recent AS r WHERE r.rank % buckets = b - 1 ORDER BY r.at)
    FROM generate_series(1, buckets) AS b;
END
$$;
COMMENT ON FUNCTION queue_internal.provide_buckets IS 'Makes the rate buckets of a queue match its rate limit.';

-- Waits for claims that are open. Others must be able to claim meanwhile, however long one of them stays open: so it lets go of
-- what it has locked, and tries again after as long as it has waited. It waits twice as long each time, because with many
-- workers some claim is always open. "beyond" as in lock_claimed.
CREATE FUNCTION queue_internal.wait_for_claims(queue text, beyond integer, buckets boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- By the caller's lock_timeout; 0 is none.
    stop     CONSTANT timestamptz :=
        clock_timestamp() + coalesce(nullif(current_setting('lock_timeout')::interval, '0'), '1000 years');
    patience interval := queue_internal.lock_patience();
BEGIN
    WHILE NOT queue_internal.lock_claimed(
            queue, beyond, buckets, false, least(patience, greatest(stop - clock_timestamp(), interval '1 ms'))) LOOP
        IF clock_timestamp() >= stop THEN
            RAISE lock_not_available USING
                MESSAGE = format('claims from queue %s are open', to_json(queue)),
                HINT = 'The change waits for them. Try again, or with a longer lock_timeout.';
        END IF;
        PERFORM pg_sleep_for(least(patience, stop - clock_timestamp()));
        patience := least(2 * patience, interval '10 minutes');
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.wait_for_claims IS
    'Locks what claims from a queue use of its limits, as soon as no claim has it locked.';

-- "beyond": the slots with a larger number, and slot 0; null for none. "groups": their locks, and their admitted tasks, with
-- those that delayed_head concerns (policies_changed).
-- Waits for so long, or for the caller's lock_timeout: for each lock, because only that finds deadlocks, and for no further one
-- after that time. Tasks are locked in order: a cursor locks no row before it is fetched. The exception handler releases the
-- locks.
CREATE FUNCTION queue_internal.lock_claimed(queue text, beyond integer, buckets boolean, groups boolean, patience interval)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- As in policies_changed.
    blocks CONSTANT boolean := (SELECT q.delayed_head = 'block' FROM queue.queues AS q WHERE q.name = lock_claimed.queue);
    all_slots CURSOR FOR
        SELECT FROM queue_internal.slots AS s
        WHERE s.queue = lock_claimed.queue AND (s.slot > beyond OR s.slot = 0) ORDER BY s.slot FOR UPDATE;
    all_buckets CURSOR FOR
        SELECT FROM queue_internal.rate_buckets AS s WHERE s.queue = lock_claimed.queue ORDER BY s.bucket FOR UPDATE;
    all_locks CURSOR FOR
        SELECT FROM queue_internal.locks AS l WHERE l.queue = lock_claimed.queue ORDER BY l.number FOR UPDATE;
    all_tasks CURSOR FOR
        SELECT FROM queue.tasks AS t
        WHERE t.queue = lock_claimed.queue AND t.group_key IS NOT NULL AND t.state = 'queued'
          AND (t.admission = 1 OR t.admission = 0 AND blocks)
        ORDER BY t.id FOR NO KEY UPDATE;
    before CONSTANT text := current_setting('lock_timeout');
    stop   CONSTANT timestamptz := clock_timestamp() + patience;
BEGIN
    IF before = '0' OR before::interval > patience THEN
        PERFORM set_config('lock_timeout', (extract(epoch FROM patience) * 1000)::integer::text, true);
    END IF;
    -- Of slots, buckets and locks, it first takes all that are free, so that claims which end meanwhile do not take the others.
    IF beyond IS NOT NULL THEN
        PERFORM FROM queue_internal.slots AS s
        WHERE s.queue = lock_claimed.queue AND (s.slot > beyond OR s.slot = 0) FOR UPDATE SKIP LOCKED;
        FOR one IN all_slots LOOP
            IF clock_timestamp() > stop THEN
                RAISE lock_not_available;
            END IF;
        END LOOP;
    END IF;
    IF buckets THEN
        PERFORM FROM queue_internal.rate_buckets AS s WHERE s.queue = lock_claimed.queue FOR UPDATE SKIP LOCKED;
        FOR one IN all_buckets LOOP
            IF clock_timestamp() > stop THEN
                RAISE lock_not_available;
            END IF;
        END LOOP;
    END IF;
    IF groups THEN
        -- The transaction that has it locked may be inserting the others (lock_group).
        PERFORM FROM queue_internal.locks AS l WHERE l.queue = lock_claimed.queue AND l.number = -1 FOR UPDATE;
        PERFORM FROM queue_internal.locks AS l WHERE l.queue = lock_claimed.queue FOR UPDATE SKIP LOCKED;
        FOR one IN all_locks LOOP
            IF clock_timestamp() > stop THEN
                RAISE lock_not_available;
            END IF;
        END LOOP;
        -- Now no claim admits a task, and a new statement sees all that were admitted.
        FOR one IN all_tasks LOOP
            IF clock_timestamp() > stop THEN
                RAISE lock_not_available;
            END IF;
        END LOOP;
    END IF;
    PERFORM set_config('lock_timeout', before, true);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_claimed IS
    'Locks what claims use of a queue''s limits; false if that takes too long.';

CREATE FUNCTION queue_internal.lock_patience() RETURNS interval
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN least(current_setting('deadlock_timeout')::interval, interval '1 minute') + interval '200 ms';
END
$$;
COMMENT ON FUNCTION queue_internal.lock_patience IS 'How long a wait for a lock must take so that deadlocks are found.';
