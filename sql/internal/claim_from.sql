-- queue_internal.claim_from(queue, lease, max_tasks, worker, begun)
--
--   Claims up to "max_tasks" due tasks of one queue, in order. "begun" is when the call began: what it claims itself does
--   not expire before it has returned, however short the lease. In an edition with several buckets (buckets.sql) it
--   begins with a random bucket and continues with the others until it has enough; the order holds within a bucket.
--
--   A claim that names no lease (null) leases each task for its own lease or that of its queue.
--
--   It scans the index tasks_order one priority at a time. Within a priority the due tasks come first, so it never
--   reads the scheduled tasks behind them. The search for the next priority also returns its first task: the dead index
--   entries of finished tasks, which precede it until the next vacuum, are read once and not twice. A claim that has
--   read many of them sets the scan start for the next ones (scan_start.sql).
--   A task whose lease has expired, or whose start deadline has passed, is found at its own place in the order and ended,
--   so claims need no reaper. One claim ends about 256 of them and spends about a second on it. It leaves the others to the next claim.
--
--   Events are processed first, because they can admit tasks that come next. The scan itself can leave events: when it
--   finds a task that has to be blocked in its group, or claims the only admitted task of a group. Then it scans again.
--   It also does so if it found nothing and a small sweep has left events.
--
--   Why the planner settings: a plan that was made while the table was small, or without statistics, may sort or scan
--   all of it, and a session keeps such a plan.
--   Why SKIP LOCKED and one row at a time: a claim never waits, and returns its tasks in order.
--   Why NO KEY UPDATE: a push that waits for the task to end holds a KEY SHARE lock, which must not prevent the claim.

CREATE FUNCTION queue_internal.claim_from(
    source queue.queues, lease interval, max_tasks integer, worker text, begun timestamptz)
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
    -- 2^53 - 1, because tokens are below 2^53.
    largest   CONSTANT bigint := 9007199254740991;
    base      bigint;
    usual     CONSTANT interval := coalesce(lease, queue_internal.checked_lease(NULL, source.lease));
    leased    interval;
    buckets   CONSTANT integer := queue_internal.buckets();
    start     CONSTANT integer := CASE WHEN buckets > 1 THEN floor(random() * buckets) ELSE 0 END;
    in_bucket integer;
    fresh     boolean := false;
    -- The first task that is heavier than others: see rates.sql.
    heavy     bigint;
    reserve   integer := 0;
    durable   CONSTANT boolean :=
        coalesce(source.durable_leases, queue_internal.setting('durable_leases', 'auto')) <> 'off';
    limited   CONSTANT boolean := source.max_running IS NOT NULL OR source.rate_limit IS NOT NULL;
    moment    timestamptz := clock_timestamp();
    started   timestamptz;
    scan_from queue_internal.scan_start := queue_internal.get_scan_start(source.name);
    entries   bigint;
    newest    bigint;
    event     bigint;
    event_due timestamptz;
    rounds    integer := 0;
    ended     integer := 0;
    ending    boolean := true;
    blockings integer := 0;
    level     integer;
    head      timestamptz;
    until     timestamptz;
    passed    queue_internal.passed_level[];
    candidate queue.tasks;
    new_token bigint;
    granted   integer := 0;
    stuck     bigint[] := '{}';
    again     boolean;
    more      boolean;
    swept     boolean := false;
