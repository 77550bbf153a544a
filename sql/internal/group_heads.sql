-- The head of a group: no task of the group has a smaller id.
--
--   Tasks that were admitted or have ended leave dead entries in tasks_group until a vacuum removes them. While an old snapshot
--   prevents that, each admission would read all of the group's. So one that has read more than forty stores the
--   group's head, where the next ones start. Each change leaves a dead row of the head itself. So the next one comes after
--   a few more entries: both together grow with the square root of the number of dead entries.
--   Exact, although tasks with smaller ids may come: a push that commits late has a larger id than the settled one, and no head is
--   raised above that (settled_id.sql). So who writes to queue.tasks for long holds up the heads of the groups.
--   A redrive or a move puts a task of the past back. It leaves a row in "group_returns", which others see with the task: until an
--   admission has lowered the head, and deleted the row, the smaller of both ids is the head. A task that came without triggers
--   is found by the sweep, whose event ("arrived") lowers the head.
--   Only the transaction that has the group locked changes its head, so nobody waits for one. Heads that
--   were not changed for an hour are deleted. They are not moved to another edition, nor dumped with the extension.

CREATE FUNCTION queue_internal.raise_group_head(queue text, group_key text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- Before the tasks are read: what is settled is visible then.
    head   bigint := queue_internal.settled_id();
    before bigint := (SELECT h.first_id FROM queue_internal.group_heads AS h
                      WHERE h.queue = raise_group_head.queue AND h.group_key = raise_group_head.group_key);
BEGIN
    IF head > before IS NOT FALSE THEN
        head := least(head, queue_internal.first_of_group(queue, group_key, coalesce(before, -9223372036854775808)));
    END IF;
    IF before IS NULL THEN
        INSERT INTO queue_internal.group_heads (queue, group_key, first_id)
        VALUES (raise_group_head.queue, raise_group_head.group_key, head) ON CONFLICT DO NOTHING;
    ELSIF head > before THEN
        UPDATE queue_internal.group_heads AS h
        SET first_id = head, changes = h.changes + 1, changed_at = clock_timestamp()
        WHERE (h.queue, h.group_key) IN (
            SELECT o.queue, o.group_key FROM queue_internal.group_heads AS o
            WHERE o.queue = raise_group_head.queue AND o.group_key = raise_group_head.group_key FOR UPDATE SKIP LOCKED);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.raise_group_head IS
    'Stores that no task of a group has a smaller id than the first one there is, or than the settled one.';

CREATE FUNCTION queue_internal.note_return(queue text, group_key text, task_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO queue_internal.group_returns (queue, group_key, task_id)
    VALUES (note_return.queue, note_return.group_key, note_return.task_id);
END
$$;
COMMENT ON FUNCTION queue_internal.note_return IS 'Notes that a task of the past comes back to its group.';

-- Null if there is none.
CREATE FUNCTION queue_internal.group_head(queue text, group_key text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    RETURN (SELECT least(h.first_id, (
                SELECT r.task_id FROM queue_internal.group_returns AS r
                WHERE r.queue = h.queue AND r.group_key = h.group_key ORDER BY r.queue, r.group_key, r.task_id LIMIT 1))
            FROM queue_internal.group_heads AS h
            WHERE h.queue = group_head.queue AND h.group_key = group_head.group_key);
END
$$;
COMMENT ON FUNCTION queue_internal.group_head IS 'Returns an id; no task of the group has a smaller one.';

CREATE FUNCTION queue_internal.first_of_group(
    queue text, group_key text, first_id bigint DEFAULT -9223372036854775808) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN (
        SELECT min(f.id)
        FROM generate_series(0, 2) AS a (admission),
             LATERAL (SELECT t.id FROM queue.tasks AS t
                      WHERE t.queue = first_of_group.queue AND t.group_key = first_of_group.group_key
                        AND (t.admission, t.id) >= (a.admission, first_of_group.first_id) AND t.admission <= a.admission
                      ORDER BY t.admission, t.id LIMIT 1) AS f);
END
$$;
COMMENT ON FUNCTION queue_internal.first_of_group IS 'Returns the smallest id of a group, from an id on; null if there is none.';

CREATE FUNCTION queue_internal.retire_groups() RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    old  record;
    gone record;
BEGIN
    FOR gone IN
        SELECT r.queue, r.group_key, r.task_id, r.number FROM queue_internal.group_returns AS r
        WHERE NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = r.queue)
        LIMIT 1000 FOR UPDATE OF r SKIP LOCKED
    LOOP
        DELETE FROM queue_internal.group_returns AS r
        WHERE r.queue = gone.queue AND r.group_key = gone.group_key AND r.task_id = gone.task_id AND r.number = gone.number;
    END LOOP;
    -- The task has left its group. Other tasks may have come back with it, with larger ids, so an admission has to delete the row.
    FOR gone IN
        SELECT DISTINCT r.queue, r.group_key FROM queue_internal.group_returns AS r
        WHERE NOT EXISTS (SELECT FROM queue.tasks AS t
                          WHERE t.id = r.task_id AND t.queue = r.queue AND t.group_key = r.group_key)
        LIMIT 1000
    LOOP
        IF NOT queue_internal.has_group_event(gone.queue, gone.group_key, true) THEN
            INSERT INTO queue_internal.events (queue, group_key) VALUES (gone.queue, gone.group_key);
        END IF;
    END LOOP;
    FOR old IN
        SELECT h.queue, h.group_key FROM queue_internal.group_heads AS h
        WHERE h.changed_at NOT BETWEEN clock_timestamp() - interval '1 hour' AND clock_timestamp() + interval '1 hour'
        LIMIT 1000
    LOOP
        -- A drop that did not see the head has deleted its lock.
        IF NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = old.queue)
           OR queue_internal.lock_group(old.queue, old.group_key) THEN
            DELETE FROM queue_internal.group_heads AS h
            WHERE (h.queue, h.group_key) IN (
                SELECT o.queue, o.group_key FROM queue_internal.group_heads AS o
                WHERE o.queue = old.queue AND o.group_key = old.group_key FOR UPDATE SKIP LOCKED);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_groups IS 'Deletes what is left of groups in which nothing happens any more.';
