-- The scan start: remembers where this session last found work, to skip dead index entries.
--
--   Finished tasks and processed events leave dead entries at the front of their indexes until a vacuum removes them.
--   While an old snapshot prevents that, each claim would read all of them. So a session whose claim read more than a
--   thousand remembers where it found its first task, and starts there for twenty times as long as that claim took, up
--   to a minute. Scans from the front then take a twentieth of its time, however many entries there are. A more urgent
--   task, an event whose transaction committed late, or a task that another session has admitted in its group, may be
--   overtaken for that long if it lies before the scan start. A claim that finds nothing after the scan start scans again
--   from the front.
--
--   The background worker uses scan starts for events, too (process_all_events). There, an event whose transaction
--   committed late is overtaken until the scan start is over, unless a claim processes it.
--
--   It is kept in a setting, because it belongs to the session; a transaction that rolls back also restores the
--   setting.

CREATE TYPE queue_internal.scan_start AS (event bigint, level integer, head timestamptz, until timestamptz);
COMMENT ON TYPE queue_internal.scan_start IS
    'A scan start: the event, the priority and the run_at, and until when it is used.';

CREATE FUNCTION queue_internal.default_scan_start() RETURNS queue_internal.scan_start
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN ROW(0, -2147483648, '-infinity', NULL)::queue_internal.scan_start;
COMMENT ON FUNCTION queue_internal.default_scan_start IS
    'Returns the scan start of sessions that have none: the front of the index.';

-- If the clock was set back, no scan start is used for longer.
CREATE FUNCTION queue_internal.get_scan_start(queue text) RETURNS queue_internal.scan_start
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    kept       CONSTANT text := current_setting('queue_scan_start.q' || md5(queue), true);
    scan_start queue_internal.scan_start;
BEGIN
    IF kept <> '' THEN
        scan_start := kept;
        IF scan_start.until BETWEEN clock_timestamp() AND clock_timestamp() + interval '1 minute' THEN
            RETURN scan_start;
        END IF;
    END IF;
    RETURN queue_internal.default_scan_start();
END
$$;
COMMENT ON FUNCTION queue_internal.get_scan_start IS 'Returns where claims of this session from a queue start to scan.';

-- At most a minute ahead, because get_scan_start ignores later times.
CREATE FUNCTION queue_internal.set_scan_start(queue text, scan_start queue_internal.scan_start) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
BEGIN
    scan_start.until := least(scan_start.until, clock_timestamp() + interval '1 minute');
    PERFORM set_config('queue_scan_start.q' || md5(queue), scan_start::text, false);
    PERFORM set_config('queue_scan_start.any', 'true', false);
END
$$;
COMMENT ON FUNCTION queue_internal.set_scan_start IS 'Sets the scan start of this session for a queue.';

-- After a claim that began then, from this scan start. Also past the dead entries of events, unless there is an event by
-- now. What the claim has passed is read again: it cannot say which of its tasks was the first. One that
-- another session has claimed meanwhile may be before it: then fewer are skipped.
CREATE FUNCTION queue_internal.move_scan_start(
    queue text, scan_start queue_internal.scan_start, begun timestamptz) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    newest CONSTANT bigint := queue_internal.newest_event();
BEGIN
    IF NOT EXISTS (SELECT FROM queue_internal.events AS e
                   WHERE e.queue = move_scan_start.queue AND (e.due_at, e.id) > ('-infinity', scan_start.event)
                     AND e.due_at <= begun) THEN
        scan_start.event := newest;
    END IF;
    SELECT t.priority, t.run_at INTO scan_start.level, scan_start.head FROM queue.tasks AS t
    WHERE queue_internal.task_in_bucket(t, 0) AND t.queue = move_scan_start.queue AND t.admission < 2
      AND (t.priority, t.run_at) >= (scan_start.level, scan_start.head) AND t.state = 'running' AND t.claimed_at >= begun
    ORDER BY t.priority, t.run_at LIMIT 1;
    IF FOUND THEN
        scan_start.until := coalesce(scan_start.until, clock_timestamp() + 20 * (clock_timestamp() - begun));
        PERFORM queue_internal.set_scan_start(queue, scan_start);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.move_scan_start IS
    'Sets the scan start of this session for a queue to the first task that a claim has claimed.';

-- For callers that scan the events of all queues, few of which have a scan start.
CREATE FUNCTION queue_internal.has_scan_starts() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(current_setting('queue_scan_start.any', true) = 'true', false);
END
$$;
COMMENT ON FUNCTION queue_internal.has_scan_starts IS 'Returns whether this session has set a scan start for any queue.';
