-- The first task in the order of a bucket, whatever its state: its priority and its run_at.
--
-- Finished tasks leave tombstones at the front of the index until a compaction, and a look from the very front
-- passes over all of them. So a session keeps in mind where the first entry was, for a second, and begins
-- there. Before it there can only be what came since: a task of a smaller priority, which is looked for, or
-- one with an earlier run_at, or of a group whose turn came, which is met a second later. Nothing is hidden for
-- longer than that. "fresh" asks for a look from the front. The level and the head given are those of mark.sql, which
-- this edition does not use.
CREATE FUNCTION queue_internal.first_task(
    in_bucket integer, in_queue text, since_level integer, since_head timestamptz, fresh boolean,
    OUT level integer, OUT head timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    name  CONSTANT text := format('queue_low_water.b%s_%s', in_bucket, md5(in_queue));
    -- priority, run_at, since when
    water text[] := nullif(current_setting(name, true), '');
BEGIN
    IF NOT fresh AND clock_timestamp() BETWEEN water[3]::timestamptz AND water[3]::timestamptz + interval '1 second' THEN
        SELECT t.priority, t.run_at INTO level, head FROM queue.tasks AS t
        WHERE t.bucket = in_bucket AND t.queue = in_queue AND t.gate < 2 AND t.priority < water[1]::integer
        ORDER BY t.priority, t.run_at LIMIT 1;
        IF level IS NULL THEN
            SELECT t.priority, t.run_at INTO level, head FROM queue.tasks AS t
            WHERE t.bucket = in_bucket AND t.queue = in_queue AND t.gate < 2 AND t.priority = water[1]::integer
              AND t.run_at >= water[2]::timestamptz
            ORDER BY t.priority, t.run_at LIMIT 1;
        END IF;
    END IF;
    IF level IS NULL THEN
        SELECT t.priority, t.run_at INTO level, head FROM queue.tasks AS t
        WHERE t.bucket = in_bucket AND t.queue = in_queue AND t.gate < 2
        ORDER BY t.priority, t.run_at LIMIT 1;
        water[3] := clock_timestamp();
    END IF;
    -- What is pushed from now on is behind the mark, also where the first task is for later. A transaction that
    -- rolls back takes its mark along.
    IF level IS NOT NULL THEN
        PERFORM set_config(name, ARRAY[level::text, least(head, water[3]::timestamptz)::text, water[3]]::text, false);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.first_task IS
    'The priority and the run_at of the first task in a bucket of a queue.';

-- A task that is let into the order behind the mark of this session is not to be overtaken by it.
CREATE FUNCTION queue_internal.keep_in_view(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    name  CONSTANT text := format('queue_low_water.b%s_%s', task.bucket, md5(task.queue));
    water text[] := nullif(current_setting(name, true), '');
BEGIN
    IF task.priority = water[1]::integer AND task.run_at < water[2]::timestamptz THEN
        water[2] := task.run_at;
        PERFORM set_config(name, water::text, false);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.keep_in_view IS
    'Moves the mark of this session back to a task, if it is ahead of it.';
