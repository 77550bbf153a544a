-- queue.unschedule
--
--   Touches:  queue.schedules (deletes)

CREATE FUNCTION queue.unschedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_schedule(name);
    DELETE FROM queue.schedules AS s WHERE s.name = unschedule.name AND queue_internal.has_right('operator', s.queue);
END
$$;
COMMENT ON FUNCTION queue.unschedule IS
'Deletes a schedule. Tasks that it has pushed stay. Needs the operator''s right on its queue.

- name: name of the schedule.

Errors: 42704: the schedule does not exist, or the caller has no right on its queue. 22004, 22023 or 54000: the
argument is null, invalid or too large.';
