-- Checks of the arguments of queue.schedule().

CREATE FUNCTION queue_internal.check_cron(cron text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reason text;
BEGIN
    IF cron IS NULL THEN
        PERFORM queue_internal.raise_null('cron');
    ELSIF octet_length(cron) > 256 THEN
        PERFORM queue_internal.raise_too_large('cron', '256 bytes', octet_length(cron) || ' bytes');
    END IF;
    reason := queue_internal.cron_error(cron);
    IF reason IS NOT NULL THEN
        RAISE EXCEPTION 'argument "cron" is not a cron expression'
            USING ERRCODE = 'invalid_parameter_value', DETAIL = reason,
                  HINT = 'Five fields, minute to day of the week, or six with seconds first: ''30 2 * * MON-FRI''.';
    ELSIF queue_internal.cron_next(cron, '2000-01-01') IS NULL THEN
        PERFORM queue_internal.raise_invalid('cron', 'names no date that exists', quote_literal(cron));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_cron IS
    'Checks that a cron expression is valid and matches at least one date.';

-- Accepts only names that AT TIME ZONE reads as time zones. It also accepts "EST5EDT,M3.2.0,M11.1.0", "+03" and
-- "Nowhere+3", and reads CET, MET and EET as abbreviations without summer time.
CREATE FUNCTION queue_internal.check_timezone(timezone text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF timezone IS NULL THEN
        PERFORM queue_internal.raise_null('timezone');
    ELSIF upper(timezone) IN ('UTC', 'GMT') THEN
        RETURN;
    -- A name with a slash and no digit can only be the name of a file. The view would read all files.
    ELSIF timezone ~ '^[A-Za-z_]+(/[A-Za-z_-]+)+$' AND timezone !~* '^right/' THEN
        PERFORM now() AT TIME ZONE timezone;
        RETURN;
    ELSIF EXISTS (SELECT FROM pg_timezone_names AS n WHERE lower(n.name) = lower(timezone))
          AND NOT EXISTS (SELECT FROM pg_timezone_abbrevs AS a WHERE a.abbrev = upper(timezone)) THEN
        RETURN;
    END IF;
    RAISE invalid_parameter_value;
EXCEPTION WHEN invalid_parameter_value THEN
    RAISE EXCEPTION 'argument "timezone" must be the name of a time zone'
        USING ERRCODE = 'invalid_parameter_value', DETAIL = format('The value is %L.', left(timezone, 64)),
              HINT = 'Use a name from pg_timezone_names such as ''Europe/Berlin'', not an abbreviation.';
END
$$;
COMMENT ON FUNCTION queue_internal.check_timezone IS 'Checks the name of a time zone.';

CREATE FUNCTION queue_internal.check_schedule_options(queue text, options jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    option text;
    value  jsonb;
BEGIN
    PERFORM queue_internal.check_options(options);
    FOR option, value IN SELECT o.key, o.value FROM jsonb_each(options) AS o LOOP
        CASE option
            WHEN 'missed_runs' THEN
                PERFORM queue_internal.choice_option(option, value, '{skip, once, all}');
            WHEN 'priority' THEN
                PERFORM queue_internal.number_option(option, value, -2147483648, 2147483647, true);
            WHEN 'max_attempts' THEN
                PERFORM queue_internal.number_option(option, value, 1, 10000, true);
            WHEN 'weight' THEN
                PERFORM queue_internal.number_option(option, value, 1, 1000000, true);
            WHEN 'delay' THEN
                PERFORM queue_internal.interval_option(option, value, true);
            WHEN 'lease', 'timeout', 'ttl' THEN
                PERFORM queue_internal.interval_option(option, value, false);
            WHEN 'key', 'on_duplicate', 'group_key', 'kind' THEN
                IF jsonb_typeof(value) NOT IN ('string', 'null') THEN
                    PERFORM queue_internal.raise_option(option, 'must be a string', value);
                END IF;
            WHEN 'headers' THEN
                IF jsonb_typeof(value) NOT IN ('object', 'null') THEN
                    PERFORM queue_internal.raise_option(option, 'must be a JSON object', value);
                END IF;
            ELSE
                RAISE EXCEPTION 'argument "options" has no option "%"', left(option, 64)
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = 'The options are missed_runs, priority, delay, key, on_duplicate, group_key, '
                                 'max_attempts, headers, kind, lease, timeout, ttl, weight.';
        END CASE;
    END LOOP;
    -- Refuses now what a push would refuse.
    PERFORM queue_internal.check_task_options(
        queue => queue, priority => 0, run_at => NULL, delay => NULL, key => options ->> 'key',
        on_duplicate => coalesce(options ->> 'on_duplicate', 'skip'), group_key => options ->> 'group_key',
        max_attempts => NULL, headers => NULL, after => NULL, backoff => NULL, key_ttl => NULL,
        on_predecessor_failure => NULL, kind => options ->> 'kind', lease => (options ->> 'lease')::interval,
        timeout => (options ->> 'timeout')::interval, ttl => (options ->> 'ttl')::interval,
        weight => coalesce((options ->> 'weight')::numeric::integer, 1));
END
$$;
COMMENT ON FUNCTION queue_internal.check_schedule_options IS 'Checks the options of a schedule.';

-- Rows that are not written by queue.schedule() must be valid too, because the worker reads all schedules.
ALTER TABLE queue.schedules ADD CONSTRAINT schedules_cron_check CHECK (queue_internal.cron_error(cron) IS NULL);
