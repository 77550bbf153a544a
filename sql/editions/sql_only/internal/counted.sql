-- queue_internal.counted(queues), queue_internal.counted_at()
--
--   Without the library nothing counts the tasks as they come and go. If there are many, to count them takes too long for
--   each read of a view. So queue.maintain() counts them (count_all), and these functions return what it stored, and when
--   that was: nothing if there was little to count, or if it was too long ago.

CREATE TABLE queue_internal.counts (
    queue         text COLLATE "C" NOT NULL PRIMARY KEY,
    queued        bigint,
    blocked       bigint,
    scheduled     bigint,
    waiting       bigint,
    running       bigint,
    dead          bigint,
    oldest_due_at timestamptz,
    completed     bigint,
    cancelled     bigint,
    failed        bigint,
    rate          float8
);
COMMENT ON TABLE queue_internal.counts IS 'The tasks of each queue, when queue.maintain() last counted many.';

CREATE TABLE queue_internal.counted_running (
    worker      text,
    queue       text COLLATE "C" NOT NULL,
    claimed_at  timestamptz,
    lease_until timestamptz
);
ALTER TABLE queue_internal.counted_running REPLICA IDENTITY FULL;
COMMENT ON TABLE queue_internal.counted_running IS 'The tasks that ran when queue.maintain() last counted many.';

CREATE FUNCTION queue_internal.counted_at() RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- How long a count is of use follows from how often count_all() counts.
    RETURN (SELECT m.counted_at FROM queue_internal.maintenance AS m
            WHERE m.counted_at BETWEEN now() - interval '5 minutes' - 40 * m.counting AND now() + interval '1 minute');
END
$$;
COMMENT ON FUNCTION queue_internal.counted_at IS
    'Returns when queue.maintain() counted the tasks; null if they are counted at each read.';

CREATE FUNCTION queue_internal.counted(queues text[])
RETURNS TABLE (
    queue text, queued bigint, blocked bigint, scheduled bigint, waiting bigint, running bigint, dead bigint,
    oldest_due_at timestamptz, completed bigint, cancelled bigint, failed bigint, rate float8)
LANGUAGE plpgsql VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mine CONSTANT text[] := queue_internal.queues_with_right('monitor');
BEGIN
    IF queue_internal.counted_at() IS NOT NULL THEN
        RETURN QUERY
        SELECT c.* FROM queue_internal.counts AS c
        WHERE c.queue = ANY (queues) AND coalesce(c.queue = ANY (mine), true);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.counted IS
    'Returns what queue.maintain() has counted lately, for those of the queues that it has counted.';
