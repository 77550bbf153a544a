-- queue.schedule(name, cron, queue, payload, timezone, options)
--
--   Creates a schedule, which pushes a task again and again, or replaces the one of that name. One
--   that is replaced stays paused if it was, and keeps its next run if "cron" and "timezone" stay.
--   API:      public; an operator's
--   Returns:  the next run; null while the schedule is paused
--   Options:  missed_runs   what becomes of runs that nobody ran in time:
--               skip        nothing
--               once        one task for the latest of them               the default
--               all         one task for each
--             priority, delay, key, on_duplicate, group_key, max_attempts, headers
--                           as in queue.push, for each task
--   Bounds:   10000 schedules of a queue: the worker reads those of all queues
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments and options, and for one schedule too many
--   Touches:  queue.schedules (inserts, updates); announces the next run to the worker

CREATE FUNCTION queue.schedule(
    name     text,
    cron     text,
    queue    text,
    payload  jsonb DEFAULT '{}',
    timezone text  DEFAULT 'UTC',
    options  jsonb DEFAULT '{}')
RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept     jsonb;
    next_run timestamptz;
BEGIN
    PERFORM queue_internal.check_name('name', name);
    IF name ~ '[[:cntrl:]]' THEN
        PERFORM queue_internal.raise_invalid('name', 'must not contain control characters');
    END IF;
    PERFORM queue_internal.check_cron(cron);
    PERFORM queue_internal.open_queue(queue, 'operator');
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    PERFORM queue_internal.check_timezone(timezone);
    PERFORM queue_internal.check_schedule_options(queue, options);
    IF (SELECT count(*) FROM queue.schedules AS s WHERE s.queue = schedule.queue AND s.name <> schedule.name) >= 10000 THEN
        RAISE EXCEPTION 'queue "%" has too many schedules', queue
            USING ERRCODE = 'program_limit_exceeded',
                  DETAIL = 'A queue can have 10000.',
                  HINT = 'Use one schedule whose task does the work of several, or another queue.';
    END IF;
    SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}') INTO kept
    FROM jsonb_each(options) AS o WHERE o.value <> 'null' AND o.key <> 'missed_runs';
    INSERT INTO queue.schedules AS s (name, cron, timezone, queue, payload, options, missed_runs, next_run_at)
    VALUES (schedule.name, schedule.cron, schedule.timezone, schedule.queue, schedule.payload, kept,
            coalesce(schedule.options ->> 'missed_runs', 'once'),
            queue_internal.next_run(schedule.cron, schedule.timezone, clock_timestamp()))
    ON CONFLICT ON CONSTRAINT schedules_pkey DO UPDATE
    SET cron = excluded.cron, timezone = excluded.timezone, queue = excluded.queue,
        payload = excluded.payload, options = excluded.options, missed_runs = excluded.missed_runs,
        next_run_at = CASE WHEN s.paused_at IS NOT NULL THEN NULL
                           WHEN (s.cron, s.timezone) = (excluded.cron, excluded.timezone)
                           THEN coalesce(s.next_run_at, excluded.next_run_at)
                           ELSE excluded.next_run_at END,
        last_error = NULL, last_error_at = NULL
    WHERE queue_internal.has_right('operator', s.queue)
    RETURNING s.next_run_at INTO next_run;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_foreign_schedule(name);
    END IF;
    -- A run that is kept may be due; only what lies ahead wakes the worker for schedules.
    PERFORM queue_internal.announce_task(queue, greatest(next_run, clock_timestamp() + interval '1 ms'))
    WHERE next_run IS NOT NULL;
    RETURN next_run;
END
$$;
COMMENT ON FUNCTION queue.schedule(text, text, text, jsonb, text, jsonb) IS
    'Creates or replaces a schedule, which pushes a task again and again; returns its next run.';
