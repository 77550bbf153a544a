-- queue.extend(id, token, lease, progress)
--
--   The heartbeat of a worker: the lease runs anew from now, progress is noted, and the worker
--   learns whether somebody asked to cancel the task. Without "lease" the queue's default is used;
--   without "progress" the last one stays.
--   API:      public; needs the worker's right on the queue
--   Errors:   QX001 the lease is lost; QX003 no such task; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (updates, HOT)

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
COMMENT ON FUNCTION queue.extend(bigint, bigint, interval, jsonb) IS
    'Extends a lease, notes progress, and tells whether cancelling was requested.';
