-- Dependencies: a task that waits for others.
--
--   Each dependency is a row, written with the push of the task that waits. The end of the predecessor writes its
--   outcome there and leaves an event for the dependent, in the same transaction. A waiting task is unblocked when all
--   of its rows have an outcome, and ends as soon as one has an outcome that its on_failure does not accept.
--
--   A push that names a predecessor and the end of that predecessor wait for each other, as with a foreign key: the
--   push holds a KEY SHARE lock on the predecessor's row until it commits. So an end either comes first, and the push
--   reads how it ended, or comes later, and sees the dependency. Whatever does not end the predecessor, such as a
--   claim, a heartbeat or a retry, does not conflict with that lock.
--   At REPEATABLE READ and SERIALIZABLE the snapshot of an end may be older than the dependency; then the sweep writes
--   the outcome (sweep.sql).
--
--   An end notifies up to a thousand dependents, and a call that ends several tasks up to ten thousand. The background
--   worker and queue.maintain() notify the remaining dependents, called the rest, in short transactions. Claims do not:
--   the transaction of a claim may stay open, and the rest would be locked for that long.
--
--   Cycles are impossible: a task can only wait for tasks that existed before it, or for the members of a batch, which
--   must not wait for it (batches.sql).

-- Locks, in the order of ids and before a push takes a key or inserts a task: the predecessors, of which it returns
-- those that are live, and the tasks with the keys, which will be changed or waited for. A single push without
-- predecessors holds no lock yet when it locks the task with its key, so it does not call this. A task of a queue on
-- which the caller has no right is treated as if it did not exist.
CREATE FUNCTION queue_internal.lock_before_push(queues text[], keys text[], on_duplicate text, after bigint[])
RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    live bigint[] := '{}';
    one  record;
BEGIN
    IF on_duplicate NOT IN ('replace', 'reschedule') OR after = '{}' AND cardinality(keys) <= 1 THEN
        RETURN ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.id = ANY (after) AND queue_internal.has_right('any', t.queue)
            ORDER BY t.id FOR KEY SHARE);
    END IF;
    -- The tasks with the keys, each with its queue, and the predecessors. An old snapshot can show two tasks with a key,
    -- one of which has ended since: then its lock raises 40001.
    FOR one IN
        SELECT u.id, min(u.queue) AS holds_in, bool_or(u.precedes) AS precedes
        FROM (SELECT k.task_id, n.queue, false
              FROM unnest(queues, keys) AS n (queue, key),
                   LATERAL (SELECT i.task_id FROM queue_internal.keys AS i
                            WHERE i.queue = n.queue AND i.key = n.key AND i.expires_at IS NULL OFFSET 0) AS k
              UNION ALL SELECT a.id, NULL, true FROM unnest(after) AS a (id)) AS u (id, queue, precedes)
        GROUP BY u.id ORDER BY u.id
    LOOP
        -- As in resolve_duplicate: of a running task only the key changes.
        IF one.holds_in IS NOT NULL THEN
            PERFORM FROM queue.tasks AS t
            WHERE t.id = one.id AND t.queue = one.holds_in AND t.state IN ('queued', 'waiting') FOR NO KEY UPDATE;
        END IF;
        PERFORM FROM queue.tasks AS t
        WHERE t.id = one.id AND (t.queue = one.holds_in OR queue_internal.has_right('any', t.queue)) FOR KEY SHARE;
        IF FOUND AND one.precedes THEN
            live := live || one.id;
        END IF;
    END LOOP;
    RETURN live;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_before_push IS
    'Locks the tasks that pushes will wait for or change; returns the live predecessors.';

-- "live" are the predecessors that lock_before_push has locked. Why a generic plan: planning for all partitions of
-- the history takes longer than pushing the task.
CREATE FUNCTION queue_internal.add_dependencies(
    task_id bigint, queue text, after bigint[], on_failure text, live bigint[])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    known bigint;
    ended bigint;
