-- queue.extend_many
--
--   Touches:  queue.tasks (HOT updates). Locks the tasks that run with the token given, in the order of ids: a worker
--             that has lost a lease does not wait for the new holder

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
    -- Null means all queues. Checked once and not for each task.
    allowed CONSTANT text[] := queue_internal.queues_with_right('worker');
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
        SET lease_until = least(
                moment + coalesce(extend_many.lease, queue_internal.checked_lease(NULL, coalesce(
                    t.lease, (SELECT q.lease FROM queue.queues AS q WHERE q.name = t.queue)))),
                queue_internal.timeout_at(t.claimed_at, coalesce(
                    t.timeout, (SELECT q.timeout FROM queue.queues AS q WHERE q.name = t.queue)))),
            progress = coalesce(g.progress, t.progress), updated_at = moment
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(extend_many.progress)) AS g (id, token, progress)
        WHERE t.id = g.id AND t.token = g.token AND t.state = 'running'
          AND (allowed IS NULL OR t.queue = ANY (allowed))
          AND coalesce(queue_internal.timeout_at(t.claimed_at, coalesce(
              t.timeout, (SELECT q.timeout FROM queue.queues AS q WHERE q.name = t.queue))) > moment, true)
        RETURNING t.id, t.lease_until, t.cancel_requested_at IS NOT NULL
    LOOP
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.extend_many IS
'Extends many leases, as queue.extend. Returns a row for each task whose token is current and whose attempt has not
timed out; the others are left out and not changed. Empty arrays return no rows.

- ids, tokens: the tasks and the tokens of their leases, as claim returned them. Arrays of the same length, at most
  100000.
- lease: how long from now, the same for all. Null (default) means each task''s own lease, or else the option of
  its queue.
- progress: one JSON value for each task; a null element leaves the progress unchanged. Null (default) leaves all
  unchanged.

Errors: 22004, 22023 or 54000: an argument is null, invalid or too large.';
