-- The checks of arguments that several functions share. Each names the argument in its error.

CREATE FUNCTION queue_internal.check_name(argument text, value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value IS NULL THEN
        PERFORM queue_internal.raise_null(argument);
    ELSIF value = '' THEN
        PERFORM queue_internal.raise_invalid(argument, 'must not be empty');
    ELSIF octet_length(value) > 128 THEN
        PERFORM queue_internal.raise_too_large(argument, '128 bytes', octet_length(value) || ' bytes');
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_name IS
    'Checks the name of a queue, a schedule, a worker or a role: 1 to 128 bytes.';

CREATE FUNCTION queue_internal.check_lease_holder(id bigint, token bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_id(id);
    IF token IS NULL THEN
        PERFORM queue_internal.raise_null('token');
    ELSIF token < 1 THEN
        PERFORM queue_internal.raise_invalid('token', 'must be greater than zero', token::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_lease_holder IS
    'Checks the id and the token with which a worker names its lease.';

CREATE FUNCTION queue_internal.check_id(id bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF id IS NULL THEN
        PERFORM queue_internal.raise_null('id');
    ELSIF id < 1 THEN
        PERFORM queue_internal.raise_invalid('id', 'must be greater than zero', id::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_id IS 'Checks the id of a task.';

CREATE FUNCTION queue_internal.check_array(argument text, elements anyarray) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF elements IS NULL THEN
        PERFORM queue_internal.raise_null(argument);
    ELSIF array_ndims(elements) > 1 THEN
        PERFORM queue_internal.raise_invalid(argument, 'must have one dimension',
                                             format('an array of %s dimensions', array_ndims(elements)));
    ELSIF cardinality(elements) > 100000 THEN
        PERFORM queue_internal.raise_too_large(argument, '100000 elements',
                                               cardinality(elements) || ' elements');
    ELSIF array_position(elements, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'argument "%" must not contain null', argument
            USING ERRCODE = 'null_value_not_allowed',
                  DETAIL = format('Element %s is null.', array_position(elements, NULL));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_array IS
    'Checks an array: one dimension, at most 100000 elements, none of them null.';

CREATE FUNCTION queue_internal.check_same_length(argument text, elements anyarray, expected integer)
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF cardinality(elements) <> expected THEN
        PERFORM queue_internal.raise_invalid(
            argument, format('must have as many elements as "ids", which has %s', expected),
            format('an array of %s', cardinality(elements)));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_same_length IS 'Checks that an array has as many elements as "ids".';

-- Months and days of an interval are stored apart. Comparisons count 360 days to a year, so that -1 year 361 days is
-- greater than zero and yet ends in the past, and 40 years -14401 days is less than zero and yet 209 days long; in
-- seconds a year has 365.25 days. So all checks of intervals compare seconds.
CREATE FUNCTION queue_internal.check_delay(argument text, delay interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT isfinite(delay) THEN
        PERFORM queue_internal.raise_invalid(argument, 'must be finite', delay::text);
    ELSIF extract(epoch FROM delay) < 0 THEN
        PERFORM queue_internal.raise_invalid(argument, 'must not be negative', delay::text);
    -- Parts that cancel each other out are added to a time one after the other, and may leave its range on the way.
    ELSIF greatest(extract(epoch FROM delay) / 31557600, abs(extract(year FROM delay)), abs(extract(day FROM delay)) / 365.25,
                   abs(extract(hour FROM delay)) / 8766) > 100 THEN
        PERFORM queue_internal.raise_too_large(argument, '100 years', delay::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_delay IS 'Checks a delay: not negative, at most 100 years; null passes.';

-- 1 month -29 days may also end in the past. The result has only seconds. The default of a queue may be from before
-- queue.max_lease was lowered: then the setting applies.
CREATE FUNCTION queue_internal.checked_lease(lease interval, otherwise interval) RETURNS interval
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    longest interval;
BEGIN
    IF lease IS NULL THEN
        RETURN CASE
            WHEN extract(epoch FROM otherwise) <= 60 THEN make_interval(secs => extract(epoch FROM otherwise)::float8)
            WHEN otherwise IS NOT NULL THEN make_interval(secs => least(
                extract(epoch FROM otherwise),
                extract(epoch FROM queue_internal.setting('max_lease', '7d')::interval))::float8)
        END;
    ELSIF NOT isfinite(lease) THEN
        PERFORM queue_internal.raise_invalid('lease', 'must be finite', lease::text);
    ELSIF extract(epoch FROM lease) <= 0 THEN
        PERFORM queue_internal.raise_invalid('lease', 'must be greater than zero', lease::text);
    END IF;
    -- The setting is never less than a minute.
    IF extract(epoch FROM lease) > 60 THEN
        longest := queue_internal.setting('max_lease', '7d')::interval;
        IF extract(epoch FROM lease) > extract(epoch FROM longest) THEN
            PERFORM queue_internal.raise_too_large('lease', format('"queue.max_lease", which is %s', longest),
                                                   lease::text);
        END IF;
    END IF;
    RETURN make_interval(secs => extract(epoch FROM lease)::float8);
END
$$;
COMMENT ON FUNCTION queue_internal.checked_lease IS
    'Checks a lease and returns it; for null, returns the second argument.';

CREATE FUNCTION queue_internal.timeout_at(began timestamptz, timeout interval) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- What was not written by a push can be longer than a year, and too long to be added.
    RETURN began + make_interval(secs => least(extract(epoch FROM timeout), 31557600)::float8);
END
$$;
COMMENT ON FUNCTION queue_internal.timeout_at IS
    'When an attempt that began at this time exceeds its timeout; null for never.';
