-- Dependencies: a task that waits for others.
--
--   A dependency is written with the push of the task that waits, and deleted when its predecessor
--   has finished. The end of a predecessor leaves a signal for every task that waits for it, and
--   whoever reads the signal does what it leads to: so no ending waits for another one, chains of any
--   length are worked off one signal at a time, and two predecessors that finish at the same moment
--   cannot both believe that the other one is still to come.
--
--   Cycles cannot be: a task can only wait for tasks that were there before it.

-- One plan for all: to make it, for all days of the history, takes longer than to push the task.
CREATE FUNCTION queue_internal.add_dependencies(task_id bigint, queue text, after bigint[], on_failure text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    known bigint;
BEGIN
    INSERT INTO queue_internal.dependencies (predecessor_id, task_id, queue, predecessor_queue, on_failure)
    SELECT a.id, add_dependencies.task_id, add_dependencies.queue, found.queue, add_dependencies.on_failure
    FROM (SELECT DISTINCT i.id FROM unnest(after) AS i (id)) AS a,
         -- The task itself is there already, and cannot wait for itself.
         LATERAL (SELECT t.queue FROM queue.tasks AS t WHERE t.id = a.id AND t.id <> add_dependencies.task_id
                  UNION ALL SELECT d.queue FROM queue.dead_letters AS d WHERE d.id = a.id
                  UNION ALL SELECT h.queue FROM queue.history AS h WHERE h.id = a.id LIMIT 1) AS found
    -- A task of a queue that the caller has nothing to do with does not exist for it.
    WHERE queue_internal.has_right('any', found.queue)
    ORDER BY a.id;
    GET DIAGNOSTICS known = ROW_COUNT;
    IF known < (SELECT count(DISTINCT i.id) FROM unnest(after) AS i (id)) THEN
        PERFORM queue_internal.raise_unknown_task(min(a.id)) FROM unnest(after) AS a (id)
        WHERE NOT EXISTS (SELECT FROM queue_internal.dependencies AS d
                          WHERE d.predecessor_id = a.id AND d.task_id = add_dependencies.task_id);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.add_dependencies(bigint, text, bigint[], text) IS
    'Makes a task wait for others.';

-- What one signal about a waiting task leads to. False if it has to be looked at again.
CREATE FUNCTION queue_internal.settle_dependent(signal queue_internal.signals) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task  queue.tasks;
    ended record;
    told  boolean := false;
BEGIN
    SELECT t.* INTO task FROM queue.tasks AS t WHERE t.id = signal.task_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NOT EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = signal.task_id);
    ELSIF task.state <> 'waiting' THEN
        RETURN true;
    END IF;
    -- The task was moved, or somebody with rights on this queue alone has made the signal up: it is to be
    -- looked at, but what the signal tells is not to be believed.
    IF signal.queue <> task.queue THEN
        signal.queue := task.queue;
        signal.predecessor_id := NULL;
    END IF;
    FOR ended IN SELECT * FROM queue_internal.ended_predecessors(signal) LOOP
        DELETE FROM queue_internal.dependencies AS d
        WHERE d.predecessor_id = ended.id AND d.task_id = task.id;
        IF ended.outcome <> 'completed' AND ended.on_failure <> 'release' THEN
            task.errors := queue_internal.with_error(
                task, format('predecessor %s %s', ended.id,
                             CASE ended.outcome WHEN 'failed' THEN 'failed' ELSE 'was cancelled' END));
            IF ended.on_failure = 'fail' THEN
                PERFORM queue_internal.bury(task);
            ELSE
                PERFORM queue_internal.cancel_now(task);
            END IF;
            RETURN true;
        END IF;
        told := true;
    END LOOP;
    IF NOT EXISTS (SELECT FROM queue_internal.dependencies AS d
                   WHERE d.task_id = task.id AND d.queue = task.queue) THEN
        -- One that waits for nothing comes from a dump, which is still to bring what it waits for.
        IF told THEN
            PERFORM queue_internal.let_go(task);
        END IF;
        RETURN true;
    END IF;
    IF signal.predecessor_id IS NOT NULL THEN
        RETURN true;
    ELSIF NOT row_security_active('queue.tasks') THEN
        UPDATE queue_internal.dependencies AS d SET predecessor_queue = t.queue FROM queue.tasks AS t
        WHERE d.task_id = task.id AND t.id = d.predecessor_id AND t.queue <> d.predecessor_queue;
    END IF;
    RETURN queue_internal.predecessors_will_signal(task.id, task.queue);
