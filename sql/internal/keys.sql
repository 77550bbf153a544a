-- Which task has a key, and for how long.
--
--   A live task of the queue has the key. After the task completed or was cancelled, it keeps the key for its
--   "key_ttl". A row of queue_internal.keys only counts while its task lives or its time has not passed, so that a task
--   which somebody deletes by hand does not keep its key for ever.
--   A push that replaces a running task takes over the key, and waits for that task as for a predecessor. If it ends
--   without having run, it gives the key back.
--   At REPEATABLE READ, a transaction that has taken a key itself may still see the row of the task that had it before
--   and has ended since. Then the newer task counts. That is wrong for a dead letter that was put back meanwhile: its id
--   is smaller, and a push with its key returns the id of the task that has ended.

CREATE FUNCTION queue_internal.check_key(argument text, value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value = '' THEN
        PERFORM queue_internal.raise_invalid(argument, 'must not be empty');
    ELSIF octet_length(value) > 512 THEN
        PERFORM queue_internal.raise_too_large(argument, '512 bytes', octet_length(value) || ' bytes');
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_key IS 'Checks a key or a group key: 1 to 512 bytes; null passes.';

CREATE FUNCTION queue_internal.stored_ttl(key_ttl interval, key_ttl_from text) RETURNS interval
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE key_ttl_from WHEN 'push' THEN - key_ttl ELSE key_ttl END;
END
$$;
COMMENT ON FUNCTION queue_internal.stored_ttl IS 'Returns a key_ttl as tables store it: negative if it counts from the push.';

-- Locks the running task that the holder of a key is to replace, the holder, and the key, in the order of the end of a task.
-- While another transaction has one of them locked, this one waits with none of them, because that transaction can need the
-- others. Returns false if the holder is gone.
CREATE FUNCTION queue_internal.lock_holder(holder bigint, queue text, key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    replaced bigint;
    is_live  boolean;
    awaited  text;
BEGIN
    LOOP
        replaced := (
            SELECT r.id FROM queue_internal.dependencies AS d JOIN queue.tasks AS r ON r.id = d.predecessor_id
            WHERE d.task_id = holder AND r.queue = lock_holder.queue AND r.key = lock_holder.key AND r.state = 'running'
            ORDER BY r.id LIMIT 1);
        BEGIN
            PERFORM FROM queue.tasks AS t WHERE t.id = replaced FOR KEY SHARE NOWAIT;
            PERFORM FROM queue.tasks AS t WHERE t.id = holder FOR UPDATE NOWAIT;
            is_live := FOUND;
            PERFORM FROM queue_internal.keys AS k WHERE k.queue = lock_holder.queue AND k.key = lock_holder.key
            FOR NO KEY UPDATE NOWAIT;
            RETURN is_live;
        EXCEPTION WHEN lock_not_available THEN
            -- Has unlocked all three.
        END;
        FOREACH awaited IN ARRAY ARRAY['replaced', 'holder', 'key'] LOOP
            BEGIN
                CASE awaited
                    WHEN 'replaced' THEN PERFORM FROM queue.tasks AS t WHERE t.id = replaced FOR KEY SHARE;
                    WHEN 'holder' THEN PERFORM FROM queue.tasks AS t WHERE t.id = holder FOR UPDATE;
                    ELSE PERFORM queue_internal.lock_key(queue, key, true);
                END CASE;
                RAISE SQLSTATE 'QX000';
            EXCEPTION WHEN SQLSTATE 'QX000' THEN
                -- Has unlocked it.
            END;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_holder IS
    'Locks the task that has a key, the running task that it replaces, and the key; false if the task is gone.';

-- A task past its start deadline will never run, so no other may be refused or skipped in its favour, unless its key_ttl
-- counts. If it cannot be ended, because of a constraint that somebody added, a call for one task fails; a call for many
-- leaves out the one that needs the key ("keeps_errors"). The error itself can contain the row, which a producer may not
-- read: it is not passed on.
CREATE FUNCTION queue_internal.end_late_holder(id bigint, queue text, key text, keeps_errors boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF (SELECT t.token = 0 AND t.start_by <= clock_timestamp() FROM queue.tasks AS t
        WHERE t.id = end_late_holder.id AND t.queue = end_late_holder.queue) IS NOT TRUE THEN
        RETURN false;
    ELSIF NOT queue_internal.lock_holder(id, queue, key) THEN
        RETURN true;
    END IF;
    BEGIN
        RETURN (queue_internal.end_expired(ARRAY[id], NULL)).ended > 0;
    EXCEPTION
        WHEN serialization_failure OR deadlock_detected OR lock_not_available THEN
            RAISE;
        WHEN OTHERS THEN
            IF keeps_errors THEN
                RETURN false;
            END IF;
            RAISE EXCEPTION 'key % of queue % cannot be taken from task %', to_json(key), to_json(queue), id
                USING ERRCODE = SQLSTATE, DETAIL = 'The start deadline of that task has passed, and an error prevents its end.',
                      HINT = 'The background worker, and CALL queue.maintain(), write the error to the server log.';
    END;
END
$$;
COMMENT ON FUNCTION queue_internal.end_late_holder IS
    'Ends the task that has a key if its start deadline has passed; returns whether it has ended.';

-- Waits for a transaction that is taking the key for another task: if that one rolls back, the key is free, and this
-- push is not lost.
CREATE FUNCTION queue_internal.take_key(
    queue text, key text, task_id bigint, ttl interval DEFAULT NULL, keeps_errors boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    holder record;
BEGIN
    LOOP
        INSERT INTO queue_internal.keys (queue, key, task_id, ttl)
        VALUES (take_key.queue, take_key.key, take_key.task_id, take_key.ttl)
        ON CONFLICT ON CONSTRAINT keys_pkey DO NOTHING;
        IF FOUND THEN
            RETURN true;
        END IF;
        -- A scalar subquery, because EXISTS may be answered by reading the whole table once.
        SELECT k.task_id, k.expires_at,
               k.task_id = take_key.task_id OR k.expires_at <= clock_timestamp()
               OR k.expires_at IS NULL
                  AND (SELECT t.id FROM queue.tasks AS t WHERE t.id = k.task_id AND t.queue = k.queue) IS NULL AS gone
        INTO holder FROM queue_internal.keys AS k
        WHERE k.queue = take_key.queue AND k.key = take_key.key
        ORDER BY k.task_id DESC LIMIT 1;
        -- Only from the holder that was read: an UPDATE that waited for another push to take the key would see its
        -- new row, but not yet the task that came with it.
        IF holder.gone THEN
            UPDATE queue_internal.keys AS k
            SET task_id = take_key.task_id, expires_at = NULL,
                replaced_ttl = CASE WHEN k.expires_at = '-infinity' OR k.task_id = take_key.task_id THEN k.replaced_ttl END,
                ttl = coalesce(take_key.ttl, CASE WHEN k.task_id = take_key.task_id THEN k.ttl END)
            WHERE k.queue = take_key.queue AND k.key = take_key.key
              AND k.task_id = holder.task_id AND k.expires_at IS NOT DISTINCT FROM holder.expires_at;
            IF FOUND THEN
                RETURN true;
            END IF;
        ELSIF holder.task_id IS NOT NULL AND NOT queue_internal.end_late_holder(
                holder.task_id, take_key.queue, take_key.key, keeps_errors) THEN
            RETURN false;
        END IF;
        -- The row changed meanwhile, or the key is free now: try again.
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.take_key IS
    'Takes a key for a task unless another task has it; returns whether the task has it now.';

-- For a new task that a trigger of the user has suppressed.
CREATE FUNCTION queue_internal.give_back_key(queue text, key text, task_id bigint, replaced bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF replaced IS NOT NULL THEN
        UPDATE queue_internal.keys AS k SET task_id = replaced, ttl = k.replaced_ttl, replaced_ttl = NULL
        WHERE k.queue = give_back_key.queue AND k.key = give_back_key.key AND k.task_id = give_back_key.task_id;
    ELSE
        DELETE FROM queue_internal.keys AS k
        WHERE k.queue = give_back_key.queue AND k.key = give_back_key.key AND k.task_id = give_back_key.task_id;
    END IF;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION queue_internal.give_back_key IS
    'Gives the key of a task to the running one that it was to replace, or frees it; returns whether the task had it.';

-- Without a lock: another push may take it before this one does. A task past its start deadline gives its key up. LIMIT,
-- because an old snapshot can show two tasks with the key.
CREATE FUNCTION queue_internal.is_key_free(queue text, key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN (SELECT k.key FROM queue_internal.keys AS k
            WHERE k.queue = is_key_free.queue AND k.key = is_key_free.key
              AND (k.expires_at > clock_timestamp()
                   OR k.expires_at IS NULL
                      AND (SELECT t.id FROM queue.tasks AS t
                           WHERE t.id = k.task_id AND t.queue = k.queue
                             AND (t.token = 0 AND t.start_by <= clock_timestamp()) IS NOT TRUE)
                          IS NOT NULL)
            LIMIT 1) IS NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.is_key_free IS 'Returns whether a push could take a key.';

-- Returns false if it would have to wait and "wait" is false. Returns true also if no task has the key.
CREATE FUNCTION queue_internal.lock_key(queue text, key text, wait boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF wait THEN
        PERFORM FROM queue_internal.keys AS k WHERE k.queue = lock_key.queue AND k.key = lock_key.key
        FOR NO KEY UPDATE;
        RETURN true;
    END IF;
    PERFORM FROM queue_internal.keys AS k WHERE k.queue = lock_key.queue AND k.key = lock_key.key
    FOR NO KEY UPDATE SKIP LOCKED;
    RETURN FOUND OR NOT EXISTS (
        SELECT FROM queue_internal.keys AS k WHERE k.queue = lock_key.queue AND k.key = lock_key.key);
END
$$;
COMMENT ON FUNCTION queue_internal.lock_key IS
    'Locks the row of a key, so that no push takes it meanwhile; false if that would have to wait.';

CREATE FUNCTION queue_internal.release_key(task queue.tasks, at_once boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
BEGIN
    -- In a statement of its own: a task that replaces this one may be giving the key back, and the snapshots of the
    -- statements that follow show that. Who must not wait has locked it already (lock_to_end).
    PERFORM queue_internal.lock_key(task.queue, task.key, true);
    IF task.state = 'waiting' THEN
        UPDATE queue_internal.keys AS k SET task_id = r.id, ttl = k.replaced_ttl, replaced_ttl = NULL
        FROM queue_internal.dependencies AS d JOIN queue.tasks AS r ON r.id = d.predecessor_id
        WHERE d.task_id = task.id AND r.queue = task.queue AND r.key = task.key AND r.state = 'running'
          AND k.queue = task.queue AND k.key = task.key AND k.task_id = task.id;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF NOT at_once THEN
        UPDATE queue_internal.keys AS k
        SET expires_at = CASE WHEN extract(epoch FROM k.ttl) < 0 THEN task.created_at - k.ttl
                              ELSE now + coalesce(k.ttl, q.key_ttl) END
        FROM queue.queues AS q
        WHERE k.queue = task.queue AND k.key = task.key AND k.task_id = task.id
          AND q.name = task.queue AND coalesce(k.ttl, q.key_ttl) IS NOT NULL;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    DELETE FROM queue_internal.keys AS k
    WHERE k.queue = task.queue AND k.key = task.key AND k.task_id = task.id;
END
$$;
COMMENT ON FUNCTION queue_internal.release_key IS
    'Releases the key of a task that has ended, at once or after its key_ttl.';

-- A running task whose key has been taken over by the task that replaces it. Locks the key, so that it is not given back
-- meanwhile: a caller that must not wait has locked it already. A snapshot from before the replacement does not show it; then
-- locking the row raises 40001.
CREATE FUNCTION queue_internal.is_replaced(task queue.tasks) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    -- Not in one statement, because that would lock the table of keys for a task without a key.
    IF task.key IS NULL THEN
        RETURN false;
    END IF;
    PERFORM queue_internal.lock_key(task.queue, task.key, true);
    RETURN EXISTS (
        SELECT FROM queue_internal.keys AS k
        WHERE k.queue = task.queue AND k.key = task.key AND k.task_id <> task.id
          AND (SELECT t.state FROM queue.tasks AS t WHERE t.id = k.task_id AND t.queue = k.queue) = 'waiting');
END
$$;
COMMENT ON FUNCTION queue_internal.is_replaced IS
    'Locks the key of a running task; returns whether another task has replaced it and waits for its end.';

-- Called by a push that found its key taken. If "id" is null the push has to try again: the key is free now, or can
-- be taken over from the task in "running", which the pushed task has to wait for.
CREATE FUNCTION queue_internal.resolve_duplicate(
    pushed queue.tasks, on_duplicate text, OUT id bigint, OUT running bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    holder queue_internal.keys;
BEGIN
    SELECT k.* INTO holder FROM queue_internal.keys AS k
    WHERE k.queue = pushed.queue AND k.key = pushed.key
    ORDER BY k.task_id DESC LIMIT 1;
    IF on_duplicate = 'error' AND holder.task_id IS NOT NULL THEN
        PERFORM queue_internal.raise_duplicate_key(pushed.queue, pushed.key, holder.task_id, holder.expires_at);
    ELSIF on_duplicate = 'skip' OR holder.task_id IS NULL OR holder.expires_at IS NOT NULL THEN
        id := holder.task_id;
        RETURN;
    END IF;
    -- Waits for a claim in progress: if it rolls back, the task is still to be changed.
    UPDATE queue.tasks AS t SET run_at = pushed.run_at, updated_at = clock_timestamp()
    WHERE t.id = holder.task_id AND t.queue = pushed.queue AND t.state IN ('queued', 'waiting')
    RETURNING t.group_key, t.admission INTO pushed.group_key, pushed.admission;
    IF NOT FOUND THEN
        IF on_duplicate = 'reschedule' THEN
            SELECT t.id INTO id FROM queue.tasks AS t WHERE t.id = holder.task_id AND t.queue = pushed.queue;
            RETURN;
        END IF;
        -- First the task and then its key, in the same order as the end of a task.
        SELECT t.id INTO running FROM queue.tasks AS t
        WHERE t.id = holder.task_id AND t.queue = pushed.queue AND t.state = 'running' FOR KEY SHARE;
        PERFORM queue_internal.lock_key(pushed.queue, pushed.key, true);
        -- A new snapshot, because the attempt may have ended while this waited for the transaction that requeued the
        -- task and had the key locked. -infinity makes the key free for this transaction, whatever the clock does.
        UPDATE queue_internal.keys AS k SET expires_at = '-infinity', ttl = NULL, replaced_ttl = k.ttl
        WHERE k.queue = pushed.queue AND k.key = pushed.key AND k.task_id = running AND k.expires_at IS NULL
          AND (SELECT t.state FROM queue.tasks AS t WHERE t.id = running) = 'running';
        IF NOT FOUND THEN
            running := NULL;
        END IF;
        RETURN;
    END IF;
    IF on_duplicate = 'replace' THEN
        UPDATE queue.tasks AS t
        SET payload = pushed.payload, kind = pushed.kind, lease = pushed.lease, timeout = pushed.timeout,
            start_by = pushed.start_by, weight = pushed.weight, headers = pushed.headers, priority = pushed.priority,
            -- It was admitted with its old weight (rates.sql).
            admission = CASE WHEN t.admission = 1 AND t.weight <> pushed.weight THEN 2 ELSE t.admission END
        WHERE t.id = holder.task_id
        RETURNING t.admission INTO pushed.admission;
    END IF;
    id := holder.task_id;
    pushed.id := id;
    PERFORM queue_internal.recheck_group(pushed);
END
$$;
COMMENT ON FUNCTION queue_internal.resolve_duplicate IS
    'Applies on_duplicate to the task that has the key; returns that task''s id, or the running task to wait for.';

CREATE FUNCTION queue_internal.retire_keys(max_keys integer) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    -- In a variable, because a volatile function is no condition for an index.
    moment  CONSTANT timestamptz := clock_timestamp();
    expired record;
    retired integer := 0;
BEGIN
    FOR expired IN
        SELECT k.queue, k.key FROM queue_internal.keys AS k WHERE k.expires_at <= moment
        ORDER BY k.expires_at LIMIT max_keys FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM queue_internal.keys AS k WHERE k.queue = expired.queue AND k.key = expired.key;
        retired := retired + 1;
    END LOOP;
    RETURN retired >= max_keys;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_keys IS
    'Deletes keys whose time has passed; returns whether there may be more.';
