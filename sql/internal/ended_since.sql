-- queue_internal.ended_since(since)
--
--   Returns how many tasks of each queue ended since then, by state and time; and, with a null time, how many dead
--   letters there are. The counters of the library start from this. Times are rounded down to their steps of 2^24
--   microseconds (src/lanes/counters.rs).

CREATE FUNCTION queue_internal.ended_since(since timestamptz)
RETURNS TABLE (queue text, state text, ended_at timestamptz, tasks bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT h.queue, h.state, date_bin('16.777216 seconds', h.finished_at, '2000-01-01 00:00:00+00'), count(*)
    FROM queue.history AS h WHERE h.finished_at >= since GROUP BY 1, 2, 3
    UNION ALL
    SELECT d.queue, 'failed', date_bin('16.777216 seconds', d.failed_at, '2000-01-01 00:00:00+00'), count(*)
    FROM queue.dead_letters AS d WHERE d.failed_at >= since GROUP BY 1, 3
    UNION ALL
    SELECT d.queue, 'failed', NULL, count(*) FROM queue.dead_letters AS d GROUP BY 1
$$;
COMMENT ON FUNCTION queue_internal.ended_since IS
    'Counts the tasks that ended since a time, and the dead letters.';
