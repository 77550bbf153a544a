-- queue_internal.filter_condition(filter, states, dead, moment)
--
--   Checks the filter of a bulk procedure and returns it as a condition on queue.tasks AS t or, if "dead", on
--   queue.dead_letters AS t.
--   Options:  all                    true: every task
--             queue, worker, kind    a name
--             state                  one of "states", the states that the procedure accepts
--             older_than, newer_than an interval, by created_at
--             key, group_key         a LIKE pattern
--             error                  the same, on the last error
--             payload, headers       JSON that the task's contains
--             ids                    an array of ids
--   Rights:   only tasks of queues on which the caller has the operator's right
--   Errors:   22004, 22023, 54000 naming the option; 42501 or QX002 for the queue
--   Why an empty filter is refused: a program that forgot to fill it in would change every task.
--   Why times are written as values: every batch has to use the same time. In ISO format, because other styles write
--             abbreviations of time zones, which can be read as another zone: CST, for example.
--   Why payloads come from $3, the filter, and are not written into the text: a log may show the statement.

CREATE FUNCTION queue_internal.filter_condition(filter jsonb, states text[], dead boolean, moment timestamptz)
RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    queues CONSTANT text[] := queue_internal.queues_with_right('operator');
    parts  text[] := CASE WHEN queues IS NOT NULL THEN ARRAY[format('t.queue = ANY (%L)', queues)] ELSE '{}' END;
    option text;
    value  jsonb;
