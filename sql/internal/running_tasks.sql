-- queue_internal.running_tasks()
--
--   Returns the running tasks of the queues that its caller may monitor, for queue.workers.
--   Rights:   as count_tables
--   Touches:  queue.tasks. No index has the running tasks, so that claims stay HOT. So it reads the tasks with a lease in
--             shared memory, and all tasks of those queues in which more tasks run than that; without the library, of all queues

CREATE FUNCTION queue_internal.running_tasks()
RETURNS TABLE (worker text, queue text, claimed_at timestamptz, lease_until timestamptz)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    mine  CONSTANT text[] := queue_internal.queues_with_right('monitor');
    known text[] := '{}';
    lane  record;
    found bigint[];
BEGIN
    FOR lane IN
        SELECT l.queue, l.running, l.ids FROM queue_internal.leased_tasks(ARRAY(
            SELECT q.name FROM queue.queues AS q
            WHERE coalesce(q.name = ANY (mine), true)
              -- The library does not see the rows that logical replication inserts.
              AND NOT EXISTS (SELECT FROM pg_subscription_rel AS r WHERE r.srrelid = 'queue.tasks'::regclass))) AS l
    LOOP
        IF lane.running > 0 THEN
            found := ARRAY(SELECT t.id FROM queue.tasks AS t
                           WHERE t.id = ANY (lane.ids) AND t.state = 'running' AND t.queue = lane.queue);
            -- Those that have ended since count. Those that had ended before are still in memory.
            CONTINUE WHEN cardinality(found) < lane.running AND cardinality(found) + coalesce((
                SELECT count(*) FROM unnest(lane.ids) AS i (id), queue_internal.leased_tasks(ARRAY[lane.queue]) AS l
                WHERE i.id <> ALL (found) AND i.id <> ALL (l.ids)), 0) < lane.running;
            RETURN QUERY
            SELECT t.worker, t.queue::text, t.claimed_at, t.lease_until FROM queue.tasks AS t
            WHERE t.id = ANY (found) AND t.state = 'running' AND t.queue = lane.queue;
        END IF;
        known := known || lane.queue;
    END LOOP;
    IF EXISTS (SELECT FROM queue.queues AS q WHERE q.name <> ALL (known) AND coalesce(q.name = ANY (mine), true)) THEN
        RETURN QUERY
        SELECT t.worker, t.queue::text, t.claimed_at, t.lease_until FROM queue.tasks AS t
        WHERE t.state = 'running' AND t.queue <> ALL (known) AND coalesce(t.queue = ANY (mine), true);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.running_tasks IS
    'Returns the running tasks of the queues that its caller may monitor.';
