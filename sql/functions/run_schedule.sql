-- queue.run_schedule
--
--   Touches:  queue.tasks (inserts)

CREATE FUNCTION queue.run_schedule(name text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN queue_internal.push_scheduled(queue_internal.open_schedule(name), clock_timestamp());
END
$$;
COMMENT ON FUNCTION queue.run_schedule IS
'Pushes the task of a schedule now, also while the schedule is paused, and returns the task''s id. The next run stays
the same. Needs the operator''s right on its queue.

- name: name of the schedule.

Errors: 42704: the schedule does not exist, or the caller has no right on its queue. 22004, 22023 or 54000: the
argument is null, invalid or too large. And those of queue.push.';
