-- Batches: a task, the callback, that waits for a group of tasks, its members, until the batch is sealed.
--
--   The id of the batch is the id of its callback. The callback waits for each member as for a predecessor: the push of
--   a member writes a row of queue_internal.dependencies with on_failure "batch", and the end of the member writes its
--   outcome there (dependencies.sql). So ends of different members touch no common row.
--   Promise:  the callback becomes queued once: after the batch was sealed and each member has an outcome. Its headers
--             count each member once
--   Promise:  a push into the batch and its sealing wait for each other. The push holds a SHARE lock on the row of the
--             batch, with which the UPDATE that seals it conflicts at every isolation level
--   Events:   while other members have not ended, the end of a member leaves an event that is due at the next tenth of
--             a second, or none if there is one already (notify_batch). So a large batch costs few events
--   Counting: once all members have ended, their rows are counted and deleted, two thousand with each event. "members"
--             is at most the number of rows when the batch was sealed: a dump that is being restored may bring the batch
--             before their rows

-- For a push. The KEY SHARE lock on the callback is that of a push after a predecessor; the locks are taken in the
-- order of ids. A batch of a queue to which the caller may not push is treated as if it did not exist.
CREATE FUNCTION queue_internal.lock_batches(ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    one       bigint;
    sealed_at timestamptz;
BEGIN
    FOR one IN SELECT DISTINCT u.id FROM unnest(ids) AS u (id) WHERE u.id IS NOT NULL ORDER BY u.id LOOP
        PERFORM FROM queue.tasks AS t
        WHERE t.id = one AND t.state = 'waiting' AND queue_internal.has_right('producer', t.queue) FOR KEY SHARE;
        IF NOT FOUND THEN
            PERFORM queue_internal.raise_unknown_batch(one);
        END IF;
        SELECT b.sealed_at INTO sealed_at FROM queue_internal.batches AS b WHERE b.task_id = one FOR SHARE;
        IF NOT FOUND THEN
            PERFORM queue_internal.raise_unknown_batch(one);
        ELSIF sealed_at IS NOT NULL THEN
            RAISE EXCEPTION 'batch % is sealed', one
                USING ERRCODE = 'QX008', DETAIL = format('It was sealed at %s.', sealed_at),
                      HINT = 'Push all tasks of a batch before queue.seal_batch(), or create another batch with '
                             'queue.create_batch().';
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_batches IS
    'Locks open batches, so that they are not sealed before the push into them ends; raises QX007 or QX008.';

CREATE FUNCTION queue_internal.raise_unknown_batch(batch bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'batch % does not exist', batch
        USING ERRCODE = 'QX007',
              HINT = 'Its callback may have been queued already, or cancelled, or be in a queue for which the role has no '
                     'right. Create a batch with queue.create_batch().';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_unknown_batch IS 'Raises QX007.';

CREATE FUNCTION queue_internal.check_batch(batch bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF batch < 1 THEN
        PERFORM queue_internal.raise_invalid('batch', 'must be greater than zero', batch::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_batch IS 'Checks the id of a batch; null passes.';

-- A task cannot wait for the batch that waits for it. Transactions that push at the same time do not see each other's
-- tasks, so together they can still build a cycle (docs/batches.md).
-- Why a generic plan: to plan this, Postgres reads the ends of the indexes, where the rows of the same transaction are
-- not visible yet.
CREATE FUNCTION queue_internal.check_no_cycle(batch bigint, after bigint[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    -- Usually nothing waits for the callback, and so nothing that this task waits for does.
    IF after <> '{}' AND (batch = ANY (after) OR EXISTS (
        SELECT FROM queue_internal.dependencies AS d WHERE d.predecessor_id = batch AND d.outcome IS NULL))
       AND EXISTS (
        WITH RECURSIVE awaited (id) AS (
            SELECT u.id FROM unnest(after) AS u (id)
            UNION
            SELECT d.predecessor_id FROM awaited AS a JOIN queue_internal.dependencies AS d ON d.task_id = a.id
            WHERE d.outcome IS NULL
        )
        SELECT FROM awaited AS a WHERE a.id = batch
    ) THEN
        RAISE EXCEPTION 'argument "after" must not name a task that waits for batch %', batch
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = 'The task and the callback of the batch would wait for each other.';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_no_cycle IS
    'Refuses a task that would wait for the batch to which it belongs.';

-- A callback that waits holds up the tasks behind it in its group, unless the group passes over it or has room for more.
CREATE FUNCTION queue_internal.check_callback_group(batch bigint, queue text, groups text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (SELECT FROM queue.tasks AS t JOIN queue.queues AS q ON q.name = t.queue
               WHERE t.id = batch AND t.queue = check_callback_group.queue AND t.group_key = ANY (groups)
                 AND q.delayed_head = 'block' AND q.max_running_per_group = 1) THEN
        RAISE EXCEPTION 'argument "group_key" must not be the group of the callback of batch %', batch
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = 'The callback holds up its group until the batch has ended: it and the task would wait for each other.',
                  HINT = 'Give the callback another group, or none.';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_callback_group IS
    'Refuses a task whose group is held up by the callback of its batch.';

-- Only for tasks that this transaction has pushed. A push that takes the key of the callback, because that is past its start
-- deadline, has ended it although the batch is locked.
CREATE FUNCTION queue_internal.join_batch(batch bigint, ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = batch) THEN
        PERFORM queue_internal.raise_unknown_batch(batch);
    END IF;
    PERFORM queue_internal.check_callback_group(batch, t.queue, array_agg(t.group_key))
    FROM queue.tasks AS t WHERE t.id = ANY (ids) AND t.group_key IS NOT NULL GROUP BY t.queue;
    INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
    SELECT u.id, batch, 'batch' FROM unnest(ids) AS u (id);
END
$$;
COMMENT ON FUNCTION queue_internal.join_batch IS 'Adds new tasks to a batch.';

-- Called with the end of a member. While other members have not ended, one event a tenth of a second is enough: an
-- event that exists already is locked, with a lock that ends share, so that it is not processed before this transaction
-- commits. Then the worker has to look at it again.
CREATE FUNCTION queue_internal.notify_batch(batch bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    source CONSTANT text := (SELECT t.queue FROM queue.tasks AS t WHERE t.id = batch);
    soon   CONSTANT timestamptz := date_bin('100 ms', clock_timestamp(), '2000-01-01Z') + interval '100 ms';
BEGIN
    IF source IS NULL THEN
        RETURN;
    ELSIF NOT queue_internal.waits_for_another(batch) THEN
        INSERT INTO queue_internal.events (queue, task_id) VALUES (source, batch);
        RETURN;
    END IF;
    -- With a snapshot of the whole transaction, the lock fails if the event has been processed since.
    IF current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM FROM queue_internal.events AS e
        WHERE e.task_id = batch AND e.queue = source AND e.due_at <= soon ORDER BY e.task_id, e.id LIMIT 1 FOR KEY SHARE SKIP LOCKED;
    END IF;
    IF NOT FOUND THEN
        INSERT INTO queue_internal.events (queue, task_id, due_at) VALUES (source, batch, soon);
    END IF;
    PERFORM queue_internal.announce_task(source, soon);
END
$$;
COMMENT ON FUNCTION queue_internal.notify_batch IS
    'Leaves an event for the callback of a batch of which a member has ended, unless there is one.';

-- Called by process_dependent, which has locked the callback and found no member without an outcome. Returns false if
-- the batch has to be checked again, because another transaction has it locked.
CREATE FUNCTION queue_internal.process_batch(task queue.tasks) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    most    CONSTANT integer := 2000;
    batch   queue_internal.batches;
    counted bigint;
BEGIN
    PERFORM FROM queue_internal.batches AS b WHERE b.task_id = task.id AND b.sealed_at IS NOT NULL
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH part AS MATERIALIZED (
        SELECT d.predecessor_id FROM queue_internal.dependencies AS d
        WHERE d.task_id = task.id AND d.outcome IS NOT NULL AND d.on_failure = 'batch'
        LIMIT most FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM queue_internal.dependencies AS d USING part AS p
        WHERE d.predecessor_id = p.predecessor_id AND d.task_id = task.id
        RETURNING d.outcome
    ), total AS (
        SELECT count(*) AS tasks, count(*) FILTER (WHERE g.outcome = 'completed') AS completed,
               count(*) FILTER (WHERE g.outcome = 'failed') AS failed
        FROM gone AS g
    )
    UPDATE queue_internal.batches AS b
    SET completed = b.completed + t.completed, failed = b.failed + t.failed,
        cancelled = b.cancelled + t.tasks - t.completed - t.failed
    FROM total AS t WHERE b.task_id = task.id
    RETURNING t.tasks INTO counted;
    IF counted = most THEN
        INSERT INTO queue_internal.events (queue, task_id) VALUES (task.queue, task.id);
        RETURN true;
    ELSIF EXISTS (SELECT FROM queue_internal.dependencies AS d
                  WHERE d.task_id = task.id AND d.on_failure = 'batch') THEN
        RETURN false;
    END IF;
    SELECT b.* INTO batch FROM queue_internal.batches AS b WHERE b.task_id = task.id;
    -- A dump has not brought all rows yet. The sweep checks the batch again.
    IF batch.completed + batch.failed + batch.cancelled < batch.members THEN
        RETURN true;
    END IF;
    UPDATE queue.tasks AS t
    SET headers = coalesce(t.headers, '{}') || jsonb_build_object('batch', jsonb_build_object(
            'completed', batch.completed, 'failed', batch.failed, 'cancelled', batch.cancelled))
    WHERE t.id = task.id;
    DELETE FROM queue_internal.batches AS b WHERE b.task_id = task.id;
    PERFORM queue_internal.unblock(task);
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.process_batch IS
    'Counts ended members of a sealed batch; after the last one, makes the callback queued.';

-- Leaves events for sealed batches of which all members have ended, and deletes the rows of batches that are over.
-- Returns the last batch that it checked, or null at the end.
CREATE FUNCTION queue_internal.sweep_batches(INOUT batch bigint, max_rows integer)
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
        SELECT b.task_id, b.sealed_at,
               (SELECT t.queue FROM queue.tasks AS t WHERE t.id = b.task_id AND t.state = 'waiting') AS queue
        FROM queue_internal.batches AS b WHERE b.task_id > coalesce(sweep_batches.batch, 0)
        ORDER BY b.task_id LIMIT max_rows
    LOOP
        checked := checked + 1;
        batch := row.task_id;
        IF row.queue IS NULL THEN
            -- Its callback was deleted by hand, or a dump has not brought it yet.
            IF queue_internal.outcome_of(row.task_id) IS NOT NULL
               OR EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = row.task_id AND t.state <> 'waiting') THEN
                DELETE FROM queue_internal.batches AS b WHERE b.task_id = (
                    SELECT l.task_id FROM queue_internal.batches AS l WHERE l.task_id = row.task_id FOR UPDATE SKIP LOCKED);
            END IF;
        ELSIF row.sealed_at IS NOT NULL AND NOT queue_internal.waits_for_another(row.task_id)
              AND NOT queue_internal.has_event(row.task_id, row.queue, true) THEN
            INSERT INTO queue_internal.events (queue, task_id) VALUES (row.queue, row.task_id);
        END IF;
    END LOOP;
    IF checked < max_rows THEN
        batch := NULL;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_batches IS
    'Leaves events for batches whose members have all ended; returns where to continue.';
