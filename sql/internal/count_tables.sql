-- queue_internal.count_tables(queues)
--
--   Counts the tasks of these queues in the tables, for queue.stats: those of the queues that have no counters.
--   Rights:   queue.stats calls it with the privileges of the role that reads. So it counts only queues that its caller
--             may monitor
--   Touches:  queue.tasks, queue.dead_letters (reads all of them), queue.history (reads the last hour)
--   Why a function: the planner would take the cost of these queries for a part of queue.stats even where they do not
--   run, and compile them

CREATE FUNCTION queue_internal.count_tables(queues text[])
RETURNS TABLE (
    queue text, queued bigint, blocked bigint, scheduled bigint, waiting bigint, running bigint, dead bigint,
    oldest_due_at timestamptz, completed bigint, cancelled bigint, failed bigint, rate float8)
LANGUAGE plpgsql STRICT
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    mine    CONSTANT text[] := queue_internal.queues_with_right('monitor');
    counted CONSTANT text[] := ARRAY(SELECT u.name FROM unnest(queues) AS u (name) WHERE coalesce(u.name = ANY (mine), true));
BEGIN
    IF counted = '{}' THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH tasks AS (
        -- One count for each of the few combinations costs half of a count with a condition for each state.
        SELECT t.queue, t.state, t.admission = 2 AS is_blocked, t.run_at <= now() AS is_due, count(*) AS number,
               min(t.run_at) FILTER (WHERE (t.start_by <= now() AND t.token = 0) IS NOT TRUE) AS first
        FROM queue.tasks AS t WHERE t.queue = ANY (counted) GROUP BY 1, 2, 3, 4
    ),
    live AS (
        SELECT t.queue,
               sum(t.number) FILTER (WHERE t.state = 'queued' AND NOT t.is_blocked AND t.is_due)::bigint AS queued,
               sum(t.number) FILTER (WHERE t.state = 'queued' AND t.is_blocked)::bigint AS blocked,
               sum(t.number) FILTER (WHERE t.state = 'queued' AND NOT t.is_blocked AND NOT t.is_due)::bigint AS scheduled,
               sum(t.number) FILTER (WHERE t.state = 'waiting')::bigint AS waiting,
               sum(t.number) FILTER (WHERE t.state = 'running')::bigint AS running,
               min(t.first) FILTER (WHERE t.state = 'queued' AND NOT t.is_blocked AND t.is_due) AS oldest_due_at
        FROM tasks AS t GROUP BY t.queue
    ),
    lost AS (
        SELECT d.queue, count(*) AS dead, count(*) FILTER (WHERE d.failed_at > now() - interval '1 hour') AS failed
        FROM queue.dead_letters AS d WHERE d.queue = ANY (counted) GROUP BY d.queue
    ),
    ended AS (
        SELECT h.queue,
               count(*) FILTER (WHERE h.state = 'completed') AS completed,
               count(*) FILTER (WHERE h.state = 'cancelled') AS cancelled,
               count(*) FILTER (WHERE h.state = 'completed'
                                AND h.finished_at > now() - interval '1 minute') / 60.0::float8 AS rate
        FROM queue.history AS h
        WHERE h.queue = ANY (counted) AND h.finished_at > now() - interval '1 hour'
        GROUP BY h.queue
    )
    SELECT u.name, l.queued, l.blocked, l.scheduled, l.waiting, l.running, d.dead, l.oldest_due_at,
           e.completed, e.cancelled, d.failed, e.rate
    FROM unnest(counted) AS u (name)
    LEFT JOIN live AS l ON l.queue = u.name
    LEFT JOIN lost AS d ON d.queue = u.name
    LEFT JOIN ended AS e ON e.queue = u.name;
END
$$;
COMMENT ON FUNCTION queue_internal.count_tables IS 'Counts the tasks of queues in the tables, for queue.stats.';
