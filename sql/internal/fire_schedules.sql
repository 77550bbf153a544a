-- queue_internal.fire_schedules(max_tasks, patience, after)
--
--   Pushes the tasks of the schedules that are due, and tells when the next one is.
--   Promise:  one task for each time that is due, because the push and the step to the next time are
--             one transaction, and the next time follows from the planned one and never from the clock
--   Order:    first the schedules that are on time, which became due in the last second; those that are behind have at least
--             a quarter of the time that a call takes. Among both in turn by queue, and in each queue by the time that is due, a
--             piece of each schedule at a time, so that neither a queue with many schedules nor a schedule far behind
--             delays another one; the queues by their names, from behind "after" on. "last" is the queue with which it
--             stopped before each schedule had its turn, else null: the others are the first of the next call
--   Stops:    once "max_tasks" were pushed, or after 100 ms; null for neither
--   Restore:  while pg_restore is connected nothing is pushed
--   Failing:  a schedule whose push fails keeps its time and notes the error. It is passed over for as long as it was
--             overdue when it failed, "patience" at most, and is in no other's way.
--   Locks:    the rows of the schedules that are due; those that others have locked are passed over. What a push has to
--             wait for, such as a key that an open transaction holds, it waits for 50 ms; and once that was in vain, all
--             others of the call for 2 ms each: one key may be that of many schedules.

CREATE FUNCTION queue_internal.fire_schedules(
    max_tasks bigint, patience interval, after text DEFAULT '',
    OUT fired bigint, OUT next_run_at timestamptz, OUT last text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    started CONSTANT timestamptz := clock_timestamp();
    moment  timestamptz;
    before  bigint := -1;
    plan    queue.schedules;
    due     record;
    begun   timestamptz;
    served  text;
BEGIN
    fired := 0;
    -- A task that is pushed before the tasks, the keys and the sequence of the dump are there may take what is theirs.
    IF queue_internal.is_being_restored() THEN
        next_run_at := started + interval '1 second';
        RETURN;
    END IF;
    <<turns>>
    WHILE fired > before LOOP
        before := fired;
        last := NULL;
        moment := clock_timestamp();
        FOR due IN
            SELECT d.name, d.queue, d.is_on_time, NOT bool_and(d.is_on_time) OVER () AS others_are_behind,
                   row_number() OVER (PARTITION BY d.is_on_time, d.queue ORDER BY d.next_run_at, d.name) AS turn
            FROM (SELECT s.name, s.queue, s.next_run_at,
                         s.next_run_at > moment - interval '1 second' AND s.last_error_at IS NULL AS is_on_time
                  FROM queue.schedules AS s
                  WHERE s.paused_at IS NULL AND s.next_run_at <= moment
                    AND (s.last_error_at <= moment
                         AND s.last_error_at + queue_internal.schedule_pause(s.next_run_at, s.last_error_at, patience) > moment)
                        IS NOT TRUE) AS d
            ORDER BY NOT d.is_on_time, turn, d.queue <= after, d.queue
        LOOP
            -- Not from the start: to find and sort them may have taken longer.
            begun := coalesce(begun, clock_timestamp());
            IF due.is_on_time AND due.others_are_behind AND max_tasks IS NOT NULL
               AND clock_timestamp() > begun + interval '75 ms' THEN
                last := served;
                CONTINUE;
            END IF;
            SELECT s.* INTO plan FROM queue.schedules AS s
            WHERE s.name = due.name AND s.paused_at IS NULL AND s.next_run_at <= moment FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            served := plan.queue;
            BEGIN
                fired := fired + queue_internal.fire_schedule(plan, moment, CASE WHEN max_tasks IS NULL THEN 100 ELSE 2 END);
            EXCEPTION WHEN OTHERS THEN
                IF SQLSTATE = '55P03' THEN
                    PERFORM set_config('lock_timeout', '2ms', true);
                END IF;
                UPDATE queue.schedules AS s SET last_error = SQLERRM, last_error_at = clock_timestamp()
                WHERE s.name = plan.name;
            END;
            IF fired >= max_tasks OR max_tasks IS NOT NULL AND clock_timestamp() > begun + interval '100 ms' THEN
                last := coalesce(last, plan.queue);
                EXIT turns;
            END IF;
        END LOOP;
        EXIT WHEN max_tasks IS NULL;
    END LOOP;
    next_run_at := queue_internal.next_schedule(patience);
END
$$;
COMMENT ON FUNCTION queue_internal.fire_schedules IS
    'Pushes the tasks of the schedules that are due; returns how many, when the next one is, and where it stopped early.';

CREATE FUNCTION queue_internal.fire_schedule(plan queue.schedules, moment timestamptz, most integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    due      timestamptz := plan.next_run_at;
    pushed   bigint := 0;
    last_run timestamptz := plan.last_run_at;
BEGIN
    IF plan.missed_runs <> 'all' THEN
        due := queue_internal.latest_run(plan.cron, plan.timezone, due, moment);
    END IF;
    WHILE due <= moment AND pushed < most LOOP
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
COMMENT ON FUNCTION queue_internal.fire_schedule IS
    'Pushes the tasks that one schedule has due, so many at most; returns how many.';

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
COMMENT ON FUNCTION queue_internal.push_scheduled IS 'Pushes the task of one run of a schedule.';

-- As long again as it was overdue when it failed: so the pause grows. Nothing has to be remembered for it.
CREATE FUNCTION queue_internal.schedule_pause(due timestamptz, failed_at timestamptz, patience interval) RETURNS interval
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN failed_at - due > patience THEN patience ELSE greatest(least(patience, '1 second'), failed_at - due) END;
END
$$;
COMMENT ON FUNCTION queue_internal.schedule_pause IS 'For how long a schedule whose push failed is left alone.';

CREATE FUNCTION queue_internal.next_schedule(patience interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN (
        SELECT min(CASE WHEN s.last_error_at <= moment
                        THEN greatest(s.next_run_at, s.last_error_at + queue_internal.schedule_pause(s.next_run_at, s.last_error_at, patience))
                        ELSE s.next_run_at END)
        FROM queue.schedules AS s WHERE s.paused_at IS NULL);
END
$$;
COMMENT ON FUNCTION queue_internal.next_schedule IS
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
COMMENT ON FUNCTION queue_internal.open_schedule IS
    'The schedule of that name; raises if there is none for whose queue the caller has the operator''s right.';
