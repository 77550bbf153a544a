-- queue.reap
--
--   Touches:  queue.tasks (reads all of it, never waits for a lock)

CREATE FUNCTION queue.reap() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_right('operator', NULL);
    RETURN (queue_internal.reap(9223372036854775807)).reaped + (queue_internal.expire_unstarted(NULL)).expired;
END
$$;
COMMENT ON FUNCTION queue.reap IS
'Requeues every task whose lease has expired, or moves it to the dead letters if its attempts are used up, and ends every
task that was not claimed by its start deadline. Returns how many tasks it changed. The background worker and
queue.maintain do the same, and claims take over expired leases by themselves. Needs the operator''s right on all
queues.

Errors: 42501: no right on all queues.';
