-- queue.unschedule(name)
--
--   Deletes a schedule. Tasks that it pushed stay.
--   API:      public; an operator's
--   Errors:   42704 no such schedule; 22004, 22023, 54000 for the argument
--   Touches:  queue.schedules (deletes)

CREATE FUNCTION queue.unschedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_schedule(name);
    DELETE FROM queue.schedules AS s WHERE s.name = unschedule.name AND queue_internal.has_right('operator', s.queue);
END
$$;
COMMENT ON FUNCTION queue.unschedule(text) IS 'Deletes a schedule.';
