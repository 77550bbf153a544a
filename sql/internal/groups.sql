-- Groups: which tasks of a group may run.
--
--   A task of a group is pushed as blocked (admission 2), and is not in tasks_order: a claim never passes over tasks
--   that have to wait, however many there are. Where one task of a group may run at a time, the end of that task admits
--   the next one in the same transaction (hand_over.sql). Whatever else may admit one (a push, a retry) leaves an event; the
--   claim that processes it admits as many as the limit allows (admission 1), the smallest id first. So at
--   most "max_running_per_group" of a group are admitted, and only those can be claimed. A task with a smaller id that
--   comes later, by a retry or from another queue, takes the place of an admitted one that does not run yet.
--
--   A group can also have a rate limit (rates.sql), which decides together with max_running_per_group.
--
--   Where a delayed task does not hold up its group (delayed_head), it is open (admission 0) until it becomes due.
--
--   Exact, because one transaction at a time admits tasks of a group, and sees everything committed before: it holds
--   the group's row in queue_internal.locks from before it counts until its own commit. Nobody waits for that row: a
--   claim that finds it locked postpones the event. Each queue has its own rows, so that a transaction that stays open
--   after it admitted tasks of many groups does not delay other queues.

CREATE FUNCTION queue_internal.lock_group(queue text, group_key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- Two groups of a queue may share a row.
    wanted CONSTANT integer := hashtext(group_key) & 4095;
BEGIN
    PERFORM FROM queue_internal.locks AS l
    WHERE l.queue = lock_group.queue AND l.number = wanted FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        RETURN true;
    ELSIF EXISTS (SELECT FROM queue_internal.locks AS l WHERE l.queue = lock_group.queue AND l.number = wanted) THEN
        RETURN false;
    END IF;
    -- This is the first group of the queue. One transaction at a time inserts the rows, and no other can lock them
    -- before it commits.
    PERFORM FROM queue_internal.locks AS l
    WHERE l.queue = lock_group.queue AND l.number = -1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO queue_internal.locks (queue, number)
    SELECT lock_group.queue, i FROM generate_series(0, 4095) AS i ON CONFLICT DO NOTHING;
    PERFORM FROM queue_internal.locks AS l
    WHERE l.queue = lock_group.queue AND l.number = wanted FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_group IS
    'Makes this transaction the only one that admits tasks of the group; false if another one does.';

CREATE FUNCTION queue_internal.queue_created() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO queue_internal.locks (queue, number) VALUES (NEW.name, -1) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.queue_created IS
    'Inserts the row that lock_group() locks for the first group of a queue.';

CREATE TRIGGER queue_created AFTER INSERT ON queue.queues
    FOR EACH ROW EXECUTE FUNCTION queue_internal.queue_created();
COMMENT ON TRIGGER queue_created ON queue.queues IS 'Prepares the locks of a new queue''s groups.';

-- Returns how many tasks of a group are admitted, how many of those are not running yet, and the last of these. "used" is
-- how much of the group's rate limit these and the starts of the last period use up, null if it has none. This is one query,
-- so that a task that starts meanwhile is counted once. "first_id": no task of the group has a smaller id (group_heads.sql).
CREATE FUNCTION queue_internal.admitted_of(
    source queue.queues, group_key text, first_id bigint DEFAULT -9223372036854775808,
    OUT admitted bigint, OUT ready bigint, OUT latest bigint, OUT used bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In a variable, because the planner would see that it is below 2 and use tasks_order.
    is_admitted CONSTANT smallint := 1;
    since       CONSTANT timestamptz := clock_timestamp() - source.rate_period;
BEGIN
    SELECT count(*), count(*) FILTER (WHERE t.state = 'queued'), max(t.id) FILTER (WHERE t.state = 'queued'),
           CASE WHEN source.group_rate_limit IS NOT NULL THEN
               coalesce(sum(least(t.weight, source.group_rate_limit)) FILTER (WHERE t.state = 'queued'), 0)
               + (SELECT coalesce(sum(s.weight), 0) FROM queue_internal.group_starts AS s
                  WHERE s.queue = source.name AND s.group_key = admitted_of.group_key
                    AND s.started_at > since AND s.started_at < since + 2 * source.rate_period) END
    INTO admitted, ready, latest, used
    FROM queue.tasks AS t
    WHERE t.queue = source.name AND t.group_key = admitted_of.group_key
      -- Not a condition on the id alone, for which the planner would use the index on ids.
      AND (t.admission, t.id) >= (is_admitted, first_id) AND t.admission <= is_admitted;
END
$$;
COMMENT ON FUNCTION queue_internal.admitted_of IS 'How many tasks of a group are admitted, and how much of its rate limit they use up.';

CREATE FUNCTION queue_internal.waiting_before(
    source queue.queues, group_key text, id bigint, first_id bigint) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In a variable, as in admitted_of.
    is_blocked CONSTANT smallint := 2;
BEGIN
    RETURN (SELECT count(*) FROM (
                SELECT FROM queue.tasks AS t
                WHERE t.queue = source.name AND t.group_key = waiting_before.group_key
                  AND (t.admission, t.id) >= (is_blocked, first_id) AND (t.admission, t.id) < (is_blocked, waiting_before.id)
                  AND t.state = 'waiting'
                ORDER BY t.admission, t.id LIMIT source.max_running_per_group) AS b);
END
$$;
COMMENT ON FUNCTION queue_internal.waiting_before IS
    'Returns how many places of a group the waiting tasks before an id take.';

-- Returns what to do next about a group: admit a task, or withdraw the admission of one; null if nothing. "not_before" is
-- when the rate limit will allow the next task, null if the rate limit is not the reason that it waits. "opens": the task is
-- delayed and others pass it, so that it becomes open, whatever the limit.
CREATE FUNCTION queue_internal.next_admission(
    source queue.queues, group_key text, admitted bigint, ready bigint, latest bigint, used bigint,
    first_id bigint DEFAULT -9223372036854775808, OUT admit bigint, OUT opens boolean, OUT withdraw bigint, OUT not_before timestamptz)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In a variable, as in admitted_of.
    is_open    CONSTANT smallint := 0;
    is_blocked CONSTANT smallint := 2;
    blocking   CONSTANT boolean := source.delayed_head = 'block';
    first      record;
    waiting    bigint := 0;
    has_room   boolean;
BEGIN
    IF admitted > source.max_running_per_group OR used > source.group_rate_limit AND ready > 0 THEN
        withdraw := latest;
        RETURN;
    END IF;
    -- Checks the first thousand of the open tasks, which are not due yet. A claim meets the others when they become
    -- due (block_due_tasks). Both are read in the order of tasks_group, because the index on ids has the tasks of all
    -- queues.
    SELECT w.id, w.state, w.weight, w.run_at INTO first FROM (
        (SELECT t.id, t.state, t.weight, t.run_at FROM queue.tasks AS t
         WHERE t.queue = source.name AND t.group_key = next_admission.group_key
           AND (t.admission, t.id) >= (is_blocked, first_id)
           AND (t.state = 'queued' OR blocking)
         ORDER BY t.admission, t.id LIMIT 1)
        UNION ALL
        (SELECT o.id, o.state, o.weight, o.run_at FROM (
             SELECT t.id, t.state, t.weight, t.run_at FROM queue.tasks AS t
             WHERE t.queue = source.name AND t.group_key = next_admission.group_key
               AND (t.admission, t.id) >= (is_open, first_id) AND t.admission <= is_open
             ORDER BY t.admission, t.id LIMIT 1000) AS o
         WHERE o.state = 'queued' AND (blocking OR o.run_at <= clock_timestamp())
         ORDER BY o.id LIMIT 1)) AS w
    ORDER BY w.id LIMIT 1;
    IF first.id IS NULL THEN
        RETURN;
    ELSIF first.state = 'waiting' THEN
        -- It waits for its predecessors or for an event, and takes a place as a task that runs does. So there is no room
        -- behind as many of them as may run.
        SELECT b.id, b.state, b.weight, b.run_at INTO first FROM (
            SELECT t.id, t.state, t.weight, t.run_at, t.admission FROM queue.tasks AS t
            WHERE t.queue = source.name AND t.group_key = next_admission.group_key
              AND (t.admission, t.id) >= (is_blocked, first_id)
            ORDER BY t.admission, t.id LIMIT source.max_running_per_group) AS b
        WHERE b.state = 'queued' ORDER BY b.admission, b.id LIMIT 1;
        waiting := CASE WHEN first.id IS NULL THEN source.max_running_per_group
                        ELSE queue_internal.waiting_before(source, group_key, first.id, first_id) END;
    END IF;
    has_room := admitted + waiting < source.max_running_per_group;
    -- A delayed task that others pass is only opened.
    opens := NOT blocking AND first.run_at > clock_timestamp();
    IF opens
       OR has_room
          -- Fair: one task of each group is in the order, and the next joins at its end.
          AND NOT (source.fair_groups AND ready > 0)
          AND (used + least(first.weight, source.group_rate_limit) > source.group_rate_limit) IS NOT TRUE THEN
        admit := first.id;
    ELSIF latest > first.id THEN
        withdraw := latest;
    ELSIF waiting > 0
          AND admitted + queue_internal.waiting_before(source, group_key, latest, first_id)
              > source.max_running_per_group THEN
        withdraw := latest;
    ELSIF has_room AND source.group_rate_limit IS NOT NULL THEN
        not_before := queue_internal.group_free_at(
            source, group_key, used + least(first.weight, source.group_rate_limit) - source.group_rate_limit);
    END IF;
    -- Otherwise the limit is reached.
END
$$;
COMMENT ON FUNCTION queue_internal.next_admission IS
    'Returns which task of a group to admit next, or whose admission to withdraw.';

-- Admits tasks of a group until its limit or the time is reached; leaves an event for the rest. Returns false if the
-- group has to be checked again, because another transaction admits its tasks or has the next task locked. "arrived" is the
-- smallest id among the tasks that have come to the group since it was last checked, null if none have. "blocked" is the first
-- blocked task if this transaction has locked the group and found it, else null.
--   Why one statement for the usual case: each further one costs as much as what it does.
CREATE FUNCTION queue_internal.admit_next(
    queue text, group_key text, until timestamptz, arrived bigint DEFAULT NULL, blocked bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In variables, as in admitted_of.
    is_open     CONSTANT smallint := 0;
    is_admitted CONSTANT smallint := 1;
    is_blocked  CONSTANT smallint := 2;
    source     queue.queues;
    entries    bigint;
    head       bigint;
    changes    integer;
    returned   bigint;
    first      bigint;
    now        record;
    step       record;
    next       queue.tasks;
    is_full    boolean := false;
BEGIN
    IF blocked IS NULL AND NOT queue_internal.lock_group(queue, group_key) THEN
        RETURN false;
    END IF;
    -- A smaller limit may have been set meanwhile. From now on this lock prevents that.
    SELECT q.* INTO source FROM queue.queues AS q WHERE q.name = admit_next.queue;
    IF NOT FOUND THEN
        RETURN true;
    END IF;
    entries := queue_internal.group_entries_passed();
    SELECT h.first_id, h.changes, r.task_id INTO head, changes, returned
    FROM (SELECT) AS one
         LEFT JOIN queue_internal.group_heads AS h ON h.queue = source.name AND h.group_key = admit_next.group_key
         LEFT JOIN LATERAL (
             SELECT r.task_id FROM queue_internal.group_returns AS r
             WHERE r.queue = source.name AND r.group_key = admit_next.group_key
             ORDER BY r.queue, r.group_key, r.task_id LIMIT 1) AS r ON true;
    arrived := least(arrived, returned);
    IF arrived < head THEN
        UPDATE queue_internal.group_heads AS h SET first_id = arrived
        WHERE (h.queue, h.group_key) IN (
            SELECT o.queue, o.group_key FROM queue_internal.group_heads AS o
            WHERE o.queue = source.name AND o.group_key = admit_next.group_key FOR UPDATE SKIP LOCKED);
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        head := arrived;
    END IF;
    IF returned IS NOT NULL THEN
        DELETE FROM queue_internal.group_returns AS r
        WHERE (r.queue, r.group_key, r.task_id, r.number) IN (
            SELECT o.queue, o.group_key, o.task_id, o.number FROM queue_internal.group_returns AS o
            WHERE o.queue = source.name AND o.group_key = admit_next.group_key AND o.task_id >= returned
            ORDER BY o.queue, o.group_key, o.task_id LIMIT 1000 FOR UPDATE SKIP LOCKED);
    END IF;
    first := coalesce(head, -9223372036854775808);
    IF source.max_running_per_group = 1 AND source.delayed_head = 'block' AND source.group_rate_limit IS NULL
       AND NOT source.fair_groups THEN
        -- The first task if it is blocked and queued, and nothing else in the group is admitted or open.
        UPDATE queue.tasks AS t SET admission = 1
        WHERE t.id = (
            SELECT l.id FROM queue.tasks AS l
            WHERE l.id = (SELECT b.id FROM queue.tasks AS b
                          WHERE b.queue = source.name AND b.group_key = admit_next.group_key
                            AND (b.admission, b.id) >= (is_blocked, coalesce(blocked, first))
                          ORDER BY b.admission, b.id LIMIT 1)
              AND (SELECT a.id FROM queue.tasks AS a
                   WHERE a.queue = source.name AND a.group_key = admit_next.group_key
                     AND (a.admission, a.id) >= (is_admitted, first) AND a.admission <= is_admitted
                   ORDER BY a.admission, a.id LIMIT 1) IS NULL
              AND (SELECT o.id FROM queue.tasks AS o
                   WHERE o.queue = source.name AND o.group_key = admit_next.group_key
                     AND (o.admission, o.id) >= (is_open, first) AND o.admission <= is_open
                   ORDER BY o.admission, o.id LIMIT 1) IS NULL
              AND l.admission = is_blocked AND l.state = 'queued'
              AND l.queue = source.name AND l.group_key = admit_next.group_key
            FOR NO KEY UPDATE SKIP LOCKED)
        RETURNING t.* INTO next;
        is_full := FOUND;
    END IF;
    IF is_full THEN
        PERFORM queue_internal.move_scan_start_back(next);
    ELSE
        SELECT a.* INTO now FROM queue_internal.admitted_of(source, group_key, first) AS a;
    END IF;
    WHILE NOT is_full LOOP
        SELECT s.* INTO step
        FROM queue_internal.next_admission(source, group_key, now.admitted, now.ready, now.latest, now.used, first) AS s;
        IF step.withdraw IS NOT NULL THEN
            UPDATE queue.tasks AS t SET admission = 2
            WHERE t.id = (SELECT l.id FROM queue.tasks AS l
                          WHERE l.id = step.withdraw AND l.admission = 1 AND l.state = 'queued'
                            AND l.queue = source.name AND l.group_key = admit_next.group_key
                          FOR NO KEY UPDATE SKIP LOCKED);
            IF NOT FOUND THEN
                RETURN false;
            END IF;
            SELECT a.* INTO now FROM queue_internal.admitted_of(source, group_key, first) AS a;
        ELSIF step.admit IS NOT NULL THEN
            UPDATE queue.tasks AS t
            -- It may have been delayed since next_admission read it.
            SET admission = CASE WHEN step.opens OR source.delayed_head = 'pass' AND t.run_at > clock_timestamp() THEN 0 ELSE 1 END,
                run_at = CASE WHEN source.fair_groups THEN greatest(t.run_at, clock_timestamp()) ELSE t.run_at END
            WHERE t.id = (SELECT l.id FROM queue.tasks AS l
                          WHERE l.id = step.admit AND l.admission <> 1 AND l.state = 'queued'
                            -- It may have been moved to another queue since next_admission read it.
                            AND l.queue = source.name AND l.group_key = admit_next.group_key
                          FOR NO KEY UPDATE SKIP LOCKED)
            RETURNING t.* INTO next;
            IF NOT FOUND THEN
                RETURN false;
            END IF;
            PERFORM queue_internal.move_scan_start_back(next);
            now.admitted := now.admitted + next.admission;
            now.ready := now.ready + next.admission;
            now.used := now.used + next.admission * least(next.weight, source.group_rate_limit);
            now.latest := CASE WHEN next.admission = 1 THEN greatest(now.latest, next.id) ELSE now.latest END;
            -- Nothing to withdraw either, if no other waits to be claimed. Where delayed tasks are passed, they are opened.
            is_full := now.admitted = source.max_running_per_group AND now.ready = 1 AND source.delayed_head = 'block';
        ELSE
            IF step.not_before IS NOT NULL THEN
                PERFORM queue_internal.recheck_group_at(source, group_key, step.not_before);
            END IF;
            EXIT;
        END IF;
        IF clock_timestamp() >= until THEN
            INSERT INTO queue_internal.events (queue, group_key) VALUES (source.name, admit_next.group_key);
            EXIT;
        END IF;
    END LOOP;
    IF queue_internal.group_entries_passed() > entries + 40 + 4 * coalesce(changes, 0) THEN
        PERFORM queue_internal.raise_group_head(source.name, group_key);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.admit_next IS
    'Admits tasks of a group up to its limit; false if that has to wait.';

-- Tasks of a group that became due while they were open have to be blocked like the others. Many at once, because a
-- claim would meet them one by one; but it reads no more than the next ones, most of which may not be due.
CREATE FUNCTION queue_internal.block_due_tasks(task queue.tasks) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- Not written into the statement, as in admitted_of.
    is_open CONSTANT smallint := 0;
BEGIN
    WITH due AS MATERIALIZED (
        SELECT t.id FROM queue.tasks AS t
        WHERE t.id = ANY (ARRAY(
                  SELECT o.id FROM queue.tasks AS o
                  -- In the order of tasks_group, because the index on ids has the tasks of all queues.
                  WHERE o.queue = task.queue AND o.group_key = task.group_key
                    AND (o.admission, o.id) >= (is_open, task.id) AND o.admission <= is_open
                  ORDER BY o.admission, o.id LIMIT 200))
          AND t.queue = task.queue AND t.group_key = task.group_key AND t.admission = is_open
          AND t.state = 'queued' AND t.run_at <= clock_timestamp()
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE queue.tasks AS t SET admission = 2 FROM due AS d WHERE t.id = d.id;
    INSERT INTO queue_internal.events (queue, group_key, arrived) VALUES (task.queue, task.group_key, task.id);
END
$$;
COMMENT ON FUNCTION queue_internal.block_due_tasks IS 'Blocks the due tasks of a group until it is their turn.';

-- Called when a task of a group is requeued or gets another run_at: a task behind it may run first, or it may run
-- before others. If the option of the queue says so, a delayed task lets the others pass. In a group with a rate limit,
-- a task that has run must be admitted again before its next start.
CREATE FUNCTION queue_internal.recheck_group(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF task.group_key IS NULL THEN
        RETURN;
    ELSIF task.admission = 1 THEN
        UPDATE queue.tasks AS t
        SET admission = CASE WHEN q.delayed_head = 'pass' AND task.run_at > clock_timestamp() THEN 0 ELSE 2 END
        FROM queue.queues AS q
        WHERE t.id = task.id AND q.name = task.queue
          AND (q.delayed_head = 'pass' AND task.run_at > clock_timestamp()
               OR q.group_rate_limit IS NOT NULL AND task.state = 'running');
    END IF;
    INSERT INTO queue_internal.events (queue, group_key, arrived) VALUES (task.queue, task.group_key, task.id);
END
$$;
COMMENT ON FUNCTION queue_internal.recheck_group IS
    'Has the admissions of a group checked again after a task was requeued or delayed.';
