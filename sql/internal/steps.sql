-- Steps: what a task has done so far, and what it waits for in the middle of its work.
--
--   A worker stores the result of each step. A later attempt gets what is stored, so it does no step twice. A task that
--   waits for a time, an event or another task is suspended: it has no lease, and the attempt does not count. The claim
--   after that starts the worker's code again from the first step.
--
--   A suspended task with a timeout is queued, with the end of the timeout as its run_at: nothing else has to watch the
--   time. Without one it is waiting. What it waits for is in queue_internal.awaits. When that comes, the same events as
--   for dependencies have the task checked (process_dependent), and wake() makes it claimable. A task that is claimed
--   earlier, because somebody changed its run_at, asks again and is suspended again until the same time.
--
--   An event is emitted for a queue. A task that begins to wait holds a SHARE lock on the event's row until it commits,
--   and an emission updates that row. So either comes first, and the later one sees it. An emission at REPEATABLE READ or
--   SERIALIZABLE may still not see who waits; then wake_rest looks again. Other tasks are waited for as predecessors are
--   (dependencies.sql).
--
--   What a task got is stored like a step, so that later attempts get the same.

CREATE FUNCTION queue_internal.check_step(argument text, value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value IS NULL THEN
        PERFORM queue_internal.raise_null(argument);
    END IF;
    PERFORM queue_internal.check_key(argument, value);
END
$$;
COMMENT ON FUNCTION queue_internal.check_step IS 'Checks the name of a step or an event: 1 to 512 bytes.';

-- The caller has locked the task, so that no other transaction stores a step of it.
CREATE FUNCTION queue_internal.stored_step(task_id bigint, kind text, name text, OUT stored boolean, OUT value jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    SELECT s.value INTO value FROM queue_internal.steps AS s
    WHERE s.task_id = stored_step.task_id AND s.kind = stored_step.kind AND s.name = stored_step.name;
    stored := FOUND;
END
$$;
COMMENT ON FUNCTION queue_internal.stored_step IS 'Returns what a task has stored under a name, and whether it has.';

CREATE FUNCTION queue_internal.store_step(task_id bigint, kind text, name text, value jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
BEGIN
    INSERT INTO queue_internal.steps (task_id, number, kind, name, value)
    VALUES (store_step.task_id, coalesce((SELECT s.number FROM queue_internal.steps AS s
                                          WHERE s.task_id = store_step.task_id ORDER BY s.number DESC LIMIT 1), 0) + 1,
            store_step.kind, store_step.name, store_step.value)
    -- At READ COMMITTED there is no conflict. A snapshot from before the other step raises 40001.
    ON CONFLICT DO NOTHING;
    IF kind IN ('event', 'task') THEN
        DELETE FROM queue_internal.awaits AS a WHERE a.task_id = store_step.task_id;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.store_step IS 'Stores a step of a task, or what it got after it waited.';

CREATE FUNCTION queue_internal.is_suspended(task_id bigint, token bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN EXISTS (SELECT FROM queue_internal.awaits AS a
                   WHERE a.task_id = is_suspended.task_id AND a.token = is_suspended.token);
END
$$;
COMMENT ON FUNCTION queue_internal.is_suspended IS 'Returns whether a task that does not run waits for an event or another task.';

-- The task is locked by leased_task(). Cancels it if that was requested or it was replaced, and fails the attempt if it has
-- timed out.
CREATE FUNCTION queue_internal.suspend(task queue.tasks, until timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF task.cancel_requested_at IS NOT NULL OR queue_internal.is_replaced(task) THEN
        PERFORM queue_internal.cancel_now(task);
        RETURN;
    ELSIF queue_internal.has_timed_out(task) THEN
        PERFORM queue_internal.end_attempt(task, 'timed out', NULL, false);
        RETURN;
    END IF;
    task.attempt := task.attempt - 1;
    IF until IS NOT NULL THEN
        task.run_at := until;
        PERFORM queue_internal.requeue(task);
        RETURN;
    END IF;
    UPDATE queue.tasks AS t
    SET state = 'waiting', attempt = task.attempt, admission = 2, lease_until = NULL, worker = NULL, claimed_at = NULL,
        updated_at = clock_timestamp()
    WHERE t.id = task.id;
    IF task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key, arrived) VALUES (task.queue, task.group_key, task.id);
    END IF;
    PERFORM queue_internal.announce_free_slot(task.queue);
END
$$;
COMMENT ON FUNCTION queue_internal.suspend IS
    'Ends the lease of a task without counting the attempt, until a time, or for null until it is woken.';

-- What the task waits for, and until when: as it was before, if it has waited for the same already.
CREATE FUNCTION queue_internal.awaits_of(task queue.tasks, event text, other bigint, timeout interval)
RETURNS queue_internal.awaits
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    awaited queue_internal.awaits;
BEGIN
    SELECT a.* INTO awaited FROM queue_internal.awaits AS a
    WHERE a.task_id = task.id AND (a.event = awaits_of.event OR a.predecessor_id = awaits_of.other);
    IF NOT FOUND THEN
        awaited.queue := CASE WHEN event IS NOT NULL THEN task.queue END;
        awaited.event := event;
        awaited.predecessor_id := other;
        awaited.until := clock_timestamp() + timeout;
    END IF;
    awaited.task_id := task.id;
    awaited.token := task.token;
    RETURN awaited;
END
$$;
COMMENT ON FUNCTION queue_internal.awaits_of IS 'Returns the row for what a task waits for; does not store it.';

CREATE FUNCTION queue_internal.suspend_for(task queue.tasks, awaited queue_internal.awaits) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF queue_internal.has_timed_out(task) THEN
        PERFORM queue_internal.suspend(task, awaited.until);
        RETURN;
    END IF;
    INSERT INTO queue_internal.awaits AS a (task_id, token, queue, event, predecessor_id, until)
    VALUES (awaited.task_id, awaited.token, awaited.queue, awaited.event, awaited.predecessor_id, awaited.until)
    ON CONFLICT ON CONSTRAINT awaits_pkey
    DO UPDATE SET token = excluded.token, queue = excluded.queue, event = excluded.event,
                  predecessor_id = excluded.predecessor_id, outcome = NULL, until = excluded.until, restored_at = NULL;
    -- Those of an earlier wait, and of the push.
    PERFORM queue_internal.delete_dependencies(task.id);
    IF awaited.predecessor_id IS NOT NULL THEN
        INSERT INTO queue_internal.dependencies AS d (predecessor_id, task_id, on_failure)
        VALUES (awaited.predecessor_id, awaited.task_id, 'continue')
        ON CONFLICT ON CONSTRAINT dependencies_pkey
        DO UPDATE SET outcome = NULL, on_failure = 'continue', restored_at = NULL;
    END IF;
    PERFORM queue_internal.suspend(task, awaited.until);
END
$$;
COMMENT ON FUNCTION queue_internal.suspend_for IS 'Suspends a task until an event is emitted or another task ends.';

-- A row that does not exist yet is inserted, so that an emission waits for this transaction. Another emission that is open
-- is waited for.
CREATE FUNCTION queue_internal.lock_event(
    queue text, event text, OUT payload jsonb, OUT emitted boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    LOOP
        SELECT e.payload, e.emitted_at IS NOT NULL INTO payload, emitted FROM queue_internal.emitted AS e
        WHERE e.queue = lock_event.queue AND e.event = lock_event.event FOR SHARE;
        EXIT WHEN FOUND;
        INSERT INTO queue_internal.emitted (queue, event) VALUES (lock_event.queue, lock_event.event)
        ON CONFLICT ON CONSTRAINT emitted_pkey DO NOTHING;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_event IS
    'Locks the row of an event against an emission; returns the payload if it has been emitted.';

-- If the queue of the event is dropped, the wait has an outcome. A queue may also have been deleted by hand, or a dump has
-- not brought it yet. Otherwise the end of the time is the run_at of a queued task, which somebody may have changed.
CREATE FUNCTION queue_internal.has_come(awaited queue_internal.awaits, state text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN awaited.outcome IS NOT NULL
        OR EXISTS (SELECT FROM queue_internal.emitted AS e
                   WHERE e.queue = awaited.queue AND e.event = awaited.event AND e.emitted_at IS NOT NULL)
        OR state = 'waiting' AND (awaited.until <= clock_timestamp()) IS TRUE
        OR NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = awaited.queue)
           AND (awaited.restored_at > clock_timestamp() - interval '1 day') IS NOT TRUE;
END
$$;
COMMENT ON FUNCTION queue_internal.has_come IS
    'Returns whether the event that a suspended task waits for was emitted, or cannot be any more.';

-- Called for an event about a suspended task, whose row is locked. The task may have been woken already.
CREATE FUNCTION queue_internal.wake(task queue.tasks, awaited queue_internal.awaits) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    came boolean := awaited.outcome IS NOT NULL;
BEGIN
    IF awaited.event IS NOT NULL THEN
        came := queue_internal.has_come(awaited, task.state);
    ELSIF NOT came THEN
        UPDATE queue_internal.awaits AS a SET outcome = d.outcome FROM queue_internal.dependencies AS d
        WHERE a.task_id = task.id AND d.predecessor_id = awaited.predecessor_id AND d.task_id = task.id
          AND d.outcome IS NOT NULL;
        came := FOUND;
    END IF;
    IF NOT came THEN
        RETURN;
    ELSIF task.state = 'waiting' THEN
        PERFORM queue_internal.unblock(task);
    ELSIF task.state = 'queued' THEN
        IF task.run_at > clock_timestamp() THEN
            task.run_at := clock_timestamp();
            PERFORM queue_internal.reorder(task);
            PERFORM queue_internal.recheck_group(task);
        END IF;
        IF awaited.predecessor_id IS NOT NULL THEN
            PERFORM queue_internal.delete_dependencies(task.id);
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.wake IS 'Makes a suspended task claimable if what it waits for has come.';

-- The parts of the sweep (sweep.sql). This one leaves events for suspended tasks that can go on, and deletes what tasks
-- waited for that have ended. Returns the last task that it checked, or null at the end.
CREATE FUNCTION queue_internal.sweep_awaits(after bigint, max_rows integer, of_queue text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    checked integer := 0;
    row     record;
BEGIN
    FOR row IN
        SELECT a.*, t.id AS live, t.queue AS of, t.state,
               t.state = 'waiting' OR t.state = 'queued' AND t.run_at > clock_timestamp() AS waits,
               t.token AS current
        FROM queue_internal.awaits AS a LEFT JOIN LATERAL (
            -- OFFSET prevents a join that reads all tasks.
            SELECT l.id, l.queue, l.state, l.run_at, l.token FROM queue.tasks AS l WHERE l.id = a.task_id OFFSET 0) AS t ON true
        WHERE a.task_id > coalesce(after, -9223372036854775808)
        ORDER BY a.task_id LIMIT max_rows
    LOOP
        checked := checked + 1;
        after := row.task_id;
        CONTINUE WHEN row.of <> of_queue OR row.of IS NULL AND of_queue IS NOT NULL;
        IF row.live IS NULL THEN
            -- A dump may still bring the task. One that failed can be put back.
            CONTINUE WHEN row.restored_at > clock_timestamp() - interval '1 day';
            DELETE FROM queue_internal.awaits AS a
            WHERE a.task_id = (SELECT l.task_id FROM queue_internal.awaits AS l WHERE l.task_id = row.task_id
                                 AND (SELECT t.id FROM queue.tasks AS t WHERE t.id = l.task_id) IS NULL
                                 AND (SELECT d.id FROM queue.dead_letters AS d WHERE d.id = l.task_id) IS NULL
                               FOR UPDATE SKIP LOCKED);
            IF FOUND THEN
                PERFORM queue_internal.delete_dependencies(row.task_id);
            END IF;
            CONTINUE;
        END IF;
        CONTINUE WHEN row.current <> row.token OR NOT row.waits;
        IF row.event IS NOT NULL THEN
            CONTINUE WHEN queue_internal.has_come(
                (SELECT a FROM queue_internal.awaits AS a WHERE a.task_id = row.task_id), row.state) IS NOT TRUE;
        ELSIF row.outcome IS NULL THEN
            -- The dependency was deleted by hand.
            INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
            SELECT row.predecessor_id, row.task_id, 'continue'
            WHERE NOT EXISTS (SELECT FROM queue_internal.dependencies AS d
                              WHERE d.predecessor_id = row.predecessor_id AND d.task_id = row.task_id)
              AND (row.restored_at > clock_timestamp() - interval '1 day') IS NOT TRUE
            ON CONFLICT DO NOTHING;
            -- sweep_dependencies does the rest.
            CONTINUE;
        END IF;
        IF NOT queue_internal.has_event(row.task_id, row.of, of_queue IS NULL) THEN
            INSERT INTO queue_internal.events (queue, task_id) VALUES (row.of, row.task_id);
        END IF;
    END LOOP;
    IF checked < max_rows THEN
        RETURN NULL;
    END IF;
    RETURN after;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_awaits IS
    'Leaves events for suspended tasks that can go on, and forgets what ended tasks waited for.';

-- Deletes up to a thousand steps of each task that has left no trace. A dump may still bring the task.
CREATE FUNCTION queue_internal.sweep_steps(after bigint, max_tasks integer) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    most CONSTANT integer := 1000;
    row  record;
BEGIN
    after := coalesce(after, -9223372036854775808);
    FOR n IN 1 .. max_tasks LOOP
        SELECT s.task_id, s.restored_at INTO row FROM queue_internal.steps AS s
        WHERE s.task_id > after ORDER BY s.task_id, s.number LIMIT 1;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        after := row.task_id;
        CONTINUE WHEN row.restored_at > clock_timestamp() - interval '1 day'
            OR (SELECT t.id FROM queue.tasks AS t WHERE t.id = after) IS NOT NULL
            OR queue_internal.is_recorded(after);
        DELETE FROM queue_internal.steps AS s
        WHERE s.task_id = after AND s.number = ANY (ARRAY(
            SELECT l.number FROM queue_internal.steps AS l WHERE l.task_id = after
            ORDER BY l.task_id, l.number LIMIT most FOR UPDATE SKIP LOCKED));
    END LOOP;
    RETURN after;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_steps IS 'Deletes steps of tasks that are gone; returns where to continue.';

-- STABLE, so that one snapshot is used for all tables.
CREATE FUNCTION queue_internal.is_recorded(id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = is_recorded.id)
        OR EXISTS (SELECT FROM queue.dead_letters AS d WHERE d.id = is_recorded.id)
        OR EXISTS (SELECT FROM queue.history AS h WHERE h.id = is_recorded.id);
END
$$;
COMMENT ON FUNCTION queue_internal.is_recorded IS 'Returns whether a task is live, a dead letter or in the history.';

-- Leaves an event for each of the next tasks that wait for an emitted event, and records where to continue. The snapshot of
-- a whole transaction may not show all of them: then wake_rest looks again.
CREATE FUNCTION queue_internal.wake_waiting(queue text, event text, after bigint, most integer) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    ids  CONSTANT bigint[] := ARRAY(
        SELECT a.task_id FROM queue_internal.awaits AS a
        WHERE a.queue = wake_waiting.queue AND a.event = wake_waiting.event AND a.task_id > after
        ORDER BY a.task_id LIMIT most);
    rest CONSTANT bigint :=
        CASE WHEN current_setting('transaction_isolation') = 'read committed' THEN ids[most] ELSE after END;
BEGIN
    INSERT INTO queue_internal.events (queue, task_id)
    SELECT o.queue, o.id
    FROM (SELECT u.id, (SELECT t.queue FROM queue.tasks AS t WHERE t.id = u.id AND t.token = (
                            SELECT a.token FROM queue_internal.awaits AS a WHERE a.task_id = u.id)) AS queue
          FROM unnest(ids) AS u (id)) AS o
    WHERE o.queue IS NOT NULL;
    UPDATE queue_internal.emitted AS e SET rest_after = rest
    WHERE e.queue = wake_waiting.queue AND e.event = wake_waiting.event AND e.rest_after IS DISTINCT FROM rest;
END
$$;
COMMENT ON FUNCTION queue_internal.wake_waiting IS 'Wakes the next tasks that wait for an emitted event.';

CREATE FUNCTION queue_internal.wake_rest() RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    chosen record;
    rest   queue_internal.emitted;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 0;
    END IF;
    -- Any of the first, because one may fail each time, by a trigger that a user added.
    SELECT e.queue, e.event INTO chosen FROM (
        SELECT r.queue, r.event FROM queue_internal.emitted AS r WHERE r.rest_after IS NOT NULL
        ORDER BY r.queue, r.event LIMIT 100) AS e
    OFFSET floor(random() * (SELECT count(*) FROM (
        SELECT FROM queue_internal.emitted AS r WHERE r.rest_after IS NOT NULL LIMIT 100) AS c)) LIMIT 1;
    SELECT e.* INTO rest FROM queue_internal.emitted AS e
    WHERE e.queue = chosen.queue AND e.event = chosen.event AND e.rest_after IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    BEGIN
        PERFORM queue_internal.wake_waiting(rest.queue, rest.event, rest.rest_after, 1000);
    EXCEPTION WHEN OTHERS THEN
        IF queue_internal.may_log('emitted', rest.queue) THEN
            RAISE WARNING 'tasks that wait for an event of queue % cannot be woken: %', to_json(rest.queue), SQLERRM;
        END IF;
        RETURN 0;
    END;
    RETURN 1;
END
$$;
COMMENT ON FUNCTION queue_internal.wake_rest IS
    'Wakes more of the tasks that wait for an emitted event; returns 1, or 0 if there are none.';

-- Deletes events past "queue.event_retention", and rows of events that were awaited and never emitted; but none that a task
-- waits for. Returns the last event that it checked, or null at the end.
CREATE FUNCTION queue_internal.sweep_emitted(INOUT queue text, INOUT event text, max_rows integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    retention CONSTANT text := queue_internal.setting('event_retention', '7d');
    horizon   CONSTANT timestamptz :=
        CASE WHEN retention = '-1' THEN '-infinity' ELSE clock_timestamp() - retention::interval END;
    checked   integer := 0;
    row       record;
BEGIN
    FOR row IN
        SELECT e.queue, e.event, e.emitted_at IS NOT NULL AS emitted, e.emitted_at < horizon
               OR e.emitted_at IS NULL AND e.created_at < clock_timestamp() - interval '1 day' AS old
        FROM queue_internal.emitted AS e
        WHERE (e.queue, e.event) > (coalesce(sweep_emitted.queue, ''), coalesce(sweep_emitted.event, ''))
        ORDER BY e.queue, e.event LIMIT max_rows
    LOOP
        checked := checked + 1;
        queue := row.queue;
        event := row.event;
        CONTINUE WHEN NOT row.old;
        -- A task that begins to wait locks the row first. So none can do so from here on.
        PERFORM FROM queue_internal.emitted AS e WHERE e.queue = row.queue AND e.event = row.event FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            DELETE FROM queue_internal.emitted AS e
            WHERE e.queue = row.queue AND e.event = row.event
              -- It may have been emitted meanwhile.
              AND (e.emitted_at < horizon OR e.emitted_at IS NULL AND NOT row.emitted)
              AND NOT EXISTS (SELECT FROM queue_internal.awaits AS a
                              WHERE a.queue = row.queue AND a.event = row.event);
        END IF;
    END LOOP;
    IF checked < max_rows THEN
        queue := NULL;
        event := NULL;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_emitted IS 'Deletes old events; returns where to continue.';

CREATE TRIGGER step_restored BEFORE INSERT ON queue_internal.steps
    FOR EACH ROW WHEN (
        current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
        AND has_table_privilege('queue.tasks', 'TRUNCATE'))
    EXECUTE FUNCTION queue_internal.dependency_restored();
COMMENT ON TRIGGER step_restored ON queue_internal.steps IS 'Makes the sweep wait for the rest of a dump.';

CREATE TRIGGER await_restored BEFORE INSERT ON queue_internal.awaits
    FOR EACH ROW WHEN (
        current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
        AND has_table_privilege('queue.tasks', 'TRUNCATE'))
    EXECUTE FUNCTION queue_internal.dependency_restored();
COMMENT ON TRIGGER await_restored ON queue_internal.awaits IS 'Makes the sweep wait for the rest of a dump.';