BEGIN
    -- Set operations, because a plan that is not made for these arrays may compare each element with each.
    live := ARRAY(SELECT unnest(live) INTERSECT SELECT unnest(after));
    INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
    SELECT DISTINCT a.id, add_dependencies.task_id, add_dependencies.on_failure FROM unnest(after) AS a (id) ORDER BY a.id;
    GET DIAGNOSTICS known = ROW_COUNT;
    IF cardinality(live) = known THEN
        RETURN;
    END IF;
    -- A new snapshot: predecessors that are gone by now have ended.
    UPDATE queue_internal.dependencies AS d SET outcome = e.outcome
    FROM (SELECT a.id, f.outcome
          FROM (SELECT DISTINCT i.id FROM unnest(after) AS i (id)) AS a,
               LATERAL (SELECT 'failed' AS outcome, l.queue FROM queue.dead_letters AS l WHERE l.id = a.id
                        UNION ALL SELECT h.state, h.queue FROM queue.history AS h WHERE h.id = a.id LIMIT 1) AS f
          WHERE (SELECT t.id FROM queue.tasks AS t WHERE t.id = a.id) IS NULL
            AND queue_internal.has_right('any', f.queue)) AS e
    WHERE d.predecessor_id = e.id AND d.task_id = add_dependencies.task_id;
    GET DIAGNOSTICS ended = ROW_COUNT;
    IF cardinality(live) + ended < known THEN
        -- These are dead letters that were put back after the others were locked. The task itself exists already and
        -- cannot wait for itself.
        live := live || ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.id = ANY (ARRAY(SELECT unnest(after) EXCEPT SELECT unnest(live)))
              AND t.id <> add_dependencies.task_id
              AND queue_internal.has_right('any', t.queue)
            ORDER BY t.id FOR KEY SHARE);
    END IF;
    IF cardinality(live) + ended < known THEN
        PERFORM queue_internal.raise_unknown_task(min(d.predecessor_id)) FROM queue_internal.dependencies AS d
        WHERE d.task_id = add_dependencies.task_id AND d.outcome IS NULL
          AND d.predecessor_id = ANY (ARRAY(SELECT unnest(after) EXCEPT SELECT unnest(live)));
    END IF;
    INSERT INTO queue_internal.events (queue, task_id) VALUES (add_dependencies.queue, add_dependencies.task_id);
END
$$;
COMMENT ON FUNCTION queue_internal.add_dependencies IS 'Makes a task wait for its predecessors.';

-- The newest first, because of the members of a batch those usually end last. Not EXISTS, as in has_event.
CREATE FUNCTION queue_internal.waits_for_another(task_id bigint) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN (SELECT d.task_id FROM queue_internal.dependencies AS d
            WHERE d.task_id = waits_for_another.task_id AND d.outcome IS NULL
            ORDER BY d.task_id DESC, d.outcome DESC LIMIT 1) IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.waits_for_another IS
    'Returns whether a task has a predecessor, or a batch a member, that has not ended.';

-- Used by the sweep. Null for a task that is live or left no trace.
CREATE FUNCTION queue_internal.outcome_of(task_id bigint) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = outcome_of.task_id) THEN
        RETURN NULL;
    END IF;
    RETURN coalesce(
        (SELECT 'failed' FROM queue.dead_letters AS l WHERE l.id = outcome_of.task_id),
        (SELECT h.state FROM queue.history AS h WHERE h.id = outcome_of.task_id LIMIT 1),
        (SELECT o.outcome FROM queue_internal.outcomes AS o WHERE o.task_id = outcome_of.task_id));
END
$$;
COMMENT ON FUNCTION queue_internal.outcome_of IS 'Returns how a task ended, if it left a trace.';

