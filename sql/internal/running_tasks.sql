-- queue_internal.running_tasks()
--
--   Returns the running tasks of the queues that its caller may monitor, for queue.workers. "counted_at" is null: they are
--   those of now.
--   Rights:   as count_tables
--   Touches:  queue.tasks. No index has the running tasks, so that claims stay HOT. So it reads the tasks with a lease in
--             shared memory, and all tasks of those queues in which more tasks run than that

CREATE FUNCTION queue_internal.running_tasks()
RETURNS TABLE (worker text, queue text, claimed_at timestamptz, lease_until timestamptz, counted_at timestamptz)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    mine   CONSTANT text[] := queue_internal.queues_with_right('monitor');
    -- The library does not see the rows that logical replication inserts.
    shown  CONSTANT text[] := ARRAY(
        SELECT q.name FROM queue.queues AS q
        WHERE coalesce(q.name = ANY (mine), true)
          AND NOT EXISTS (SELECT FROM pg_subscription_rel AS r WHERE r.srrelid = 'queue.tasks'::regclass));
    lanes  text[];
    counts bigint[];
    -- The tasks with a lease in memory, and their lanes; and those of them that run.
    leased bigint[];
    places text[];
    found  bigint[];
    queues text[];
    -- The queues of which all running tasks were found.
    known  text[];
BEGIN
    WITH lane AS MATERIALIZED (SELECT l.queue, l.running, l.ids FROM queue_internal.leased_tasks(shown) AS l),
         lease AS MATERIALIZED (SELECT l.queue, i.id FROM lane AS l, unnest(l.ids) AS i (id))
    SELECT o.lanes, o.counts, p.leased, p.places INTO lanes, counts, leased, places
    FROM (SELECT array_agg(l.queue) AS lanes, array_agg(l.running) AS counts FROM lane AS l) AS o,
         (SELECT array_agg(l.id) AS leased, array_agg(l.queue) AS places FROM lease AS l) AS p;
    -- Of all queues at once, because a task may move to another one meanwhile.
    SELECT coalesce(array_agg(t.id), '{}'), array_agg(t.queue::text) INTO found, queues
    FROM queue.tasks AS t WHERE t.id = ANY (leased) AND t.state = 'running';
    known := ARRAY(
        SELECT l.queue FROM unnest(lanes, counts) AS l (queue, running)
        WHERE l.running <= (SELECT count(*) FROM unnest(queues) AS f (queue) WHERE f.queue = l.queue));
    IF cardinality(known) < cardinality(lanes) THEN
        -- Those that have ended since they were counted are no longer in memory; those that had ended before still are.
        known := known || ARRAY(
            SELECT l.queue FROM unnest(lanes, counts) AS l (queue, running),
                   queue_internal.leased_tasks(ARRAY(SELECT u.name FROM unnest(lanes) AS u (name) WHERE u.name <> ALL (known))) AS again
            WHERE again.queue = l.queue
              AND l.running <= (SELECT count(*) FROM unnest(queues) AS f (queue) WHERE f.queue = l.queue)
                             + (SELECT count(*) FROM unnest(places, leased) AS e (queue, id)
                                WHERE e.queue = l.queue AND e.id <> ALL (found) AND e.id <> ALL (again.ids)));
    END IF;
    -- In one statement, for the same reason.
    RETURN QUERY
    SELECT t.worker, t.queue::text, t.claimed_at, t.lease_until, NULL::timestamptz FROM queue.tasks AS t
    WHERE t.id = ANY (found) AND t.state = 'running' AND t.queue = ANY (known)
    UNION ALL
    SELECT t.worker, t.queue::text, t.claimed_at, t.lease_until, NULL::timestamptz FROM queue.tasks AS t
    WHERE EXISTS (SELECT FROM queue.queues AS q WHERE q.name <> ALL (known) AND coalesce(q.name = ANY (mine), true))
      AND t.state = 'running' AND t.queue <> ALL (known) AND coalesce(t.queue = ANY (mine), true);
END
$$;
COMMENT ON FUNCTION queue_internal.running_tasks IS
    'Returns the running tasks of the queues that its caller may monitor.';
