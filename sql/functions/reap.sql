-- queue.reap
--
--   Touches:  queue.tasks (reads all of it, never waits for a lock)

CREATE FUNCTION queue.reap() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_right('operator', NULL);
    RETURN (SELECT r.reaped FROM queue_internal.reap(9223372036854775807) AS r);
END
$$;
COMMENT ON FUNCTION queue.reap IS
'Requeues every task whose lease has expired, or moves it to the dead letters if its attempts are used up. Returns how
many leases had expired. The background worker and queue.maintain do the same, and claims take over expired leases by
themselves. Needs the operator''s right on all queues.

Errors: 42501: no right on all queues.';