END
$$;
COMMENT ON FUNCTION queue_internal.settle_dependent(queue_internal.signals) IS
    'Lets a waiting task go on, or end, when its predecessors have; false if that has to wait.';

-- The predecessors that the signal tells of; or all that have ended, if it came with the push. Only a
-- dependency that is of the task's own queue is its own, and only rows of that queue tell of it: whoever has
-- rights on another can write what he likes there.
-- Why scalar subqueries, and one plan for all: a task may have one predecessor or 100,000, and the plan
-- made for many would go through all tasks for one, or be made anew for each.
CREATE FUNCTION queue_internal.ended_predecessors(
    signal queue_internal.signals, OUT id bigint, OUT outcome text, OUT on_failure text)
RETURNS SETOF record
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    sees_all boolean;
BEGIN
    IF signal.predecessor_id IS NOT NULL THEN
        RETURN QUERY
        SELECT d.predecessor_id, signal.outcome, d.on_failure FROM queue_internal.dependencies AS d
        WHERE d.predecessor_id = signal.predecessor_id AND d.task_id = signal.task_id AND d.queue = signal.queue;
        RETURN;
    END IF;
    sees_all := NOT row_security_active('queue.tasks');
    -- One that left no trace was in a queue without history, or was purged. Its signal, if it left one,
    -- says how it ended; else nothing says that it did not do its work, and waiting would be for ever. But
    -- whoever may not see all queues cannot tell it from a hidden one, and leaves that to the background
    -- worker.
    RETURN QUERY
    SELECT e.predecessor_id, coalesce(e.outcome, 'completed'), e.on_failure
    FROM (
        SELECT d.predecessor_id, d.on_failure, coalesce(
            -- One that was moved may have ended in another queue than the dependency says.
            (SELECT l.state FROM (SELECT 'failed' AS state, l.queue FROM queue.dead_letters AS l
                                  WHERE l.id = d.predecessor_id
                                  UNION ALL SELECT h.state, h.queue FROM queue.history AS h
                                  WHERE h.id = d.predecessor_id) AS l
             ORDER BY l.queue = d.predecessor_queue DESC LIMIT 1),
            (SELECT s.outcome FROM queue_internal.signals AS s
             WHERE s.task_id = d.task_id AND s.predecessor_id = d.predecessor_id AND s.queue = d.queue
             LIMIT 1)) AS outcome
        FROM queue_internal.dependencies AS d
        WHERE d.task_id = signal.task_id AND d.queue = signal.queue
          AND (SELECT t.id FROM queue.tasks AS t WHERE t.id = d.predecessor_id) IS NULL) AS e
    WHERE sees_all OR e.outcome IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.ended_predecessors(queue_internal.signals) IS
    'Predecessors of a waiting task that have ended, and how.';

-- Whether every predecessor that is left will tell when it ends. One that is ending just now may have
-- looked for dependents before the dependency was committed; it has its row locked. The locks are
-- given back at once, so that no ending waits for them. One that was moved at such a moment is in
-- another queue than the dependency says, and a worker of that queue alone would not find it.
CREATE FUNCTION queue_internal.predecessors_will_signal(task_id bigint, queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    free  bigint;
    total bigint;
BEGIN
    BEGIN
        SELECT count(*) INTO free FROM (
            SELECT FROM queue_internal.dependencies AS d
            JOIN queue.tasks AS t ON t.id = d.predecessor_id AND t.queue = d.predecessor_queue
            WHERE d.task_id = predecessors_will_signal.task_id AND d.queue = predecessors_will_signal.queue
            FOR SHARE OF t SKIP LOCKED) AS locked;
        RAISE SQLSTATE 'QXRBK';
    EXCEPTION WHEN SQLSTATE 'QXRBK' THEN
        NULL;
    END;
    SELECT count(*) INTO total FROM queue_internal.dependencies AS d
    WHERE d.task_id = predecessors_will_signal.task_id AND d.queue = predecessors_will_signal.queue;
    RETURN free = total;
END
$$;
COMMENT ON FUNCTION queue_internal.predecessors_will_signal(bigint, text) IS
    'Whether none of the predecessors of a task is being finished at this moment.';

CREATE FUNCTION queue_internal.let_go(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE queue.tasks AS t
    SET state = 'queued', updated_at = clock_timestamp(),
        gate = CASE WHEN t.group_key IS NULL THEN 0 ELSE 2 END
    WHERE t.id = task.id;
    IF task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.signals (queue, group_key) VALUES (task.queue, task.group_key);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.let_go(queue.tasks) IS 'Puts a waiting task into its queue.';
