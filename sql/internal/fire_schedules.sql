-- queue_internal.fire_schedules(max_tasks, max_pause, after, since)
--
--   Pushes the tasks of the schedules that are due, and returns when the next schedule is due.
--   Promise:  one task for each run, because one transaction pushes the task and sets the next run, and the next run
--             follows from the planned one and never from the clock
--   Order:    first the schedules that are on time, which became due in the last second; those that are behind get at
--             least a quarter of the time of a call. In both, queues take turns, and in each queue the schedule that is
--             due first comes first, a few tasks of each schedule at a time. So neither a queue with many schedules nor
--             a schedule that is far behind delays others. For those on time the queues are visited by name, starting
--             after "after"; "last" is the queue where it stopped before each schedule had its turn, else null. For
--             those behind the order of the queues is random
--   Stops:    after "max_tasks" pushes or 100 ms; with null after neither
--   Since:    only the schedules that became due after that time, which an index finds, no matter how many dead versions
--             of rows an old snapshot keeps in the table. "until" is the time to continue with: no schedule that became
--             due up to then is left, except those that wait for "retry_at", when all schedules are to be read, "since"
--             being null. "until" is null if it stopped before all schedules on time had their turn
--   Restore:  pushes nothing while pg_restore is connected
--   Failing:  a schedule whose push fails stays due and records the error. It is skipped for as long as it was overdue
--             when it failed, at most "max_pause", and does not delay others
--   Locks:    the rows of the schedules that are due; rows that others have locked are skipped. A push waits at most 50
--             ms for a lock, such as that of a key which an open transaction holds. After the first that waited in
--             vain, all others of the call wait 2 ms each, because many schedules may have the same key

