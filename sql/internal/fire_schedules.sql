-- queue_internal.fire_schedules(max_tasks, patience)
--
--   Pushes the tasks of the schedules that are due, and tells when the next one is.
--   Promise:  one task for each time that is due, because the push and the step to the next time are
--             one transaction, and the next time follows from the planned one and never from the clock
--   Stops:    once "max_tasks" were pushed; null for no limit
--   Failing:  a schedule whose push fails keeps its time and notes the error. It is passed over until
--             "patience" is over and is in no other's way.
--   Locks:    the rows of the schedules that are due; those that others have locked are passed over

CREATE FUNCTION queue_internal.fire_schedules(
    max_tasks bigint, patience interval, OUT fired bigint, OUT next_run_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    plan   queue.schedules;
BEGIN
    fired := 0;
    FOR plan IN
        SELECT s.* FROM queue.schedules AS s
        WHERE s.paused_at IS NULL AND s.next_run_at <= moment
          AND (s.last_error_at BETWEEN moment - patience AND moment) IS NOT TRUE
        ORDER BY s.next_run_at
        FOR UPDATE SKIP LOCKED
    LOOP
        BEGIN
            fired := fired + queue_internal.fire_schedule(plan, moment);
        EXCEPTION WHEN OTHERS THEN
            UPDATE queue.schedules AS s SET last_error = SQLERRM, last_error_at = clock_timestamp()
            WHERE s.name = plan.name;
        END;
        EXIT WHEN fired >= max_tasks;
    END LOOP;
    next_run_at := queue_internal.next_schedule(patience);
END
$$;
COMMENT ON FUNCTION queue_internal.fire_schedules(bigint, interval) IS
    'Pushes the tasks of the schedules that are due; returns how many, and when the next one is.';

CREATE FUNCTION queue_internal.fire_schedule(plan queue.schedules, moment timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    due      timestamptz := plan.next_run_at;
    pushed   bigint := 0;
    last_run timestamptz := plan.last_run_at;
BEGIN
    IF plan.missed_runs <> 'all' THEN
        due := queue_internal.latest_run(plan.cron, plan.timezone, due, moment);
    END IF;
    WHILE due <= moment AND pushed < 1000 LOOP
        -- Who calls queue.maintain() every minute may be late by one.
        IF plan.missed_runs <> 'skip' OR due >= moment - interval '2 minutes' THEN
            PERFORM queue_internal.push_scheduled(plan, due);
            pushed := pushed + 1;
            last_run := due;
        END IF;
        due := queue_internal.next_run(plan.cron, plan.timezone, due);
    END LOOP;
    UPDATE queue.schedules AS s
    SET next_run_at = due, last_run_at = last_run, last_error = NULL, last_error_at = NULL
    WHERE s.name = plan.name;
    RETURN pushed;
END
$$;
COMMENT ON FUNCTION queue_internal.fire_schedule(queue.schedules, timestamptz) IS
    'Pushes the tasks that one schedule has due; returns how many.';

CREATE FUNCTION queue_internal.push_scheduled(plan queue.schedules, run timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    options CONSTANT jsonb := plan.options;
    run_utc CONSTANT text := to_char(run AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
BEGIN
    RETURN queue.push(
        queue => plan.queue,
        payload => plan.payload,
        priority => coalesce((options -> 'priority')::integer, 0),
        delay => (options ->> 'delay')::interval,
        key => options ->> 'key',
        on_duplicate => coalesce(options ->> 'on_duplicate', 'skip'),
        group_key => options ->> 'group_key',
        max_attempts => (options -> 'max_attempts')::integer,
        headers => coalesce(options -> 'headers', '{}')
                   || jsonb_build_object('schedule', plan.name, 'scheduled_for', run_utc));
END
$$;
COMMENT ON FUNCTION queue_internal.push_scheduled(queue.schedules, timestamptz) IS
    'Pushes the task of one run of a schedule.';

CREATE FUNCTION queue_internal.next_schedule(patience interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN (
        SELECT min(CASE WHEN s.last_error_at BETWEEN moment - patience AND moment
                        THEN s.last_error_at + patience ELSE s.next_run_at END)
        FROM queue.schedules AS s WHERE s.paused_at IS NULL);
END
$$;
COMMENT ON FUNCTION queue_internal.next_schedule(interval) IS
    'When the next schedule is due. One that failed is due when the given time is over.';

CREATE FUNCTION queue_internal.open_schedule(name text) RETURNS queue.schedules
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    plan queue.schedules;
BEGIN
    SELECT s.* INTO plan FROM queue.schedules AS s WHERE s.name = open_schedule.name;
    IF plan.name IS NULL OR NOT queue_internal.has_right('operator', plan.queue) THEN
        PERFORM queue_internal.check_name('name', name);
        PERFORM queue_internal.raise_unknown_schedule(name);
    END IF;
    RETURN plan;
END
$$;
COMMENT ON FUNCTION queue_internal.open_schedule(text) IS
    'The schedule of that name; raises if there is none for whose queue the caller has the operator''s right.';
