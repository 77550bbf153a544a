-- queue.extend_many(ids, tokens, lease, progress)
--
--   queue.extend for many tasks. Stale tokens are left out of the answer and change nothing.
--   "progress", if given, has one element for each id.
--   API:      public; needs the worker's right on the queues
--   Empty:    empty arrays extend nothing and return no rows
--   Errors:   22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (locks in the order of ids, and only what runs with the token given: who has lost a
--             lease does not wait for its new holder; updates, HOT)

CREATE FUNCTION queue.extend_many(
    ids      bigint[],
    tokens   bigint[],
    lease    interval DEFAULT NULL,
    progress jsonb[]  DEFAULT NULL)
RETURNS TABLE (id bigint, lease_until timestamptz, cancel_requested boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    -- Null for all. Asked once, and not for each task.
    allowed CONSTANT text[] := queue_internal.queues_with_right('worker');
    longest CONSTANT interval := queue_internal.setting('max_lease', '7d');
    moment  timestamptz;
BEGIN
    PERFORM queue_internal.check_array('ids', ids);
    PERFORM queue_internal.check_array('tokens', tokens);
    PERFORM queue_internal.check_same_length('tokens', tokens, cardinality(ids));
    PERFORM queue_internal.check_same_length('progress', progress, cardinality(ids));
    lease := queue_internal.checked_lease(lease, NULL);
    PERFORM FROM ROWS FROM (unnest(ids), unnest(tokens)) AS g (id, token)
    JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
    WHERE (allowed IS NULL OR t.queue = ANY (allowed))
    ORDER BY t.id FOR NO KEY UPDATE OF t;
    moment := clock_timestamp();
    FOR id, lease_until, cancel_requested IN
        UPDATE queue.tasks AS t
        SET lease_until = moment + coalesce(
                extend_many.lease, (SELECT least(q.lease, longest) FROM queue.queues AS q WHERE q.name = t.queue)),
            progress = coalesce(g.progress, t.progress), updated_at = moment
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(extend_many.progress)) AS g (id, token, progress)
        WHERE t.id = g.id AND t.token = g.token AND t.state = 'running'
          AND (allowed IS NULL OR t.queue = ANY (allowed))
        RETURNING t.id, t.lease_until, t.cancel_requested_at IS NOT NULL
    LOOP
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.extend_many(bigint[], bigint[], interval, jsonb[]) IS
    'Extends many leases; returns a row for each whose token was current.';
