-- queue_internal.claim_plain(queue, lease, max_tasks, worker)
--
--   Claims up to "max_tasks" tasks together, if the queue has no policies, if they are plain, and if they are of the first
--   priority. Otherwise it claims none, or too few, and claim_from claims the rest: whatever this function leaves out is
--   only slower.
--
--   It takes only what comes first in the order. If an expired task, a task with a group, or one with a lease, a timeout or
--   a start deadline of its own is among the first, then none.
--   Waits:    never
--   Why the planner settings: as in claim_from. In one statement instead of two, the plan would sort all due tasks.

CREATE FUNCTION queue_internal.claim_plain(queue text, lease interval, max_tasks integer, worker text)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment  CONSTANT timestamptz := clock_timestamp();
    entries CONSTANT bigint := queue_internal.entries_passed();
    -- Where the scan starts (scan_start.sql), by default at the front.
    since_event bigint := 0;
    since_level integer := -2147483648;
    since_head  timestamptz := '-infinity';
    until       timestamptz;
    newest      bigint;
    source  record;
    claimed queue.claimed_task;
    first   timestamptz;
    tasks   integer := 0;
BEGIN
    IF queue_internal.buckets() > 1 THEN
        RETURN;
    ELSIF current_setting('queue_scan_start.any', true) = 'true' THEN
        SELECT s.event, s.level, s.head, s.until INTO since_event, since_level, since_head, until
        FROM queue_internal.get_scan_start(queue) AS s;
    END IF;
    SELECT moment + coalesce(claim_plain.lease, queue_internal.checked_lease(NULL, q.lease)) AS lease_until, q.max_attempts,
           f.level, f.head, CASE WHEN f.head <= moment THEN queue_internal.token_base() END AS base
    INTO source
    FROM queue.queues AS q
    CROSS JOIN LATERAL queue_internal.first_task(0, q.name, since_level, since_head, false) AS f
    WHERE q.name = claim_plain.queue AND q.paused_at IS NULL AND q.max_running IS NULL AND q.rate_limit IS NULL
      AND q.ageing IS NULL AND q.timeout IS NULL AND q.durable_leases IS DISTINCT FROM 'on'
      AND current_setting('queue.durable_leases', true) IS DISTINCT FROM 'on'
      AND NOT EXISTS (
          SELECT FROM queue_internal.events AS e
          WHERE e.queue = claim_plain.queue AND (e.due_at, e.id) > ('-infinity', since_event) AND e.due_at <= moment)
      AND queue_internal.has_right('worker', claim_plain.queue);
    IF source.base IS NULL THEN
        RETURN;
    END IF;
    FOR claimed IN
        WITH due AS MATERIALIZED (
            SELECT t.id, t.state = 'queued' AND num_nonnulls(t.group_key, t.lease, t.timeout, t.start_by) = 0
                   -- Larger ones are not covered by the mark, or there are no more: see claim_from.
                   AND t.token < least(source.base + 999999, 9007199254740991) AS plain
            FROM queue.tasks AS t
            WHERE queue_internal.task_in_bucket(t, 0) AND t.queue = claim_plain.queue
              AND t.priority = source.level AND t.admission < 2 AND t.run_at >= source.head AND t.run_at <= moment
              AND (t.state = 'queued' OR t.state = 'running' AND t.lease_until <= moment)
            ORDER BY t.run_at, t.id LIMIT claim_plain.max_tasks FOR NO KEY UPDATE OF t SKIP LOCKED
        )
        UPDATE queue.tasks AS t
        SET state = 'running', attempt = t.attempt + 1, token = greatest(t.token + 1, source.base),
            lease_until = source.lease_until, worker = claim_plain.worker, claimed_at = moment, updated_at = moment
        FROM due AS d
        WHERE t.id = d.id AND (SELECT bool_and(a.plain) FROM due AS a)
        RETURNING t.id, t.token, t.queue, t.payload, t.headers, t.attempt, coalesce(t.max_attempts, source.max_attempts),
                  t.priority, t.key, t.group_key, t.progress, t.run_at, t.created_at, t.lease_until, t.kind
    LOOP
        first := least(first, claimed.run_at);
        tasks := tasks + 1;
        RETURN NEXT claimed;
    END LOOP;
    -- Many dead entries, or running tasks, before the first one that it claimed. Each task that it claimed has an entry in
    -- two indexes.
    IF queue_internal.entries_passed() > entries + 1000 + 2 * tasks THEN
        newest := queue_internal.newest_event();
        -- Also past the dead entries of events, unless there is an event by now.
        IF NOT EXISTS (SELECT FROM queue_internal.events AS e
                       WHERE e.queue = claim_plain.queue AND (e.due_at, e.id) > ('-infinity', since_event) AND e.due_at <= moment) THEN
            since_event := newest;
        END IF;
        PERFORM queue_internal.set_scan_start(queue, (
            since_event, source.level, coalesce(first, source.head),
            coalesce(until, clock_timestamp() + 20 * (clock_timestamp() - moment))));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.claim_plain IS
    'Claims the first tasks of a queue together, if neither they nor the queue need more.';
