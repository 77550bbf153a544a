-- queue.extend_many
--
--   Touches:  queue.tasks (HOT updates). Locks the tasks that run with the token given, in the order of ids: a worker
--             that has lost a lease does not wait for the new holder. With skip_locked it waits for nobody

CREATE FUNCTION queue.extend_many(
    ids      bigint[],
    tokens   bigint[],
    lease    interval DEFAULT NULL,
    progress jsonb[]  DEFAULT NULL,
    skip_locked boolean DEFAULT false)
RETURNS TABLE (id bigint, lease_until timestamptz, cancel_requested boolean, extended boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_nestloop = off
SET jit = off
AS $$
DECLARE
    -- Null means all queues. Checked once and not for each task.
    allowed CONSTANT text[] := queue_internal.queues_with_right('worker');
    all_ids    CONSTANT bigint[] := ids;
    all_tokens CONSTANT bigint[] := tokens;
    moment  timestamptz;
BEGIN
    PERFORM queue_internal.check_array('ids', ids);
    PERFORM queue_internal.check_array('tokens', tokens);
    PERFORM queue_internal.check_same_length('tokens', tokens, cardinality(ids));
    PERFORM queue_internal.check_same_length('progress', progress, cardinality(ids));
    lease := queue_internal.checked_lease(lease, NULL);
    IF skip_locked IS NULL THEN
        PERFORM queue_internal.raise_null('skip_locked');
    END IF;
    -- What is locked now is all that is extended.
    IF skip_locked THEN
        SELECT array_agg(l.id), array_agg(l.token), CASE WHEN extend_many.progress IS NOT NULL THEN array_agg(l.progress) END
        INTO ids, tokens, progress
        FROM (
            SELECT t.id, t.token, g.progress
            FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(extend_many.progress)) AS g (id, token, progress)
            JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
            WHERE t.id = ANY (ids) AND (allowed IS NULL OR t.queue = ANY (allowed))
            ORDER BY t.id FOR NO KEY UPDATE OF t SKIP LOCKED
        ) AS l;
    ELSE
        PERFORM FROM ROWS FROM (unnest(ids), unnest(tokens)) AS g (id, token)
        JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
        WHERE t.id = ANY (ids) AND (allowed IS NULL OR t.queue = ANY (allowed))
        ORDER BY t.id FOR NO KEY UPDATE OF t;
    END IF;
    moment := clock_timestamp();
    FOR id, lease_until, cancel_requested, extended IN
        UPDATE queue.tasks AS t
        SET lease_until = least(
                moment + coalesce(extend_many.lease, queue_internal.checked_lease(NULL, coalesce(
                    t.lease, (SELECT q.lease FROM queue.queues AS q WHERE q.name = t.queue)))),
                queue_internal.timeout_at(t.claimed_at, coalesce(
                    t.timeout, (SELECT q.timeout FROM queue.queues AS q WHERE q.name = t.queue)))),
            progress = coalesce(g.progress, t.progress), updated_at = moment
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(extend_many.progress)) AS g (id, token, progress)
        WHERE t.id = g.id AND t.token = g.token AND t.state = 'running' AND t.id = ANY (ids)
          AND (allowed IS NULL OR t.queue = ANY (allowed))
          AND coalesce(queue_internal.timeout_at(t.claimed_at, coalesce(
              t.timeout, (SELECT q.timeout FROM queue.queues AS q WHERE q.name = t.queue))) > moment, true)
        RETURNING t.id, t.lease_until, t.cancel_requested_at IS NOT NULL, true
    LOOP
        RETURN NEXT;
    END LOOP;
    IF skip_locked THEN
        RETURN QUERY
        SELECT t.id, t.lease_until, t.cancel_requested_at IS NOT NULL, false
        FROM ROWS FROM (unnest(all_ids), unnest(all_tokens)) AS g (id, token)
        JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
        WHERE t.id = ANY (all_ids) AND (allowed IS NULL OR t.queue = ANY (allowed))
          AND NOT EXISTS (SELECT FROM unnest(ids) AS l (id) WHERE l.id = t.id);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.extend_many IS
'Extends many leases, as queue.extend. Returns a row for each task whose token is current and whose attempt has not
timed out; the others are left out and not changed. Empty arrays return no rows. extended: whether the lease was
extended; false only with skip_locked.

- ids, tokens: the tasks and the tokens of their leases, as claim returned them. Arrays of the same length, at most
  100000.
- lease: how long from now, the same for all. Null (default) means each task''s own lease, or else the option of
  its queue.
- progress: one JSON value for each task; a null element leaves the progress unchanged. Null (default) leaves all
  unchanged.
- skip_locked: for the heartbeat of many handlers. True leaves a task unchanged that another transaction has locked, for
  example one in which its handler completes it, and returns it with the lease_until that it has; progress is not
  stored. False (default) waits for that transaction, and so do the heartbeats of all other tasks.

Errors: 22004, 22023 or 54000: an argument is null, invalid or too large.';
