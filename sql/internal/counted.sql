-- queue_internal.counted(queues)
--
--   What is known of the numbers of tasks in these queues without counting them. A queue of which nothing
--   is known is left out, and here they all are: the library knows more (native.sql).

CREATE FUNCTION queue_internal.counted(queues text[])
RETURNS TABLE (
    queue text, queued bigint, behind bigint, scheduled bigint, waiting bigint, running bigint, dead bigint,
    oldest_due_at timestamptz, completed bigint, cancelled bigint, failed bigint, rate float8)
LANGUAGE sql VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT NULL, 0, 0, 0, 0, 0, 0, NULL::timestamptz, 0, 0, 0, 0 WHERE false
$$;
COMMENT ON FUNCTION queue_internal.counted IS
    'What is known of the numbers of tasks without counting them: the counters behind queue.stats.';