BEGIN
    IF filter IS NULL THEN
        PERFORM queue_internal.raise_null('filter');
    ELSIF jsonb_typeof(filter) <> 'object' THEN
        PERFORM queue_internal.raise_invalid(
            'filter', 'must be a JSON object', 'of type ' || jsonb_typeof(filter));
    ELSIF filter = '{}' THEN
        RAISE EXCEPTION 'argument "filter" must not be empty'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Name what is meant, such as {"queue": "mail"}; {"all": true} means every task.';
    END IF;
    FOR option, value IN SELECT o.key, o.value FROM jsonb_each(filter) AS o LOOP
        CASE option
            WHEN 'all' THEN
                IF value <> 'true' THEN
                    PERFORM queue_internal.raise_option(option, 'must be true', value, 'filter');
                END IF;
            WHEN 'queue' THEN
                parts := parts || format('t.queue = %L', queue_internal.text_option(option, value));
                IF NOT queue_internal.has_right('operator', value #>> '{}') THEN
                    PERFORM queue_internal.raise_denied('operator', left(value #>> '{}', 128));
                ELSIF NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = value #>> '{}') THEN
                    PERFORM queue_internal.raise_unknown_queue(left(value #>> '{}', 128));
                END IF;
            WHEN 'state' THEN
                IF queue_internal.text_option(option, value) <> ALL (states) THEN
                    PERFORM queue_internal.raise_option(
                        option, 'must be one of ' || array_to_string(states, ', '), value, 'filter');
                END IF;
                states := ARRAY[value #>> '{}'];
            WHEN 'older_than' THEN
                parts := parts || format('t.created_at < %L', moment - queue_internal.age_option(option, value));
            WHEN 'newer_than' THEN
                parts := parts || format('t.created_at > %L', moment - queue_internal.age_option(option, value));
            WHEN 'worker', 'kind' THEN
                parts := parts || format('t.%I = %L', option, queue_internal.text_option(option, value));
            WHEN 'key', 'group_key' THEN
                parts := parts || format('t.%I LIKE %L', option, queue_internal.pattern_option(option, value));
            WHEN 'error' THEN
                parts := parts || format('t.errors -> -1 ->> ''error'' LIKE %L',
                                         queue_internal.pattern_option(option, value));
            WHEN 'payload' THEN
                parts := parts || 't.payload @> ($3 -> ''payload'')'::text;
            WHEN 'headers' THEN
                IF jsonb_typeof(value) <> 'object' THEN
                    PERFORM queue_internal.raise_option(option, 'must be a JSON object', value, 'filter');
                END IF;
                parts := parts || 't.headers @> ($3 -> ''headers'')'::text;
            WHEN 'ids' THEN
                parts := parts || format('t.id = ANY (%L)', queue_internal.ids_option(option, value));
            ELSE
                RAISE EXCEPTION 'argument "filter" has no option "%"', left(option, 64)
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = 'The options are all, queue, state, older_than, newer_than, key, group_key, '
                                 'kind, worker, error, payload, headers, ids.';
        END CASE;
    END LOOP;
    parts := parts || CASE
        WHEN dead THEN ('failed' = ANY (states))::text
        ELSE format('CASE WHEN t.state = ''queued'' AND t.run_at > %L THEN ''scheduled'' ELSE t.state END '
                    '= ANY (%L)', moment, states)
    END;
    RETURN array_to_string(parts, ' AND ');
END
$$;
COMMENT ON FUNCTION queue_internal.filter_condition IS
    'Checks the filter of a bulk procedure and returns it as a condition.';

CREATE FUNCTION queue_internal.text_option(option text, value jsonb) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(value) <> 'string' THEN
        PERFORM queue_internal.raise_option(option, 'must be a string', value, 'filter');
    END IF;
    RETURN value #>> '{}';
END
$$;
COMMENT ON FUNCTION queue_internal.text_option IS 'The value of a filter''s option that is a string.';

CREATE FUNCTION queue_internal.pattern_option(option text, value jsonb) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF queue_internal.text_option(option, value) ~ E'(?:^|[^\\\\])(?:\\\\\\\\)*\\\\$' THEN
        PERFORM queue_internal.raise_option(option, 'must not end with a single backslash', value, 'filter');
    END IF;
    RETURN value #>> '{}';
END
$$;
COMMENT ON FUNCTION queue_internal.pattern_option IS 'The value of a filter''s option that is a pattern for LIKE.';

CREATE FUNCTION queue_internal.age_option(option text, value jsonb) RETURNS interval
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    age interval;
BEGIN
    BEGIN
        age := queue_internal.text_option(option, value)::interval;
    EXCEPTION WHEN invalid_datetime_format OR datetime_field_overflow OR interval_field_overflow THEN
        PERFORM queue_internal.raise_option(option, 'must be an interval, such as "2 hours"', value, 'filter');
    END;
    IF NOT isfinite(age) OR extract(epoch FROM age) NOT BETWEEN 0 AND extract(epoch FROM interval '1000 years') THEN
        PERFORM queue_internal.raise_option(option, 'must be from 0 to 1000 years', value, 'filter');
    END IF;
    RETURN age;
END
$$;
COMMENT ON FUNCTION queue_internal.age_option IS 'The value of a filter''s option that is an age.';

CREATE FUNCTION queue_internal.ids_option(option text, value jsonb) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(value) <> 'array' THEN
        PERFORM queue_internal.raise_option(option, 'must be an array of ids', value, 'filter');
    ELSIF jsonb_array_length(value) > 100000 THEN
        RAISE EXCEPTION 'option "%" of argument "filter" has more than 100000 elements', option
            USING ERRCODE = 'program_limit_exceeded';
    ELSIF EXISTS (
        SELECT FROM jsonb_array_elements(value) AS e
        WHERE CASE WHEN jsonb_typeof(e) <> 'number' THEN true
                   ELSE (e #>> '{}')::numeric NOT BETWEEN 1 AND 9223372036854775807
                        OR (e #>> '{}')::numeric <> trunc((e #>> '{}')::numeric) END)
    THEN
        PERFORM queue_internal.raise_option(option, 'must be an array of ids', value, 'filter');
    END IF;
    RETURN ARRAY(SELECT (e #>> '{}')::numeric::bigint FROM jsonb_array_elements(value) AS e);
END
$$;
COMMENT ON FUNCTION queue_internal.ids_option IS 'The value of a filter''s option that is a list of ids.';
