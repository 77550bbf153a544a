-- queue_internal.running_tasks()
--
--   Returns the running tasks of the queues that its caller may monitor, for queue.workers: as queue.maintain() found them
--   if there are many tasks (counted.sql), and those of now in queues that it has not counted, which
--   have no "counted_at".
--   Rights:   as count_tables
--   Touches:  queue.tasks (reads all of it: no index has the running tasks, so that claims stay HOT)

CREATE FUNCTION queue_internal.running_tasks()
RETURNS TABLE (worker text, queue text, claimed_at timestamptz, lease_until timestamptz, counted_at timestamptz)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    mine   CONSTANT text[] := queue_internal.queues_with_right('monitor');
    moment CONSTANT timestamptz := queue_internal.counted_at();
    fresh  text[];
BEGIN
    IF moment IS NOT NULL THEN
        fresh := queue_internal.not_counted();
        RETURN QUERY
        SELECT c.worker, c.queue::text, c.claimed_at, c.lease_until, moment
        FROM queue_internal.counted_running AS c JOIN queue.queues AS q ON q.name = c.queue
        WHERE c.queue <> ALL (fresh) AND coalesce(c.queue = ANY (mine), true);
        IF fresh <> '{}' THEN
            RETURN QUERY
            SELECT t.worker, t.queue::text, t.claimed_at, t.lease_until, NULL::timestamptz FROM queue.tasks AS t
            WHERE t.queue = ANY (fresh) AND t.state = 'running' AND coalesce(t.queue = ANY (mine), true);
        END IF;
    ELSE
        RETURN QUERY
        SELECT t.worker, t.queue::text, t.claimed_at, t.lease_until, NULL::timestamptz FROM queue.tasks AS t
        WHERE t.state = 'running' AND coalesce(t.queue = ANY (mine), true);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.running_tasks IS
    'Returns the running tasks of the queues that its caller may monitor.';
