-- queue.drop
--
--   Touches:  queue.queues, queue.tasks and queue.dead_letters (locks in the order of ids), and the rows of policies
--             that belong to them (deletes)
--   A concurrent push may leave its task behind. That task is neither lost nor claimed: it is there again when a queue
--   of that name is created.

CREATE FUNCTION queue.drop(name text, force boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    IF force IS NULL THEN
        PERFORM queue_internal.raise_null('force');
    END IF;
    LOOP
        PERFORM FROM queue.queues AS q WHERE q.name = "drop".name FOR UPDATE;
        EXIT WHEN FOUND;
        -- A transaction that was waited for may have dropped the queue and created it, as in hold_queue.
        IF NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = "drop".name) THEN
            PERFORM queue_internal.raise_unknown_queue(name);
        END IF;
    END LOOP;
    DELETE FROM queue.queues AS q WHERE q.name = "drop".name;
    IF force THEN
        -- Before the rows that belong to them, and in the same order as all other calls.
        PERFORM FROM queue.tasks AS t WHERE t.queue = "drop".name ORDER BY t.id FOR UPDATE;
        PERFORM FROM queue.dead_letters AS d WHERE d.queue = "drop".name ORDER BY d.id FOR UPDATE;
    END IF;
    -- Wakes sessions that wait for the queue, so that they raise QX002.
    PERFORM queue_internal.announce_task(name, clock_timestamp());
    DELETE FROM queue.bindings AS b WHERE b.queue = "drop".name;
    DELETE FROM queue.handlers AS h WHERE h.queue = "drop".name;
    DELETE FROM queue_internal.slots AS s WHERE s.queue = "drop".name;
    DELETE FROM queue_internal.rate_buckets AS s WHERE s.queue = "drop".name;
    DELETE FROM queue_internal.group_starts AS s WHERE s.queue = "drop".name;
    IF NOT force AND (EXISTS (SELECT FROM queue.tasks AS t WHERE t.queue = "drop".name)
                      OR EXISTS (SELECT FROM queue.dead_letters AS d WHERE d.queue = "drop".name)) THEN
        RAISE EXCEPTION 'queue "%" has tasks', name
            USING ERRCODE = 'object_in_use',
                  HINT = format('SELECT queue.drop(%L, force => true) deletes them, running tasks '
                                'and dead letters included.', name);
    END IF;
    IF NOT force AND EXISTS (
            -- Also of one that runs again, or failed and can be put back, and will ask for the same event.
            SELECT FROM queue_internal.awaits AS a
            WHERE a.queue = "drop".name
              AND (EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = a.task_id)
                   OR EXISTS (SELECT FROM queue.dead_letters AS d WHERE d.id = a.task_id))) THEN
        RAISE EXCEPTION 'tasks of other queues wait for events of queue "%"', name
            USING ERRCODE = 'object_in_use',
                  DETAIL = 'They were moved while they waited; some may be dead letters.',
                  HINT = format('Emit the events and let the tasks run first, or SELECT queue.drop(%L, force => true): '
                                'then they have timed out.', name);
    END IF;
    -- Waits for transactions in which a task of a group has ended, which a refusal must not do. First for one that inserts
    -- rows, which the deletion would not see.
    PERFORM FROM queue_internal.locks AS l WHERE l.queue = "drop".name AND l.number = -1 FOR UPDATE;
    DELETE FROM queue_internal.locks AS l WHERE l.queue = "drop".name;
    IF force THEN
        DELETE FROM queue_internal.dependencies AS d USING queue.tasks AS t
        WHERE t.queue = "drop".name AND t.state = 'waiting' AND d.task_id = t.id;
        DELETE FROM queue_internal.batches AS b USING queue.tasks AS t
        WHERE t.queue = "drop".name AND t.state = 'waiting' AND b.task_id = t.id;
        PERFORM queue_internal.notify_dependents(ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.queue = "drop".name AND t.id IN (SELECT d.predecessor_id FROM queue_internal.dependencies AS d)),
            'purged');
    END IF;
    -- A session may replace some of them meanwhile: the deletion waits for it, and does not see what it has inserted.
    LOOP
        DELETE FROM queue_internal.events AS e WHERE e.queue = "drop".name;
        EXIT WHEN NOT EXISTS (SELECT FROM queue_internal.events AS e WHERE e.queue = "drop".name);
    END LOOP;
    DELETE FROM queue_internal.group_heads AS h WHERE h.queue = "drop".name;
    DELETE FROM queue_internal.group_returns AS r WHERE r.queue = "drop".name;
    -- A later queue of that name must not get them. The sweep deletes steps and awaits of tasks that are gone.
    DELETE FROM queue_internal.emitted AS e WHERE e.queue = "drop".name;
    UPDATE queue_internal.awaits AS a SET until = least(a.until, clock_timestamp()), outcome = 'purged'
    WHERE a.queue = "drop".name;
    INSERT INTO queue_internal.events (queue, task_id)
    SELECT t.queue, t.id FROM queue_internal.awaits AS a JOIN queue.tasks AS t ON t.id = a.task_id AND t.token = a.token
    WHERE a.queue = "drop".name AND t.queue <> "drop".name;
    -- Including keys that finished tasks keep for a time, which would refuse tasks of a later queue of that name.
    PERFORM FROM queue_internal.keys AS k WHERE k.queue = "drop".name ORDER BY k.key FOR UPDATE;
    DELETE FROM queue_internal.keys AS k WHERE k.queue = "drop".name;
    IF force THEN
        PERFORM queue_internal.delete_tasks_of(name);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.drop IS
'Drops a queue, its bindings and its emitted events, and detaches its handler. The history stays. Needs the operator''s
right on the queue.

- name: name of the queue.
- force: true also deletes the tasks of the queue, running ones included, and its dead letters; for tasks that wait
  for one of them, it was cancelled. Tasks that were moved to another queue and wait for an event of this one, or have
  become dead letters since, have waited until their timeout. false (default) refuses a queue that has any of these.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 55006: it has tasks or dead letters, or tasks of
other queues wait for its events, and force is false. 22004, 22023 or 54000: an argument is null, invalid or too large.';

-- Raises an error for a task that a trigger keeps, and not for one that was pushed meanwhile. It counts, because a plan for the few
-- tasks that the planner may know of would compare each with each.
CREATE FUNCTION queue_internal.delete_tasks_of(queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last bigint;
BEGIN
    WITH gone AS (
        DELETE FROM queue.tasks AS t WHERE t.queue = delete_tasks_of.queue RETURNING t.id
    )
    SELECT max(t.id) INTO last FROM queue.tasks AS t WHERE t.queue = delete_tasks_of.queue
    HAVING count(*) > (SELECT count(*) FROM gone);
    PERFORM queue_internal.raise_kept(min(t.id), 'queue.tasks') FROM queue.tasks AS t
    WHERE t.queue = delete_tasks_of.queue AND t.id <= last HAVING count(*) > 0;
    WITH gone AS (
        DELETE FROM queue.dead_letters AS d WHERE d.queue = delete_tasks_of.queue RETURNING d.id
    )
    SELECT max(d.id) INTO last FROM queue.dead_letters AS d WHERE d.queue = delete_tasks_of.queue
    HAVING count(*) > (SELECT count(*) FROM gone);
    PERFORM queue_internal.raise_kept(min(d.id), 'queue.dead_letters') FROM queue.dead_letters AS d
    WHERE d.queue = delete_tasks_of.queue AND d.id <= last HAVING count(*) > 0;
END
$$;
COMMENT ON FUNCTION queue_internal.delete_tasks_of IS 'Deletes the tasks and dead letters of a queue that is dropped.';
