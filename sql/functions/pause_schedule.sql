-- queue.pause_schedule(name)
--
--   From now on the schedule does not run. Pausing a paused schedule changes nothing.
--   API:      public; an operator's
--   Errors:   42704 no such schedule; 22004, 22023, 54000 for the argument
--   Touches:  queue.schedules (updates)

CREATE FUNCTION queue.pause_schedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_schedule(name);
    UPDATE queue.schedules AS s SET paused_at = clock_timestamp(), next_run_at = NULL
    WHERE s.name = pause_schedule.name AND s.paused_at IS NULL
      AND queue_internal.has_right('operator', s.queue);
END
$$;
COMMENT ON FUNCTION queue.pause_schedule(text) IS 'Stops the runs of a schedule.';