-- Called in a statement after the one that deleted the tasks, so that its snapshot shows every dependency that was
-- committed while that statement waited. Rows that another transaction has locked are left out, so that no end
-- waits for them: that transaction deletes them, or rolls back, and then the sweep finds the outcome.
CREATE FUNCTION queue_internal.notify_dependents(ids bigint[], outcome text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    of_each    CONSTANT integer := 1000;
    of_all     CONSTANT integer := 10000;
    most       integer;
    ended      bigint;
    dependents bigint[];
    notified   bigint[] := '{}';
    batches    bigint[];
BEGIN
    -- One by one, because a plan for many may read all dependencies to find a few.
    FOREACH ended IN ARRAY ids LOOP
        most := least(of_each, of_all - cardinality(notified));
        dependents := ARRAY(
            SELECT d.task_id FROM queue_internal.dependencies AS d
            WHERE d.predecessor_id = ended AND d.outcome IS NULL
            ORDER BY d.predecessor_id, d.task_id LIMIT most FOR UPDATE SKIP LOCKED);
        -- With the range, because a plan made for a tiny table does not look an array up in the index.
        UPDATE queue_internal.dependencies AS d SET outcome = notify_dependents.outcome
        WHERE d.predecessor_id = ended AND d.task_id BETWEEN dependents[1] AND dependents[cardinality(dependents)]
          AND d.task_id = ANY (dependents);
        notified := notified || dependents;
        IF current_setting('transaction_isolation') <> 'read committed' OR EXISTS (
            SELECT FROM queue_internal.dependencies AS d WHERE d.predecessor_id = ended AND d.outcome IS NULL) THEN
            INSERT INTO queue_internal.outcomes AS o (task_id, outcome) VALUES (ended, notify_dependents.outcome)
            ON CONFLICT ON CONSTRAINT outcomes_pkey
            DO UPDATE SET outcome = excluded.outcome, ended_at = excluded.ended_at, rest_queue = NULL, rest_after = NULL;
            IF cardinality(dependents) = most THEN
                PERFORM queue_internal.leave_rest(ended, coalesce(dependents[most], 0));
            END IF;
        END IF;
    END LOOP;
    IF notified = '{}' THEN
        RETURN;
    END IF;
    batches := ARRAY(SELECT b.task_id FROM queue_internal.batches AS b WHERE b.task_id = ANY (notified));
    PERFORM queue_internal.notify_batch(u.id) FROM unnest(batches) AS u (id);
    INSERT INTO queue_internal.events (queue, task_id)
    SELECT o.queue, o.id
    FROM (SELECT i.id, (SELECT t.queue FROM queue.tasks AS t WHERE t.id = i.id) AS queue
          FROM (SELECT DISTINCT u.id FROM unnest(notified) AS u (id)) AS i WHERE i.id <> ALL (batches)) AS o
    WHERE o.queue IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.notify_dependents IS
    'Writes the outcome of tasks to the rows of their dependents, and leaves an event for each dependent.';

-- The queue of the next dependent pays for its notification: its rest takes turns with those of other queues. Dependents
-- without a task are left to the sweep, so that they are read once only. Null for "after" means that there is no rest.
CREATE FUNCTION queue_internal.leave_rest(ended bigint, after bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    next record;
BEGIN
    SELECT r.queue, r.task_id - 1 AS before INTO next
    FROM (SELECT d.task_id, (SELECT t.queue FROM queue.tasks AS t WHERE t.id = d.task_id) AS queue
          FROM queue_internal.dependencies AS d
          WHERE d.predecessor_id = ended AND d.task_id > after AND d.outcome IS NULL
          ORDER BY d.predecessor_id, d.task_id) AS r
    WHERE r.queue IS NOT NULL LIMIT 1;
    UPDATE queue_internal.outcomes AS o SET rest_queue = next.queue, rest_after = next.before WHERE o.task_id = ended;
END
$$;
COMMENT ON FUNCTION queue_internal.leave_rest IS
    'Records after which dependent of an ended task others still have to be notified.';

-- Notifies the next dependents of an ended task that has a rest in that queue; returns false if there is none.
--   unblock:  unblocks those that wait for nothing else and have no group nor batch, because the event of each would take
--             ten times as long. The others get an event
--   event:    each gets an event. An event that fails delays no other
--   pass:     leaves them to the sweep
-- A dependent that it has locked, and that still waits for another predecessor, needs no event: the end of that one, if
-- it has not committed yet, leaves an event itself.
CREATE FUNCTION queue_internal.notify_rest(queue text, manner text) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    most       CONSTANT integer := 500;
    ended      queue_internal.outcomes;
    dependents bigint[];
    locked     bigint[] := '{}';
    unblocked  bigint[];
BEGIN
    SELECT o.* INTO ended FROM queue_internal.outcomes AS o
    WHERE o.rest_queue = notify_rest.queue AND o.rest_after IS NOT NULL
    ORDER BY o.rest_queue, o.task_id LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    dependents := ARRAY(
        SELECT d.task_id FROM queue_internal.dependencies AS d
        WHERE d.predecessor_id = ended.task_id AND d.task_id > ended.rest_after AND d.outcome IS NULL
        ORDER BY d.predecessor_id, d.task_id LIMIT most FOR UPDATE SKIP LOCKED);
    IF manner = 'pass' THEN
        PERFORM queue_internal.leave_rest(ended.task_id, dependents[most]);
        RETURN true;
    END IF;
    UPDATE queue_internal.dependencies AS d SET outcome = ended.outcome
    WHERE d.predecessor_id = ended.task_id
      AND d.task_id BETWEEN dependents[1] AND dependents[cardinality(dependents)] AND d.task_id = ANY (dependents);
    IF manner = 'unblock' THEN
        locked := ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.id = ANY (dependents) AND t.state = 'waiting' AND t.group_key IS NULL
              -- Those of suspended tasks are more than a change of state.
              AND (SELECT a.task_id FROM queue_internal.awaits AS a WHERE a.task_id = t.id) IS NULL
              AND (SELECT b.task_id FROM queue_internal.batches AS b WHERE b.task_id = t.id) IS NULL
            FOR NO KEY UPDATE SKIP LOCKED);
        -- A new snapshot: what other ends had committed before the locks were taken.
        WITH ready AS (
            UPDATE queue.tasks AS t SET state = 'queued', admission = 0, updated_at = clock_timestamp()
            WHERE t.id = ANY (locked) AND NOT EXISTS (
                SELECT FROM queue_internal.dependencies AS d
                WHERE d.task_id = t.id AND (d.outcome IS NULL OR d.on_failure = 'batch'
                                            OR d.outcome <> 'completed' AND d.on_failure IN ('fail', 'cancel')))
            RETURNING t.id
        )
        SELECT coalesce(array_agg(r.id), '{}') INTO unblocked FROM ready AS r;
        -- As delete_dependencies.
        WITH free AS MATERIALIZED (
            SELECT d.predecessor_id, d.task_id FROM queue_internal.dependencies AS d
            WHERE d.task_id = ANY (unblocked) FOR UPDATE SKIP LOCKED
        )
        DELETE FROM queue_internal.dependencies AS d USING free AS f
        WHERE d.predecessor_id = f.predecessor_id AND d.task_id = f.task_id;
    END IF;
    INSERT INTO queue_internal.events (queue, task_id)
    SELECT t.queue, t.id FROM queue.tasks AS t
    WHERE t.id = ANY (dependents)
      AND (t.state = 'waiting' AND (t.id <> ALL (locked) OR EXISTS (
               SELECT FROM queue_internal.dependencies AS d
               WHERE d.task_id = t.id AND d.outcome <> 'completed' AND d.on_failure IN ('fail', 'cancel')))
           OR t.state = 'queued' AND queue_internal.is_suspended(t.id, t.token));
    PERFORM queue_internal.leave_rest(ended.task_id, dependents[most]);
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.notify_rest IS
    'Notifies more of the remaining dependents of an ended task in a queue; returns whether there were any.';

-- A part of each rest, the queues in turns, for 50 ms. A constraint or a trigger of a user that refuses to unblock or
-- notify one dependent must not delay those after it. A lock is only a pause.
CREATE FUNCTION queue_internal.notify_rests() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    until  CONSTANT timestamptz := clock_timestamp() + interval '50 ms';
    before bigint;
    parts  bigint := 0;
    queue  text;
    manner text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 0;
    END IF;
    LOOP
        before := parts;
        FOR queue IN
            SELECT r.queue FROM (SELECT DISTINCT o.rest_queue AS queue FROM queue_internal.outcomes AS o
                                 WHERE o.rest_after IS NOT NULL) AS r ORDER BY random()
        LOOP
            FOREACH manner IN ARRAY ARRAY['unblock', 'event', 'pass'] LOOP
                BEGIN
                    parts := parts + queue_internal.notify_rest(queue, manner)::integer;
                    EXIT;
                EXCEPTION WHEN OTHERS THEN
                    IF manner = 'event' THEN
                        IF queue_internal.may_log('dependents', queue) THEN
                            RAISE WARNING 'dependents of a task, in queue %, cannot be notified: %', to_json(queue), SQLERRM;
                        END IF;
                        EXIT WHEN SQLSTATE = '55P03';
                    END IF;
                END;
            END LOOP;
            IF clock_timestamp() > until THEN
                RETURN parts;
            END IF;
        END LOOP;
        EXIT WHEN parts = before;
    END LOOP;
    RETURN parts;
END
$$;
COMMENT ON FUNCTION queue_internal.notify_rests IS
    'Notifies the remaining dependents of ended tasks for 50 ms; returns how many parts of them it notified.';

-- Returns false if the task has to be checked again, because another transaction has it locked.
CREATE FUNCTION queue_internal.process_dependent(task_id bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task    queue.tasks;
    awaited queue_internal.awaits;
    batch   queue_internal.batches;
    waits   boolean;
    ended   queue_internal.dependencies;
BEGIN
    SELECT t.* INTO task FROM queue.tasks AS t WHERE t.id = process_dependent.task_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        IF EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = process_dependent.task_id) THEN
            RETURN false;
        -- A dump that is being restored may still bring a task that has left no trace. A dead letter that is put back asks
        -- again how the task that it waited for has ended.
        ELSIF queue_internal.outcome_of(process_dependent.task_id) IS NOT NULL
              AND NOT EXISTS (SELECT FROM queue_internal.awaits AS a WHERE a.task_id = process_dependent.task_id) THEN
            PERFORM queue_internal.delete_dependencies(process_dependent.task_id);
        END IF;
        RETURN true;
    END IF;
    SELECT a.* INTO awaited FROM queue_internal.awaits AS a WHERE a.task_id = task.id AND a.token = task.token;
    IF FOUND THEN
        PERFORM queue_internal.wake(task, awaited);
        RETURN true;
    ELSIF task.state <> 'waiting' THEN
        RETURN true;
    END IF;
    SELECT b.* INTO batch FROM queue_internal.batches AS b WHERE b.task_id = task.id;
    -- First, because the statements that follow have newer snapshots: if nothing is left to wait for, they see how all have
    -- ended.
    waits := queue_internal.waits_for_another(task.id);
    -- Does not read the ended members of a batch, which may be many. Callers disable sorting, which would make the planner
    -- read the dependencies of all tasks in the order of the primary key: OFFSET prevents that.
    IF batch.task_id IS NULL OR batch.is_after THEN
        SELECT e.* INTO ended FROM (
            SELECT d.* FROM queue_internal.dependencies AS d
            WHERE d.task_id = task.id AND d.outcome = ANY ('{failed, cancelled, purged}')
              AND d.on_failure IN ('fail', 'cancel') OFFSET 0) AS e
        ORDER BY e.predecessor_id LIMIT 1;
    END IF;
    IF ended.predecessor_id IS NOT NULL THEN
        IF NOT queue_internal.lock_to_end(task.id, false) THEN
            RETURN false;
        END IF;
        task.errors := queue_internal.with_error(
            task, format('predecessor %s %s', ended.predecessor_id,
                         CASE ended.outcome WHEN 'failed' THEN 'failed' ELSE 'was cancelled' END));
        IF ended.on_failure = 'fail' THEN
            PERFORM queue_internal.move_to_dead_letters(task);
        ELSE
            PERFORM queue_internal.cancel_now(task);
        END IF;
    ELSIF batch.task_id IS NOT NULL AND batch.sealed_at IS NULL
          OR waits
          -- A dump that is being restored may bring the task before its dependencies or its batch.
          OR batch.task_id IS NULL AND (
             NOT EXISTS (SELECT FROM queue_internal.dependencies AS d WHERE d.task_id = task.id)
             OR EXISTS (SELECT FROM queue_internal.dependencies AS d
                        WHERE d.task_id = task.id AND d.on_failure = 'batch')) THEN
        RETURN true;
    ELSIF batch.task_id IS NOT NULL THEN
        RETURN queue_internal.process_batch(task);
    ELSE
        PERFORM queue_internal.unblock(task);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.process_dependent IS
    'Unblocks or ends a waiting task if its predecessors have ended; false if it has to be checked again.';

CREATE FUNCTION queue_internal.unblock(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE queue.tasks AS t
    SET state = 'queued', updated_at = clock_timestamp(),
        admission = CASE WHEN t.group_key IS NULL THEN 0 ELSE 2 END
    WHERE t.id = task.id;
    PERFORM queue_internal.delete_dependencies(task.id);
    IF task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key, arrived) VALUES (task.queue, task.group_key, task.id);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.unblock IS 'Makes a waiting task queued.';

-- Leaves rows that the end of a predecessor has locked to the sweep.
CREATE FUNCTION queue_internal.delete_dependencies(task_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    predecessor bigint;
BEGIN
    FOR predecessor IN
        SELECT d.predecessor_id FROM queue_internal.dependencies AS d
        WHERE d.task_id = delete_dependencies.task_id FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM queue_internal.dependencies AS d
        WHERE d.predecessor_id = predecessor AND d.task_id = delete_dependencies.task_id;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.delete_dependencies IS
    'Deletes the dependencies of a task that no longer waits, without waiting for a lock.';
