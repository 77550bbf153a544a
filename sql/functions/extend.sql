-- queue.extend
--
--   Touches:  queue.tasks (a HOT update)

CREATE FUNCTION queue.extend(
    id       bigint,
    token    bigint,
    lease    interval DEFAULT NULL,
    progress jsonb    DEFAULT NULL)
RETURNS TABLE (lease_until timestamptz, cancel_requested boolean)
LANGUAGE plpgsql ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_lease_holder(id, token);
    PERFORM queue_internal.checked_lease(lease, NULL);
    SELECT e.lease_until, e.cancel_requested INTO lease_until, cancel_requested
    FROM queue.extend_many(ARRAY[id], ARRAY[token], lease,
                           CASE WHEN progress IS NOT NULL THEN ARRAY[progress] END) AS e;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_lease_lost(id, token);
    END IF;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION queue.extend IS
'The heartbeat of a worker: the lease starts again from now. Returns lease_until, when it will expire, and
cancel_requested, whether the worker should stop and call queue.confirm_cancel. Needs the worker''s right on the queue.

- id, token: the task and the token of its lease, as claim returned them.
- lease: how long from now; more than 0, at most queue.max_lease. Null (default) means the task''s own lease, or else
  the queue''s option. The lease of a task with a timeout ends no later than that.
- progress: any JSON value, shown by queue.get and passed to the next attempt. Null (default) leaves it unchanged.

Errors: QX001: the lease is no longer held, or the attempt has timed out. QX003: the task does not exist, or the caller
has no right on its queue. 22004, 22023 or 54000: an argument is null, invalid or too large.';
