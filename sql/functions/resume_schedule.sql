-- queue.resume_schedule
--
--   Touches:  queue.schedules (updates); announces the next run to the worker

CREATE FUNCTION queue.resume_schedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    plan queue.schedules := queue_internal.open_schedule(name);
BEGIN
    UPDATE queue.schedules AS s
    SET paused_at = NULL, next_run_at = queue_internal.next_run(s.cron, s.timezone, clock_timestamp())
    WHERE s.name = resume_schedule.name AND s.paused_at IS NOT NULL
      AND queue_internal.has_right('operator', s.queue)
    RETURNING s.* INTO plan;
    IF FOUND THEN
        PERFORM queue_internal.announce_task(plan.queue, plan.next_run_at);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.resume_schedule IS
'Ends the pause of a schedule. Runs that fell into the pause are not made up, whatever missed_runs says. Resuming a
schedule that is not paused changes nothing. Needs the operator''s right on its queue.

- name: name of the schedule.

Errors: 42704: the schedule does not exist, or the caller has no right on its queue. 22004, 22023 or 54000: the
argument is null, invalid or too large.';
