-- Dependencies: a task that waits for others.
--
--   A dependency is written with the push of the task that waits, and deleted when its predecessor
--   has finished. The end of a predecessor leaves a signal for every task that waits for it, and
--   whoever reads the signal does what it leads to: so no ending waits for another one, chains of any
--   length are worked off one signal at a time, and two predecessors that finish at the same moment
--   cannot both believe that the other one is still to come.
--
--   Cycles cannot be: a task can only wait for tasks that were there before it.

CREATE FUNCTION queue_internal.add_dependencies(task_id bigint, queue text, after bigint[], on_failure text)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    unknown bigint;
BEGIN
    SELECT a.id INTO unknown FROM unnest(after) AS a (id)
    WHERE NOT EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = a.id)
      AND NOT EXISTS (SELECT FROM queue.dead_letters AS d WHERE d.id = a.id)
      AND NOT EXISTS (SELECT FROM queue.history AS h WHERE h.id = a.id)
    LIMIT 1;
    IF FOUND THEN
        PERFORM queue_internal.raise_unknown_task(unknown);
    END IF;
    INSERT INTO queue_internal.dependencies (predecessor_id, task_id, queue, on_failure)
    SELECT DISTINCT a.id, add_dependencies.task_id, add_dependencies.queue, add_dependencies.on_failure
    FROM unnest(after) AS a (id) ORDER BY a.id;
    -- A predecessor may have finished already, or be finishing at this moment.
    INSERT INTO queue_internal.signals (queue, task_id) VALUES (add_dependencies.queue, add_dependencies.task_id);
END
$$;
COMMENT ON FUNCTION queue_internal.add_dependencies(bigint, text, bigint[], text) IS
    'Makes a task wait for others.';

-- What one signal about a waiting task leads to. False if it has to be looked at again.
CREATE FUNCTION queue_internal.settle_dependent(signal queue_internal.signals) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    task  queue.tasks;
    ended record;
BEGIN
    SELECT t.* INTO task FROM queue.tasks AS t WHERE t.id = signal.task_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NOT EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = signal.task_id);
    ELSIF task.state <> 'waiting' THEN
        RETURN true;
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
    END LOOP;
    IF NOT EXISTS (SELECT FROM queue_internal.dependencies AS d WHERE d.task_id = task.id) THEN
        PERFORM queue_internal.let_go(task);
        RETURN true;
    END IF;
    RETURN signal.predecessor_id IS NOT NULL OR queue_internal.predecessors_will_signal(task.id);
END
$$;
COMMENT ON FUNCTION queue_internal.settle_dependent(queue_internal.signals) IS
    'Lets a waiting task go on, or end, when its predecessors have; false if that has to wait.';

-- The predecessors that the signal tells of; or all that have ended, if it came with the push.
CREATE FUNCTION queue_internal.ended_predecessors(
    signal queue_internal.signals, OUT id bigint, OUT outcome text, OUT on_failure text)
RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    IF signal.predecessor_id IS NOT NULL THEN
        RETURN QUERY
        SELECT d.predecessor_id, signal.outcome, d.on_failure FROM queue_internal.dependencies AS d
        WHERE d.predecessor_id = signal.predecessor_id AND d.task_id = signal.task_id;
        RETURN;
    END IF;
    -- Whoever may not see all queues cannot tell an ended predecessor from a hidden one. The
    -- background worker can.
    IF row_security_active('queue.tasks') THEN
        RETURN;
    END IF;
    -- One that left no trace was in a queue without history, or was purged. Its signal, if it left one,
    -- says how it ended; else nothing says that it did not do its work, and waiting would be for ever.
    RETURN QUERY
    SELECT d.predecessor_id,
           CASE WHEN EXISTS (SELECT FROM queue.dead_letters AS l WHERE l.id = d.predecessor_id) THEN 'failed'
                ELSE coalesce(
                    (SELECT h.state FROM queue.history AS h WHERE h.id = d.predecessor_id),
                    (SELECT s.outcome FROM queue_internal.signals AS s
                     WHERE s.task_id = d.task_id AND s.predecessor_id = d.predecessor_id LIMIT 1),
                    'completed')
           END,
           d.on_failure
    FROM queue_internal.dependencies AS d
    WHERE d.task_id = signal.task_id
      AND NOT EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = d.predecessor_id);
END
$$;
COMMENT ON FUNCTION queue_internal.ended_predecessors(queue_internal.signals) IS
    'Predecessors of a waiting task that have ended, and how.';

-- Whether every predecessor that is left will tell when it ends. One that is ending just now may have
-- looked for dependents before the dependency was committed; it has its row locked. The locks are
-- given back at once, so that no ending waits for them.
CREATE FUNCTION queue_internal.predecessors_will_signal(task_id bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    free  bigint;
    total bigint;
BEGIN
    IF row_security_active('queue.tasks') THEN
        RETURN false;
    END IF;
    BEGIN
        SELECT count(*) INTO free FROM (
            SELECT FROM queue.tasks AS t
            WHERE t.id IN (SELECT d.predecessor_id FROM queue_internal.dependencies AS d
                           WHERE d.task_id = predecessors_will_signal.task_id)
            FOR KEY SHARE SKIP LOCKED) AS locked;
        RAISE SQLSTATE 'QXRBK';
    EXCEPTION WHEN SQLSTATE 'QXRBK' THEN
        NULL;
    END;
    SELECT count(*) INTO total FROM queue_internal.dependencies AS d
    WHERE d.task_id = predecessors_will_signal.task_id;
    RETURN free = total;
END
$$;
COMMENT ON FUNCTION queue_internal.predecessors_will_signal(bigint) IS
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
