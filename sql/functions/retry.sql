-- queue.retry(id)
--
--   Puts a task back from the dead letters into its queue: due at once, its attempts counted anew,
--   its errors kept, its token still growing.
--   API:      public; an operator's
--   Returns:  the state that the task is in now: queued
--   Errors:   QX002 its queue was dropped; QX003 no such task; QX005 it has not failed for good;
--             22004, 22023 for the argument
--   Touches:  queue.dead_letters (deletes), queue.tasks (inserts)

CREATE FUNCTION queue.retry(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_id(id);
    IF queue_internal.revive(ARRAY[id]) = 0 THEN
        PERFORM queue_internal.raise_wrong_state(
            id, 'is not among the dead letters', 'Only tasks that failed for good can be retried.');
    END IF;
    RETURN 'queued';
END
$$;
COMMENT ON FUNCTION queue.retry(bigint) IS 'Puts a task back from the dead letters into its queue.';

CREATE FUNCTION queue_internal.revive(ids bigint[], to_queue text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    revived bigint;
BEGIN
    WITH dead AS (
        DELETE FROM queue.dead_letters AS d WHERE d.id = ANY (ids) RETURNING d.*
    )
    INSERT INTO queue.tasks (
        id, queue, priority, max_attempts, token, created_at, key, group_key, headers, payload,
        progress, errors)
    SELECT d.id, coalesce(to_queue, d.queue), d.priority, d.max_attempts, d.token, d.created_at, d.key,
           d.group_key, d.headers, d.payload, d.progress, d.errors
    FROM dead AS d ORDER BY d.id;
    GET DIAGNOSTICS revived = ROW_COUNT;
    RETURN revived;
END
$$;
COMMENT ON FUNCTION queue_internal.revive(bigint[], text) IS
    'Puts tasks back from the dead letters into their queues, or into another one; returns how many.';