CREATE FUNCTION queue_internal.fire_schedules(
    max_tasks bigint, max_pause interval, after text DEFAULT '', since timestamptz DEFAULT NULL,
    OUT fired bigint, OUT next_run_at timestamptz, OUT last text, OUT retry_at timestamptz, OUT until timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    started CONSTANT timestamptz := clock_timestamp();
    first   CONSTANT timestamptz := coalesce(since, '-infinity');
    moment  timestamptz;
    before  bigint := -1;
    plan    queue.schedules;
    due     record;
    begun   timestamptz;
    served  text;
    is_cut  boolean;
BEGIN
    fired := 0;
    -- A task that is pushed before the tasks, keys and sequence of the dump are restored could take an id or a key of
    -- theirs.
    IF queue_internal.is_being_restored() THEN
        next_run_at := started + interval '1 second';
        retry_at := next_run_at;
        until := started;
        RETURN;
    END IF;
    <<turns>>
    WHILE fired > before LOOP
        before := fired;
        last := NULL;
        is_cut := false;
        moment := clock_timestamp();
        FOR due IN SELECT d.* FROM queue_internal.due_schedules(moment, first, max_pause, after) AS d LOOP
            -- Not from the start: due_schedules may have taken longer.
            begun := coalesce(begun, clock_timestamp());
            IF due.is_on_time AND due.others_are_behind AND max_tasks IS NOT NULL
               AND clock_timestamp() > begun + interval '75 ms' THEN
                last := served;
                is_cut := true;
                CONTINUE;
            END IF;
            BEGIN
                -- In the subtransaction that also updates the row. A lock by one transaction and an update by another
                -- would be a multixact, which every later reader of the dead row would have to look up.
                SELECT s.* INTO plan FROM queue.schedules AS s
                WHERE s.name = due.name AND s.paused_at IS NULL AND s.next_run_at <= moment FOR UPDATE SKIP LOCKED;
                CONTINUE WHEN NOT FOUND;
                served := CASE WHEN due.is_on_time THEN plan.queue ELSE served END;
                fired := fired + queue_internal.fire_schedule(
                    plan, moment, CASE WHEN max_tasks IS NULL THEN 100 ELSE 2 END);
            EXCEPTION WHEN OTHERS THEN
                IF SQLSTATE = '55P03' THEN
                    PERFORM set_config('lock_timeout', '2ms', true);
                END IF;
                UPDATE queue.schedules AS s SET last_error = SQLERRM, last_error_at = clock_timestamp()
                WHERE s.name = (SELECT l.name FROM queue.schedules AS l WHERE l.name = due.name FOR UPDATE SKIP LOCKED);
            END;
            IF fired >= max_tasks OR max_tasks IS NOT NULL AND clock_timestamp() > begun + interval '100 ms' THEN
                last := coalesce(last, plan.queue);
                is_cut := is_cut OR due.is_on_time;
                EXIT turns;
            END IF;
        END LOOP;
        EXIT WHEN max_tasks IS NULL;
    END LOOP;
    until := CASE WHEN NOT is_cut THEN moment END;
    SELECT min(s.next_run_at) INTO next_run_at FROM queue.schedules AS s
    WHERE s.paused_at IS NULL AND s.next_run_at > moment;
    IF last IS NOT NULL THEN
        retry_at := moment;
    ELSE
        -- What is left was locked or has failed.
        SELECT min(CASE WHEN s.last_error_at <= clock_timestamp()
                        THEN s.last_error_at + queue_internal.schedule_pause(s.next_run_at, s.last_error_at, max_pause)
                        ELSE moment + interval '1 second' END)
        INTO retry_at FROM queue.schedules AS s
        WHERE s.paused_at IS NULL AND s.next_run_at > first AND s.next_run_at <= moment;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.fire_schedules IS
    'Pushes the tasks of due schedules; returns how many, when the next schedules are due, and where it stopped early.';

-- In the order in which fire_schedules runs them, without those that it skips because they have failed.
CREATE FUNCTION queue_internal.due_schedules(moment timestamptz, first timestamptz, max_pause interval, after text)
RETURNS TABLE (name text, is_on_time boolean, others_are_behind boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT d.name, d.is_on_time, NOT bool_and(d.is_on_time) OVER ()
    FROM (SELECT s.name, s.queue, s.next_run_at,
                 s.next_run_at > moment - interval '1 second' AND s.last_error_at IS NULL AS is_on_time
          FROM queue.schedules AS s
          WHERE s.paused_at IS NULL AND s.next_run_at > first AND s.next_run_at <= moment
            AND (s.last_error_at <= moment
                 AND s.last_error_at + queue_internal.schedule_pause(
                     s.next_run_at, s.last_error_at, max_pause) > moment) IS NOT TRUE) AS d
    ORDER BY NOT d.is_on_time,
             row_number() OVER (PARTITION BY d.is_on_time, d.queue ORDER BY d.next_run_at, d.name),
             d.is_on_time AND d.queue <= after, CASE WHEN d.is_on_time THEN d.queue END, random();
END
$$;
COMMENT ON FUNCTION queue_internal.due_schedules IS
    'Returns the schedules that became due in an interval, in the order in which they run.';

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
        -- A caller of queue.maintain() once a minute may be a minute late.
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
    'Pushes the tasks that are due of one schedule, up to a maximum; returns how many.';

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
        kind => options ->> 'kind',
        lease => queue_internal.checked_lease(NULL, (options ->> 'lease')::interval),
        timeout => (options ->> 'timeout')::interval,
        ttl => (options ->> 'ttl')::interval,
        weight => queue_internal.possible_weight(
            plan.queue, options ->> 'group_key', coalesce((options ->> 'weight')::numeric::integer, 1)),
        headers => coalesce(options -> 'headers', '{}')
                   || jsonb_build_object('schedule', plan.name, 'scheduled_for', run_utc));
END
$$;
COMMENT ON FUNCTION queue_internal.push_scheduled IS 'Pushes the task of one run of a schedule.';

-- The pause grows because it equals the time for which the run was overdue. So no state is needed for it.
CREATE FUNCTION queue_internal.schedule_pause(due timestamptz, failed_at timestamptz, max_pause interval)
RETURNS interval
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN failed_at - due > max_pause THEN max_pause
           ELSE greatest(least(max_pause, '1 second'), failed_at - due) END;
END
$$;
COMMENT ON FUNCTION queue_internal.schedule_pause IS
    'Returns for how long a schedule whose push failed is skipped.';

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
    'Returns the schedule of that name; raises if there is none on whose queue the caller has the operator''s right.';
