-- queue_internal.claim_from(queue, lease, max_tasks, worker)
--
--   Claims up to "max_tasks" due tasks of one queue: from a random bucket, and then from the others, until there
--   are enough. The order of claims holds within a bucket.
--
--   Whatever the comments on sql/internal/claim_from.sql say of one walk holds for the walk through a bucket.

CREATE FUNCTION queue_internal.claim_from(source queue.queues, lease interval, max_tasks integer, worker text)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    buckets CONSTANT integer := queue_internal.buckets();
    start   CONSTANT integer := floor(random() * buckets);
    wanted  integer := max_tasks;
    more    boolean := true;
    fresh   boolean := false;
    swept   boolean := false;
    granted bigint;
BEGIN
    IF (source.max_running IS NOT NULL OR source.rate_limit IS NOT NULL)
       AND NOT queue_internal.has_room(source) THEN
        RETURN;
    END IF;
    FOR round IN 1 .. 16 LOOP
        EXIT WHEN wanted = 0 OR NOT more;
        -- Events may admit tasks in any bucket, and ending an attempt may leave more of them.
        -- One end may lead to another; what would take too long is left to the next claim.
        FOR pass IN 1 .. 16 LOOP
            EXIT WHEN NOT EXISTS (SELECT FROM queue_internal.events AS e
                                  WHERE e.queue = source.name AND e.due_at <= (SELECT clock_timestamp()))
                      OR queue_internal.process_events(source, 16 + 4 * max_tasks, 0) = 0;
            fresh := true;
        END LOOP;
        more := false;
        FOR place IN start .. start + buckets - 1 LOOP
            RETURN QUERY SELECT * FROM queue_internal.claim_bucket(
                place % buckets, source, lease, wanted, worker, fresh);
            GET DIAGNOSTICS granted = ROW_COUNT;
            wanted := wanted - granted;
            EXIT WHEN wanted = 0;
        END LOOP;
        more := wanted > 0 AND EXISTS (SELECT FROM queue_internal.events AS e
                                       WHERE e.queue = source.name AND e.due_at <= clock_timestamp());
        IF wanted = max_tasks AND NOT more AND NOT swept THEN
            swept := true;
            more := queue_internal.sweep_a_little(source);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.claim_from(queue.queues, interval, integer, text) IS
    'Claims due tasks of one queue, a random bucket first.';

CREATE FUNCTION queue_internal.claim_bucket(
    in_bucket integer, source queue.queues, lease interval, max_tasks integer, worker text, fresh boolean)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    limited   CONSTANT boolean := source.max_running IS NOT NULL OR source.rate_limit IS NOT NULL;
    moment    CONSTANT timestamptz := clock_timestamp();
    started   timestamptz;
    level     integer;
    head      timestamptz;
    until     timestamptz := moment;
    passed    queue_internal.passed_level[] := '{}';
    candidate queue.tasks;
    granted   integer := 0;
    stuck     bigint[] := '{}';
    ended     integer := 0;
    ending    boolean := true;
    again     boolean;
BEGIN
    SELECT f.level, f.head INTO level, head FROM queue_internal.first_task(in_bucket, source.name, fresh) AS f;
    IF source.ageing IS NOT NULL AND level IS NOT NULL THEN
        SELECT n.level, n.head, n.until INTO level, head, until
        FROM queue_internal.next_aged_level(in_bucket, source, moment, passed) AS n;
    END IF;
    WHILE level IS NOT NULL LOOP
        again := false;
        FOR candidate IN
            SELECT t.* FROM queue.tasks AS t
            WHERE t.bucket = in_bucket AND t.queue = source.name AND t.priority = level AND t.gate < 2
              AND t.run_at >= head AND t.run_at <= until
              AND (t.state = 'queued'
                   OR ending AND t.state = 'running' AND t.lease_until <= moment AND t.id <> ALL (stuck))
            ORDER BY t.run_at, t.id
            LIMIT max_tasks - granted
            FOR NO KEY UPDATE SKIP LOCKED
        LOOP
            IF candidate.state = 'running' THEN
                CONTINUE WHEN NOT ending;
                ended := ended + 1;
                -- The others are the next claim's.
                ending := ended < 256 / queue_internal.buckets() AND clock_timestamp() < moment + interval '1 second';
                IF (queue_internal.expire(ARRAY[candidate.id])).expired = 0 THEN
                    stuck := stuck || candidate.id;
                END IF;
                -- As a rule it is to be had now, at its old place.
                SELECT t.* INTO candidate FROM queue.tasks AS t
                WHERE t.id = candidate.id AND t.state = 'queued' AND t.gate < 2 AND t.run_at <= until;
                IF NOT FOUND THEN
                    again := true;
                    CONTINUE;
                END IF;
            END IF;
            IF candidate.token >= 9007199254740991 THEN
                PERFORM queue_internal.end_attempt(candidate, 'no token is left', NULL, true);
                again := true;
                CONTINUE;
            END IF;
            started := moment;
            IF candidate.group_key IS NOT NULL THEN
                IF candidate.gate = 0 THEN
                    PERFORM queue_internal.queue_up(candidate);
                    RETURN;
                ELSIF source.fair_groups THEN
                    INSERT INTO queue_internal.events (queue, group_key) VALUES (source.name, candidate.group_key);
                END IF;
                -- Not before the one ahead of it in its group was finished.
                started := clock_timestamp();
            END IF;
            IF limited THEN
                started := queue_internal.take_room(source, candidate.id, candidate.token + 1);
                IF started IS NULL THEN
                    RETURN;
                END IF;
            END IF;
            RETURN QUERY
            UPDATE queue.tasks AS t
            SET state = 'running', attempt = t.attempt + 1, token = t.token + 1,
                lease_until = started + claim_bucket.lease, worker = claim_bucket.worker,
                claimed_at = started, updated_at = started
            WHERE t.id = candidate.id
            RETURNING t.id, t.token, t.queue, t.payload, t.headers, t.attempt,
                      coalesce(t.max_attempts, source.max_attempts), t.priority, t.key,
                      t.group_key, t.progress, t.run_at, t.created_at, t.lease_until;
            granted := granted + 1;
        END LOOP;
        EXIT WHEN granted = max_tasks;
        -- What had ended in the middle of a batch left room in it.
        CONTINUE WHEN again;
        IF source.ageing IS NOT NULL THEN
            passed := passed || ROW(level, until)::queue_internal.passed_level;
            SELECT n.level, n.head, n.until INTO level, head, until
            FROM queue_internal.next_aged_level(in_bucket, source, moment, passed) AS n;
        ELSE
            SELECT n.level, n.head INTO level, head
            FROM queue_internal.next_level(in_bucket, source.name, level) AS n;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.claim_bucket(integer, queue.queues, interval, integer, text, boolean) IS
    'Claims due tasks of one bucket of a queue.';
