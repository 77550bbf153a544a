-- queue.reap()
--
--   Puts back every task whose lease ran out, or moves it to the dead letters when its attempts
--   are used up. The background worker does the same in small batches; without it, call this from
--   psql or pg_cron. Claims do not wait for it: they take over expired leases by themselves.
--   API:      public; needs the operator's right on all queues
--   Returns:  how many leases had run out
--   Touches:  queue.tasks (reads all of it, never waits for a lock)

CREATE FUNCTION queue.reap() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_right('operator', NULL);
    RETURN (SELECT r.reaped FROM queue_internal.reap(9223372036854775807) AS r);
END
$$;
COMMENT ON FUNCTION queue.reap() IS 'Puts back every task whose lease ran out; returns how many.';
