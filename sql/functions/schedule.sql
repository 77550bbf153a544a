-- queue.schedule
--
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
    kept      jsonb;
    first_run timestamptz;
    next_run  timestamptz;
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
    IF octet_length(payload::text) + octet_length(options::text) > 1048576 THEN
        PERFORM queue_internal.raise_too_large('payload', '1 MB, options included',
            octet_length(payload::text) + octet_length(options::text) || ' bytes');
    END IF;
    IF (SELECT count(*) FROM queue.schedules AS s WHERE s.queue = schedule.queue AND s.name <> schedule.name) >= 10000 THEN
        RAISE EXCEPTION 'queue "%" has too many schedules', queue
            USING ERRCODE = 'program_limit_exceeded',
                  DETAIL = 'A queue can have 10000.',
                  HINT = 'Use one schedule whose task does the work of several, or another queue.';
    END IF;
    SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}') INTO kept
    FROM jsonb_each(options) AS o WHERE o.value <> 'null' AND o.key <> 'missed_runs';
    first_run := queue_internal.next_run(schedule.cron, schedule.timezone, clock_timestamp());
    LOOP
        -- The right is asked for before the row is locked: otherwise a refused call would lock the schedule of another
        -- queue until its transaction ends.
        UPDATE queue.schedules AS s
        SET cron = schedule.cron, timezone = schedule.timezone, queue = schedule.queue, payload = schedule.payload,
            options = kept, missed_runs = coalesce(schedule.options ->> 'missed_runs', 'once'),
            next_run_at = CASE WHEN s.paused_at IS NOT NULL THEN NULL
                               WHEN (s.cron, s.timezone) = (schedule.cron, schedule.timezone)
                               THEN coalesce(s.next_run_at, first_run)
                               ELSE first_run END,
            last_error = NULL, last_error_at = NULL
        WHERE s.name = schedule.name AND queue_internal.has_right('operator', s.queue)
        RETURNING s.next_run_at INTO next_run;
        EXIT WHEN FOUND;
        INSERT INTO queue.schedules AS s (name, cron, timezone, queue, payload, options, missed_runs, next_run_at)
        VALUES (schedule.name, schedule.cron, schedule.timezone, schedule.queue, schedule.payload, kept,
                coalesce(schedule.options ->> 'missed_runs', 'once'), first_run)
        ON CONFLICT ON CONSTRAINT schedules_pkey DO NOTHING
        RETURNING s.next_run_at INTO next_run;
        EXIT WHEN FOUND;
        IF EXISTS (SELECT FROM queue.schedules AS s
                   WHERE s.name = schedule.name AND NOT queue_internal.has_right('operator', s.queue)) THEN
            PERFORM queue_internal.raise_foreign_schedule(name);
        END IF;
    END LOOP;
    -- A kept run may be due; the worker only wakes for a time in the future.
    PERFORM queue_internal.announce_task(queue, greatest(next_run, clock_timestamp() + interval '1 ms'))
    WHERE next_run IS NOT NULL;
    RETURN next_run;
END
$$;
COMMENT ON FUNCTION queue.schedule IS
'Creates a schedule, which pushes a task at the times of a cron expression, or replaces the schedule of that name.
Returns its next run, or null while it is paused. A schedule that is replaced stays paused if it was, and keeps its
next run if cron and timezone are the same. Needs the operator''s right on the queue.

- name: name of the schedule, 1 to 128 bytes without control characters; unique in the database.
- cron: five fields (minute, hour, day, month, day of the week), six with seconds first, or a macro such as @daily.
- queue: name of the queue.
- payload: the payload of each task, any JSON value; with the options at most 1 MB of text. Default {}.
- timezone: a name from pg_timezone_names, whose local time the expression uses. Default UTC.
- options: a JSON object. Default {}. missed_runs says what happens with runs that nothing ran in time: skip (none,
  except the latest one if it is at most two minutes late), once (one task, for the latest; the default), all (one task for each). The others are arguments of queue.push
  for each task: priority, delay, key, on_duplicate, group_key, max_attempts, headers, kind, lease,
  timeout, ttl, weight. If a limit of the queue is later lowered below weight, the tasks use up the whole limit.

Errors: 42501: no right on the queue, or the name belongs to a schedule of another queue without it. QX002: the queue
does not exist. 54000: the queue has 10000 schedules. 22004, 22023 or 54000: an argument or an option is null, invalid
or too large.';
