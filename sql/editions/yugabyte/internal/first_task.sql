-- The first task in the order of a bucket, whatever its state: its priority and its run_at.
--
-- Finished tasks leave tombstones at the front of the index until a compaction, and a scan from the front reads all of
-- them. So a session remembers for a second where the first entry was, and starts its scans there. Before that entry
-- there can only be newer ones: a task with a smaller priority, which the scan looks for, or a task with an earlier
-- run_at or one that was just unblocked in its group, which a scan finds at most a second later. "fresh" scans from the
-- front. This edition does not use the level and the head given, which are those of scan_start.sql.

CREATE FUNCTION queue_internal.first_task(
    in_bucket integer, in_queue text, since_level integer, since_head timestamptz, fresh boolean,
    OUT level integer, OUT head timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    name  CONSTANT text := format('queue_scan_start.b%s_%s', in_bucket, md5(in_queue));
    -- priority, run_at, since when
    kept text[] := nullif(current_setting(name, true), '');
BEGIN
    IF NOT fresh AND clock_timestamp() BETWEEN kept[3]::timestamptz AND kept[3]::timestamptz + interval '1 second' THEN
        SELECT t.priority, t.run_at INTO level, head FROM queue.tasks AS t
        WHERE t.bucket = in_bucket AND t.queue = in_queue AND t.admission < 2 AND t.priority < kept[1]::integer
        ORDER BY t.priority, t.run_at LIMIT 1;
        IF level IS NULL THEN
            SELECT t.priority, t.run_at INTO level, head FROM queue.tasks AS t
            WHERE t.bucket = in_bucket AND t.queue = in_queue AND t.admission < 2 AND t.priority = kept[1]::integer
              AND t.run_at >= kept[2]::timestamptz
            ORDER BY t.priority, t.run_at LIMIT 1;
        END IF;
    END IF;
    IF level IS NULL THEN
        SELECT t.priority, t.run_at INTO level, head FROM queue.tasks AS t
        WHERE t.bucket = in_bucket AND t.queue = in_queue AND t.admission < 2
        ORDER BY t.priority, t.run_at LIMIT 1;
        kept[3] := clock_timestamp();
    END IF;
    -- Tasks that are pushed from now on come after this scan start, even if the first task is scheduled. A transaction
    -- that rolls back also restores the setting.
    IF level IS NOT NULL THEN
        PERFORM set_config(name, ARRAY[level::text, least(head, kept[3]::timestamptz)::text, kept[3]]::text, false);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.first_task IS
    'Returns the priority and the run_at of the first task in a bucket of a queue.';

-- Keeps this session's claims from overtaking a task that it has just unblocked.
CREATE FUNCTION queue_internal.move_scan_start_back(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    name  CONSTANT text := format('queue_scan_start.b%s_%s', task.bucket, md5(task.queue));
    kept text[] := nullif(current_setting(name, true), '');
BEGIN
    IF task.priority = kept[1]::integer AND task.run_at < kept[2]::timestamptz THEN
        kept[2] := task.run_at;
        PERFORM set_config(name, kept::text, false);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.move_scan_start_back IS
    'Moves the scan start of this session back to a task, if it is after it.';
