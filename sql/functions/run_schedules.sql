-- queue.run_schedules()
--
--   Pushes the tasks of all schedules that are due. The worker does so by itself; without it, call
--   this every minute or so, from pg_cron or any other scheduler.
--   API:      public; needs the operator's right on all queues
--   Promise:  each time that is due is run once, however many call this at the same moment, and none
--             if the transaction rolls back
--   Returns:  how many tasks were pushed; of one schedule at most 100 a call
--   Empty:    0
--   Failing:  a schedule whose push fails notes the error, keeps its time, and is in no other's way
--   Touches:  queue.schedules (locks with SKIP LOCKED, updates), queue.tasks (inserts)

CREATE FUNCTION queue.run_schedules() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_right('operator', NULL);
    RETURN (SELECT f.fired FROM queue_internal.fire_schedules(NULL, '0') AS f);
END
$$;
COMMENT ON FUNCTION queue.run_schedules() IS
    'Pushes the tasks of the schedules that are due; returns how many.';
