-- The scan start: remembers where this session last found work, to skip dead index entries.
--
--   Finished tasks and processed events leave dead entries at the front of their indexes until a vacuum removes them. While
--   an old snapshot prevents that, each claim would read all of them. So a session whose claim read more than a thousand
--   remembers where it found its first task, and starts there for twenty times as long as that claim took, up to a minute.
--   Scans from the front then take a twentieth of its time, however many entries there are. A more urgent task, or an event
--   whose transaction committed late, may be overtaken for that long if it lies before the scan start. A claim that finds
--   nothing after the scan start scans again from the front.
--
--   It is kept in a setting, because it belongs to the session; a transaction that rolls back also restores the setting.

CREATE TYPE queue_internal.mark AS (event bigint, level integer, head timestamptz, until timestamptz);
REVOKE ALL ON TYPE queue_internal.mark FROM PUBLIC;
COMMENT ON TYPE queue_internal.mark IS 'A scan start: the event, the priority and the run_at, and until when it is used.';

CREATE FUNCTION queue_internal.front() RETURNS queue_internal.mark
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN ROW(0, -2147483648, '-infinity', NULL)::queue_internal.mark;
COMMENT ON FUNCTION queue_internal.front IS
    'Returns the scan start of sessions that have none: the front of the index.';

-- If the clock was set back, no scan start is used for longer.
CREATE FUNCTION queue_internal.mark_of(queue text) RETURNS queue_internal.mark
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    kept CONSTANT text := current_setting('queue_mark.q' || md5(queue), true);
    mark queue_internal.mark;
BEGIN
    IF kept <> '' THEN
        mark := kept;
        IF mark.until BETWEEN clock_timestamp() AND clock_timestamp() + interval '1 minute' THEN
            RETURN mark;
        END IF;
    END IF;
    RETURN queue_internal.front();
END
$$;
COMMENT ON FUNCTION queue_internal.mark_of IS 'Returns where claims of this session from a queue start to scan.';

-- At most a minute ahead, because mark_of ignores later times.
CREATE FUNCTION queue_internal.set_mark(queue text, mark queue_internal.mark) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
BEGIN
    mark.until := least(mark.until, clock_timestamp() + interval '1 minute');
    PERFORM set_config('queue_mark.q' || md5(queue), mark::text, false);
END
$$;
COMMENT ON FUNCTION queue_internal.set_mark IS 'Sets the scan start of this session for a queue.';
