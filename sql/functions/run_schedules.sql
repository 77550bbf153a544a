-- queue.run_schedules
--
--   Promise:  each run that is due is pushed once, however many sessions call this at the same time, and not at all if
--             the transaction rolls back
--   Failing:  a schedule whose push fails records the error and stays due. It does not affect other schedules
--   Touches:  queue.schedules (locks with SKIP LOCKED, updates), queue.tasks (inserts)

CREATE FUNCTION queue.run_schedules() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_right('operator', NULL);
    RETURN (SELECT f.fired FROM queue_internal.fire_schedules(NULL, '0') AS f);
END
$$;
COMMENT ON FUNCTION queue.run_schedules IS
'Pushes the tasks of all schedules that are due, at most 100 of each schedule, and returns how many. The background
worker and queue.maintain do this as well. Needs the operator''s right on all queues.

Errors: 42501: no right on all queues. A schedule whose push fails records the error in queue.schedules instead.';
