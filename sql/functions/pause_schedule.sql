-- queue.pause_schedule
--
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
COMMENT ON FUNCTION queue.pause_schedule IS
'Pauses a schedule: it does not run until queue.resume_schedule. Pausing a paused schedule changes nothing. Needs the
operator''s right on its queue.

- name: name of the schedule.

Errors: 42704: the schedule does not exist, or the caller has no right on its queue. 22004, 22023 or 54000: the
argument is null, invalid or too large.';