BEGIN
    IF limited AND NOT queue_internal.has_capacity(source) THEN
        RETURN;
    END IF;
    entries := queue_internal.entries_passed();
    newest := queue_internal.newest_event();
    <<walk>>
    LOOP
        more := false;
        heavy := NULL;
        FOR turn IN start .. start + buckets - 1 LOOP
            in_bucket := turn % buckets;
            -- One statement does both. One check for events is enough.
            SELECT f.level, f.head, e.id, e.due_at INTO level, head, event, event_due
            FROM (VALUES (true)) AS one
            LEFT JOIN LATERAL
                queue_internal.first_task(in_bucket, source.name, scan_from.level, scan_from.head, fresh) AS f ON true
            LEFT JOIN LATERAL (
                SELECT v.id, v.due_at FROM queue_internal.events AS v
                WHERE turn = start AND v.queue = source.name
                  AND (v.due_at, v.id) > ('-infinity', scan_from.event) AND v.due_at <= moment
                ORDER BY v.due_at, v.id LIMIT 1) AS e ON true;
            -- The end of a task can end others. The next claim does what would take too long.
            IF event IS NOT NULL AND rounds < 16 THEN
                rounds := rounds + 1;
                -- Postponed events come after new ones.
                event := CASE WHEN event_due = '-infinity' THEN event - 1 ELSE scan_from.event END;
                IF queue_internal.process_events(source, 16 + 4 * max_tasks, event) > 0 THEN
                    -- Tasks that were just unblocked are due by now, and may have moved the scan start.
                    moment := clock_timestamp();
                    IF scan_from.until IS NOT NULL THEN
                        scan_from := queue_internal.get_scan_start(source.name);
                    END IF;
                    fresh := true;
                    CONTINUE walk;
                END IF;
                -- Another transaction is processing the remaining ones.
                event := NULL;
            END IF;
            IF source.ageing IS NOT NULL THEN
                passed := '{}';
                SELECT n.level, n.head, n.until INTO level, head, until
                FROM queue_internal.next_aged_level(in_bucket, source, moment, passed) AS n;
            ELSE
                until := moment;
            END IF;
            <<levels>>
            WHILE level IS NOT NULL LOOP
                again := false;
                IF head <= until THEN
                    IF source.rate_limit IS NOT NULL AND heavy IS NULL THEN
                        SELECT f.id, f.weight INTO heavy, reserve FROM (
                            SELECT t.id, t.weight FROM queue.tasks AS t
                            WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name
                              AND t.priority = level AND t.admission < 2
                              AND t.run_at >= head AND t.run_at <= until AND t.state = 'queued'
                              AND (t.token = 0 AND t.start_by <= moment) IS NOT TRUE
                            ORDER BY t.run_at, t.id LIMIT 1) AS f
                        WHERE f.weight > 1;
                        -- Stops here, so that claims write nothing while the heavy task waits for the rate.
                        IF heavy IS NOT NULL AND queue_internal.starts_at(source, reserve) > clock_timestamp() THEN
                            PERFORM queue_internal.announce_start(source, reserve);
                            EXIT walk;
                        END IF;
                    END IF;
                    FOR candidate IN
                        SELECT t.* FROM queue.tasks AS t
                        WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name
                          AND t.priority = level AND t.admission < 2
                          AND t.run_at >= head AND t.run_at <= until
                          AND (t.state = 'queued' AND (t.token = 0 AND t.start_by <= moment) IS NOT TRUE
                               OR ending AND t.id <> ALL (stuck)
                                  AND (t.state = 'queued' OR t.state = 'running' AND t.lease_until <= moment
                                       AND (t.claimed_at < begun) IS NOT FALSE))
                        ORDER BY t.run_at, t.id
                        LIMIT max_tasks - granted
                        FOR NO KEY UPDATE SKIP LOCKED
                    LOOP
                        IF candidate.state = 'running' OR candidate.token = 0 AND candidate.start_by <= moment THEN
                            CONTINUE WHEN NOT ending;
                            ended := ended + 1;
                            ending := ended < 256 AND clock_timestamp() < begun + interval '1 second';
                            IF (queue_internal.expire(ARRAY[candidate.id])).expired = 0 THEN
                                stuck := stuck || candidate.id;
                            END IF;
                            -- Usually it can be claimed now, at its old place.
                            SELECT t.* INTO candidate FROM queue.tasks AS t
                            WHERE t.id = candidate.id AND t.state = 'queued' AND t.admission < 2 AND t.run_at <= until
                              AND (t.token = 0 AND t.start_by <= moment) IS NOT TRUE;
                            IF NOT FOUND THEN
                                -- It has ended, and other tasks may have waited for that. They are due by now, and may
                                -- have moved the scan start.
                                moment := clock_timestamp();
                                IF scan_from.until IS NOT NULL THEN
                                    scan_from := queue_internal.get_scan_start(source.name);
                                END IF;
                                fresh := true;
                                more := true;
                                again := true;
                                CONTINUE;
                            END IF;
                        END IF;
                        base := coalesce(base, queue_internal.token_base(durable));
                        IF candidate.token >= largest THEN
                            PERFORM queue_internal.end_attempt(candidate, 'no token is left', NULL, true);
                            again := true;
                            CONTINUE;
                        END IF;
                        new_token := greatest(candidate.token + 1, base);
                        IF new_token > base + 1000000 THEN
                            -- Larger than what token_mark covers (src/tokens.rs).
                            PERFORM queue_internal.claim_durably();
                        END IF;
                        IF candidate.token = 0 AND candidate.start_by <= clock_timestamp() THEN
                            -- Its start deadline has passed since the scan began. Before it takes a start.
                            moment := clock_timestamp();
                            again := true;
                            CONTINUE;
                        END IF;
                        started := moment;
                        IF candidate.group_key IS NOT NULL THEN
                            IF candidate.admission = 0 THEN
                                PERFORM queue_internal.block_due_tasks(candidate);
                                blockings := blockings + 1;
                                EXIT walk WHEN blockings = 256;
                                more := true;
                                EXIT levels;
                            ELSIF source.fair_groups THEN
                                INSERT INTO queue_internal.events (queue, group_key)
                                VALUES (source.name, candidate.group_key);
                                more := true;
                            END IF;
                            -- Not until the task before it in its group has ended.
                            started := clock_timestamp();
                        END IF;
                        IF limited THEN
                            started := queue_internal.take_capacity(
                                source, candidate.id, new_token, candidate.weight,
                                CASE WHEN candidate.id <> heavy THEN reserve ELSE 0 END);
                            EXIT walk WHEN started IS NULL;
                            heavy := nullif(heavy, candidate.id);
                        END IF;
                        IF candidate.token = 0 AND candidate.start_by <= started THEN
                            moment := started;
                            again := true;
                            CONTINUE;
                        END IF;
                        IF source.group_rate_limit IS NOT NULL AND candidate.group_key IS NOT NULL THEN
                            PERFORM queue_internal.record_group_start(source, candidate, started);
                        END IF;
                        leased := usual;
                        IF candidate.lease IS NOT NULL AND lease IS NULL THEN
                            leased := queue_internal.checked_lease(NULL, candidate.lease);
                        END IF;
                        RETURN QUERY
                        UPDATE queue.tasks AS t
                        SET state = 'running', attempt = t.attempt + 1, token = new_token,
                            lease_until = least(started + leased, queue_internal.timeout_at(
                                started, coalesce(candidate.timeout, source.timeout))), worker = claim_from.worker,
                            claimed_at = started, updated_at = started
                        WHERE t.id = candidate.id
                        RETURNING t.id, t.token, t.queue, t.payload, t.headers, t.attempt,
                                  coalesce(t.max_attempts, source.max_attempts), t.priority, t.key,
                                  t.group_key, t.progress, t.run_at, t.created_at, t.lease_until, t.kind;
                        granted := granted + 1;
                        IF granted = 1 AND queue_internal.entries_passed() > entries + 1000 THEN
                            PERFORM queue_internal.set_scan_start(source.name, (
                                CASE WHEN event_due = '-infinity' THEN coalesce(event - 1, newest) ELSE newest END,
                                level, candidate.run_at,
                                coalesce(scan_from.until, clock_timestamp() + 20 * (clock_timestamp() - moment))));
                        END IF;
                    END LOOP;
                END IF;
                EXIT walk WHEN granted = max_tasks;
                -- Tasks that ended within the batch left space in it.
                CONTINUE WHEN again;
                IF source.ageing IS NOT NULL THEN
                    passed := passed || ROW(level, until)::queue_internal.passed_level;
                    SELECT n.level, n.head, n.until INTO level, head, until
                    FROM queue_internal.next_aged_level(in_bucket, source, moment, passed) AS n;
                ELSE
                    SELECT t.priority, t.run_at INTO level, head FROM queue.tasks AS t
                    WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.admission < 2
                      AND t.priority > level
                    ORDER BY t.priority, t.run_at LIMIT 1;
                END IF;
            END LOOP;
        END LOOP;
        IF NOT more AND granted = 0 AND scan_from.until IS NULL AND NOT swept THEN
            swept := true;
            more := queue_internal.sweep_part(source);
            moment := clock_timestamp();
        END IF;
        IF NOT more THEN
            EXIT WHEN granted > 0 OR scan_from.until IS NULL;
            scan_from := queue_internal.default_scan_start();
        END IF;
        rounds := 0;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.claim_from IS 'Claims due tasks of one queue.';
