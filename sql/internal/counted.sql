-- queue_internal.counted(queues)
--
--   Returns the task counters of these queues that are kept in memory. A queue without counters is left out.
--   native.sql replaces this function, and the SQL-only edition this file.

CREATE FUNCTION queue_internal.counted(queues text[])
RETURNS TABLE (
    queue text, queued bigint, blocked bigint, scheduled bigint, waiting bigint, running bigint, dead bigint,
    oldest_due_at timestamptz, completed bigint, cancelled bigint, failed bigint, rate float8)
LANGUAGE sql VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT NULL, 0, 0, 0, 0, 0, 0, NULL::timestamptz, 0, 0, 0, 0 WHERE false
$$;
COMMENT ON FUNCTION queue_internal.counted IS
    'Returns the counters in memory behind queue.stats, for those of the queues that have any.';

CREATE FUNCTION queue_internal.counted_at() RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NULL::timestamptz
$$;
COMMENT ON FUNCTION queue_internal.counted_at IS 'Returns null: the counters are those of now.';
