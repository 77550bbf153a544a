-- queue.run_schedule(name)
--
--   Pushes the task of a schedule at once and returns its id. The plan stays as it is. It works
--   while the schedule is paused, too.
--   API:      public; an operator's
--   Errors:   42704 no such schedule; 22004, 22023, 54000 for the argument; what queue.push raises
--   Touches:  queue.tasks (inserts)

CREATE FUNCTION queue.run_schedule(name text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN queue_internal.push_scheduled(queue_internal.open_schedule(name), clock_timestamp());
END
$$;
COMMENT ON FUNCTION queue.run_schedule(text) IS
    'Pushes the task of a schedule at once, without changing its plan; returns the task''s id.';
