-- queue_internal.apply_options(name, options)
--
--   Checks the options of queue.create and queue.configure and writes them to the queue's row.
--   An option that is not named keeps its value; null brings back the default.
--   Errors:   22023 and 54000 naming the option; 0A000 for the options of features still to come

CREATE FUNCTION queue_internal.apply_options(name text, options jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    valid   CONSTANT text := 'lease, max_attempts, backoff, keep_history';
    later   CONSTANT text[] := '{max_running, max_running_per_group, rate_limit, rate_period}';
    changed queue.queues;
    fresh   queue.queues;
    option  text;
    value   jsonb;
BEGIN
    SELECT q.* INTO changed FROM queue.queues AS q WHERE q.name = apply_options.name FOR UPDATE;
    fresh := queue_internal.fresh_queue();
    FOR option, value IN SELECT o.key, o.value FROM jsonb_each(options) AS o LOOP
        IF option = ANY (later) THEN
            RAISE EXCEPTION 'option "%" of argument "options" is not supported in this version', option
                USING ERRCODE = 'feature_not_supported', HINT = 'Leave it out.';
        END IF;
        CASE option
            WHEN 'lease' THEN
                changed.lease := coalesce(queue_internal.interval_option(option, value, false), fresh.lease);
            WHEN 'max_attempts' THEN
                changed.max_attempts := coalesce(
                    queue_internal.number_option(option, value, 1, 10000, true), fresh.max_attempts);
            WHEN 'keep_history' THEN
                IF jsonb_typeof(value) NOT IN ('boolean', 'null') THEN
                    PERFORM queue_internal.raise_option(option, 'must be true or false', value);
                END IF;
                changed.keep_history := coalesce((value #>> '{}')::boolean, fresh.keep_history);
            WHEN 'backoff' THEN
                changed := queue_internal.apply_backoff(changed, fresh, value);
            ELSE
                RAISE EXCEPTION 'argument "options" has no option "%"', left(option, 64)
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = format('The options are %s.', valid);
        END CASE;
    END LOOP;
    UPDATE queue.queues AS q
    SET lease = changed.lease, max_attempts = changed.max_attempts, keep_history = changed.keep_history,
        backoff_kind = changed.backoff_kind, backoff_base = changed.backoff_base,
        backoff_max = changed.backoff_max, backoff_jitter = changed.backoff_jitter
    WHERE q.name = apply_options.name;
END
$$;
COMMENT ON FUNCTION queue_internal.apply_options(text, jsonb) IS
    'Checks the options of a queue and writes them.';

CREATE FUNCTION queue_internal.apply_backoff(changed queue.queues, fresh queue.queues, value jsonb)
RETURNS queue.queues
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part text;
    item jsonb;
BEGIN
    IF jsonb_typeof(value) NOT IN ('object', 'null') THEN
        PERFORM queue_internal.raise_option('backoff', 'must be a JSON object', value);
    ELSIF jsonb_typeof(value) = 'null' THEN
        changed.backoff_kind := fresh.backoff_kind;
        changed.backoff_base := fresh.backoff_base;
        changed.backoff_max := fresh.backoff_max;
        changed.backoff_jitter := fresh.backoff_jitter;
        RETURN changed;
    END IF;
    FOR part, item IN SELECT o.key, o.value FROM jsonb_each(value) AS o LOOP
        CASE part
            WHEN 'kind' THEN
                IF item NOT IN ('"fixed"', '"linear"', '"exponential"', 'null') THEN
                    PERFORM queue_internal.raise_option(
                        'backoff.kind', 'must be one of fixed, linear, exponential', item);
                END IF;
                changed.backoff_kind := coalesce(item #>> '{}', fresh.backoff_kind);
            WHEN 'base' THEN
                changed.backoff_base := coalesce(
                    queue_internal.interval_option('backoff.base', item, true), fresh.backoff_base);
            WHEN 'max' THEN
                changed.backoff_max := coalesce(
                    queue_internal.interval_option('backoff.max', item, true), fresh.backoff_max);
            WHEN 'jitter' THEN
                changed.backoff_jitter := coalesce(
                    queue_internal.number_option('backoff.jitter', item, 0, 1, false), fresh.backoff_jitter);
            ELSE
                RAISE EXCEPTION 'argument "options" has no option "backoff.%"', left(part, 64)
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = 'The options of backoff are kind, base, max, jitter.';
        END CASE;
    END LOOP;
    RETURN changed;
END
$$;
COMMENT ON FUNCTION queue_internal.apply_backoff(queue.queues, queue.queues, jsonb) IS
    'Checks the option "backoff" and puts it into the row of a queue.';

-- The defaults stand once, in the table.
CREATE FUNCTION queue_internal.fresh_queue() RETURNS queue.queues
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fresh  queue.queues;
    values text;
BEGIN
    SELECT string_agg(coalesce(pg_get_expr(d.adbin, d.adrelid), 'NULL'), ', ' ORDER BY a.attnum) INTO values
    FROM pg_attribute AS a
    LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = 'queue.queues'::regclass AND a.attnum > 0 AND NOT a.attisdropped;
    EXECUTE 'SELECT ' || values INTO fresh;
    RETURN fresh;
END
$$;
COMMENT ON FUNCTION queue_internal.fresh_queue() IS 'The row of a queue with nothing but defaults.';

CREATE FUNCTION queue_internal.interval_option(option text, value jsonb, zero_allowed boolean)
RETURNS interval
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parsed interval;
BEGIN
    IF jsonb_typeof(value) NOT IN ('string', 'null') THEN
        PERFORM queue_internal.raise_option(option, 'must be an interval, such as "30 seconds"', value);
    END IF;
    BEGIN
        parsed := (value #>> '{}')::interval;
    EXCEPTION WHEN data_exception THEN
        PERFORM queue_internal.raise_option(option, 'must be an interval, such as "30 seconds"', value);
    END;
    IF NOT isfinite(parsed) THEN
        PERFORM queue_internal.raise_option(option, 'must be finite', value);
    ELSIF parsed < '0' OR parsed = '0' AND NOT zero_allowed THEN
        PERFORM queue_internal.raise_option(
            option, CASE WHEN zero_allowed THEN 'must not be negative' ELSE 'must be greater than zero' END,
            value);
    ELSIF parsed > '1 year' THEN
        RAISE EXCEPTION 'option "%" of argument "options" is longer than 1 year', option
            USING ERRCODE = 'program_limit_exceeded', DETAIL = format('The value is %s.', value);
    END IF;
    RETURN make_interval(secs => extract(epoch FROM parsed)::float8);
END
$$;
COMMENT ON FUNCTION queue_internal.interval_option(text, jsonb, boolean) IS
    'The value of an option that is an interval; null for null.';

CREATE FUNCTION queue_internal.number_option(
    option text, value jsonb, lowest numeric, highest numeric, whole boolean)
RETURNS numeric
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind   text := CASE WHEN whole THEN 'a whole number' ELSE 'a number' END;
    number numeric;
BEGIN
    IF jsonb_typeof(value) NOT IN ('number', 'null') THEN
        PERFORM queue_internal.raise_option(option, format('must be %s', kind), value);
    END IF;
    number := (value #>> '{}')::numeric;
    IF number NOT BETWEEN lowest AND highest OR whole AND number <> trunc(number) THEN
        PERFORM queue_internal.raise_option(
            option, format('must be %s from %s to %s', kind, lowest, highest), value);
    END IF;
    RETURN number;
END
$$;
COMMENT ON FUNCTION queue_internal.number_option(text, jsonb, numeric, numeric, boolean) IS
    'The value of an option that is a number; null for null.';

CREATE FUNCTION queue_internal.raise_option(
    option text, rule text, value jsonb, argument text DEFAULT 'options')
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'option "%" of argument "%" %', option, argument, rule
        USING ERRCODE = 'invalid_parameter_value',
              DETAIL = format('The value is %s.', left(value::text, 64));
END
$$;
COMMENT ON FUNCTION queue_internal.raise_option(text, text, jsonb, text) IS 'Raises 22023 for an option.';
