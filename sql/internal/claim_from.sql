-- queue_internal.claim_from(queue, lease, max_tasks, worker)
--
--   Claims up to "max_tasks" due tasks of one queue, in order.
--
--   The order index is walked one priority at a time: within a priority the due tasks come first,
--   and the tasks scheduled for later behind them are never touched, however many there are.
--   The search for the next priority finds its first task too, so that the index entries of
--   finished tasks, which lie at the front until a vacuum, are passed over once and not twice.
--   A running task whose lease ran out is met at its own place in the order and ended like any
--   attempt, so that claims need no reaper.
--
--   Why the planner is told what not to do: a plan that was made while the table was small, or
--   without statistics, may sort or scan all of it, and a session keeps it for long.
--   Why SKIP LOCKED and one row at a time: a claim never waits, and returns its tasks in order.

CREATE FUNCTION queue_internal.claim_from(source queue.queues, lease interval, max_tasks integer, worker text)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment    timestamptz := clock_timestamp();
    level     integer;
    head      timestamptz;
    candidate queue.tasks;
    granted   integer := 0;
    expired   boolean;
BEGIN
    SELECT t.priority, t.run_at INTO level, head FROM queue.tasks AS t
    WHERE t.queue = source.name ORDER BY t.priority, t.run_at LIMIT 1;
    WHILE level IS NOT NULL LOOP
        expired := false;
        IF head <= moment THEN
            FOR candidate IN
                SELECT t.* FROM queue.tasks AS t
                WHERE t.queue = source.name AND t.priority = level
                  AND t.run_at >= head AND t.run_at <= moment
                  AND (t.state = 'queued' OR t.state = 'running' AND t.lease_until <= moment)
                ORDER BY t.run_at, t.id
                LIMIT max_tasks - granted
                FOR UPDATE SKIP LOCKED
            LOOP
                IF candidate.state = 'running' THEN
                    PERFORM queue_internal.end_attempt(candidate, 'lease expired', '0', false);
                    expired := true;
                ELSE
                    RETURN QUERY
                    UPDATE queue.tasks AS t
                    SET state = 'running', attempt = t.attempt + 1, token = t.token + 1,
                        lease_until = moment + claim_from.lease, worker = claim_from.worker,
                        claimed_at = moment, updated_at = moment
                    WHERE t.id = candidate.id
                    RETURNING t.id, t.token, t.queue, t.payload, t.headers, t.attempt,
                              coalesce(t.max_attempts, source.max_attempts), t.priority, t.key,
                              t.group_key, t.progress, t.run_at, t.created_at, t.lease_until;
                    granted := granted + 1;
                END IF;
            END LOOP;
        END IF;
        EXIT WHEN granted = max_tasks;
        -- What was put back just now is to be had at the same level.
        IF NOT expired THEN
            SELECT t.priority, t.run_at INTO level, head FROM queue.tasks AS t
            WHERE t.queue = source.name AND t.priority > level ORDER BY t.priority, t.run_at LIMIT 1;
        END IF;
    END LOOP;
    IF granted > 0 THEN
        PERFORM queue_internal.announce_lease(moment + lease);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.claim_from(queue.queues, interval, integer, text) IS
    'Claims due tasks of one queue.';
