-- Groups: who of a group may run.
--
--   The tasks of a group are pushed with their gate closed, and are not in tasks_order: a claim never
--   passes over those that have to wait, however many there are. Whatever may let the next one go on
--   (a push, an end) leaves a signal; the next claim from the queue reads it and opens the gate of as
--   many as the limit allows, the earliest pushed first. So at most "max_running_per_group" of a group
--   have gate 1, and only those can be claimed.
--
--   Exact, because the gates of one group are opened by one transaction at a time, which sees
--   everything committed before: it holds the group's advisory lock from before it counts until its
--   own commit. Nobody waits for that lock: who does not get it leaves the signal where it is.

CREATE FUNCTION queue_internal.lock_group(queue text, group_key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- The first number keeps clear of other users of advisory locks.
    RETURN pg_try_advisory_xact_lock(hashtext('queue_ext group'), hashtext(queue || '/' || group_key));
END
$$;
COMMENT ON FUNCTION queue_internal.lock_group(text, text) IS
    'Makes this transaction the only one that opens gates of the group; false if another one is.';

-- Opens the gates of a group as far as its limit allows. False if somebody else is at it, or has the
-- task whose turn it is locked: then the signal has to stay.
CREATE FUNCTION queue_internal.admit_next(source queue.queues, group_key text) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- Not written into the statement: the planner would see that it is below 2, and go through tasks_order.
    ajar     CONSTANT smallint := 1;
    admitted bigint;
    ready    bigint;
    next     queue.tasks;
BEGIN
    IF NOT queue_internal.lock_group(source.name, group_key) THEN
        RETURN false;
    END IF;
    SELECT count(*), count(*) FILTER (WHERE t.state = 'queued') INTO admitted, ready
    FROM queue.tasks AS t
    WHERE t.queue = source.name AND t.group_key = admit_next.group_key AND t.gate = ajar;
    -- The limit was lowered: the latest go back.
    IF admitted > source.max_running_per_group THEN
        UPDATE queue.tasks AS t SET gate = 2
        WHERE t.id IN (
            SELECT l.id FROM queue.tasks AS l
            WHERE l.queue = source.name AND l.group_key = admit_next.group_key AND l.gate = ajar
              AND l.state = 'queued'
            ORDER BY l.id DESC LIMIT admitted - source.max_running_per_group FOR UPDATE SKIP LOCKED);
        RETURN true;
    END IF;
    -- Fair: one task of each group stands in the line, and the next joins at its end.
    WHILE admitted < source.max_running_per_group AND NOT (source.fair_groups AND ready > 0) LOOP
        SELECT t.* INTO next FROM queue.tasks AS t
        WHERE t.queue = source.name AND t.group_key = admit_next.group_key AND t.gate = 2
          AND (t.state = 'queued' OR source.delayed_head = 'block')
        ORDER BY t.id LIMIT 1;
        -- A head that still waits for its predecessors holds up those behind it, as a delayed one does.
        EXIT WHEN next.id IS NULL OR next.state = 'waiting';
        UPDATE queue.tasks AS t
        SET gate = CASE WHEN source.delayed_head = 'pass' AND t.run_at > clock_timestamp() THEN 0 ELSE 1 END,
            run_at = CASE WHEN source.fair_groups THEN greatest(t.run_at, clock_timestamp()) ELSE t.run_at END
        WHERE t.id = (SELECT l.id FROM queue.tasks AS l
                      WHERE l.id = next.id AND l.gate = 2 AND l.state = 'queued' FOR UPDATE SKIP LOCKED)
        RETURNING t.* INTO next;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        PERFORM queue_internal.keep_in_view(next);
        admitted := admitted + next.gate;
        ready := ready + next.gate;
    END LOOP;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.admit_next(queue.queues, text) IS
    'Lets tasks of a group run, as far as its limit allows; false if that has to wait.';

-- The tasks of a group that came due before they were admitted have to queue up like the others. All
-- of them at once, because a claim would meet them one by one.
CREATE FUNCTION queue_internal.queue_up(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    -- Not written into the statement, as in admit_next.
    wide_open CONSTANT smallint := 0;
BEGIN
    WITH due AS MATERIALIZED (
        SELECT t.id FROM queue.tasks AS t
        WHERE t.queue = task.queue AND t.group_key = task.group_key AND t.gate = wide_open
          AND t.state = 'queued' AND t.run_at <= clock_timestamp()
        LIMIT 1000 FOR UPDATE SKIP LOCKED
    )
    UPDATE queue.tasks AS t SET gate = 2 FROM due AS d WHERE t.id = d.id;
    INSERT INTO queue_internal.signals (queue, group_key) VALUES (task.queue, task.group_key);
END
$$;
COMMENT ON FUNCTION queue_internal.queue_up(queue.tasks) IS
    'Closes the gate of the due tasks of a group until it is their turn.';

-- Where the queue says so, an admitted task that is put off lets the next one of its group pass.
CREATE FUNCTION queue_internal.yield_turn(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF task.gate = 1 AND task.run_at > clock_timestamp() THEN
        UPDATE queue.tasks AS t SET gate = 0
        WHERE t.id = task.id AND EXISTS (
            SELECT FROM queue.queues AS q WHERE q.name = task.queue AND q.delayed_head = 'pass');
        IF FOUND THEN
            INSERT INTO queue_internal.signals (queue, group_key) VALUES (task.queue, task.group_key);
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.yield_turn(queue.tasks) IS
    'Lets the next task of a group go first, if this one is delayed and its queue says so.';
