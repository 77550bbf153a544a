-- queue_internal.counted(queues), queue_internal.counted_at()
--
--   Without the library nothing counts the tasks as they come and go. If there are many, counting them at each read would
--   take too long. So queue.maintain() counts them (count_all), and these functions return what it stored, and when that
--   was. They return nothing if there are few tasks, or if the last count is too old.

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
    rate          float8,
    -- Of the queue. One that was dropped and created again under its name has another.
    created_at    timestamptz
);
COMMENT ON TABLE queue_internal.counts IS 'The tasks of each queue, as of the last count by queue.maintain().';

CREATE TABLE queue_internal.counted_running (
    worker      text,
    queue       text COLLATE "C" NOT NULL,
    claimed_at  timestamptz,
    lease_until timestamptz
);
ALTER TABLE queue_internal.counted_running REPLICA IDENTITY FULL;
COMMENT ON TABLE queue_internal.counted_running IS 'The running tasks, as of the last count by queue.maintain().';

CREATE FUNCTION queue_internal.counted_at() RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- count_all() counts after twenty times the time that it takes. Five minutes and two counts may be missed.
    RETURN (SELECT max(m.counted_at) FROM queue_internal.maintenance AS m
            WHERE m.counted_at BETWEEN clock_timestamp() - interval '5 minutes' - 40 * m.counting
                                   AND clock_timestamp() + interval '1 minute');
END
$$;
COMMENT ON FUNCTION queue_internal.counted_at IS
    'Returns when queue.maintain() counted the tasks; null if they are counted at each read.';

CREATE FUNCTION queue_internal.not_counted() RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(SELECT q.name FROM queue.queues AS q LEFT JOIN queue_internal.counts AS c ON c.queue = q.name
                 WHERE c.created_at IS DISTINCT FROM q.created_at);
END
$$;
COMMENT ON FUNCTION queue_internal.not_counted IS 'Returns the queues that were created since queue.maintain() counted.';

CREATE FUNCTION queue_internal.counted(queues text[])
RETURNS TABLE (
    queue text, queued bigint, blocked bigint, scheduled bigint, waiting bigint, running bigint, dead bigint,
    oldest_due_at timestamptz, completed bigint, cancelled bigint, failed bigint, rate float8)
LANGUAGE plpgsql VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mine   CONSTANT text[] := queue_internal.queues_with_right('monitor');
    moment CONSTANT timestamptz := queue_internal.counted_at();
BEGIN
    RETURN QUERY
    SELECT c.queue, c.queued, c.blocked, c.scheduled, c.waiting, c.running, c.dead, c.oldest_due_at, c.completed, c.cancelled,
           c.failed, c.rate
    FROM queue_internal.counts AS c JOIN queue.queues AS q ON q.name = c.queue AND q.created_at = c.created_at
    WHERE moment IS NOT NULL AND c.queue = ANY (queues) AND coalesce(c.queue = ANY (mine), true);
END
$$;
COMMENT ON FUNCTION queue_internal.counted IS
    'Returns what queue.maintain() has counted lately, for those of the queues that it has counted.';
