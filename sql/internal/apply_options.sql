-- queue_internal.apply_options(name, options, is_new)
--
--   Checks the options of queue.create and queue.configure and writes them to the queue's row.
--   An option that is not named keeps its value; null brings back the default.
--   Errors:   22023 and 54000 naming the option

CREATE FUNCTION queue_internal.apply_options(name text, options jsonb, is_new boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    valid   CONSTANT text :=
        'lease, timeout, ttl, on_expired, max_queued, max_attempts, backoff, max_running, max_running_per_group, '
        'delayed_head, fair_groups, rate_limit, group_rate_limit, rate_period, ageing, '
        'key_ttl, on_predecessor_failure, keep_history, keep_payloads, durable_leases';
    before  queue.queues;
    changed queue.queues;
    fresh   queue.queues;
    option  text;
    value   jsonb;
BEGIN
    PERFORM queue_internal.hold_queue(name);
    SELECT q.* INTO before FROM queue.queues AS q WHERE q.name = apply_options.name FOR NO KEY UPDATE;
    changed := before;
    fresh := queue_internal.fresh_queue();
    FOR option, value IN SELECT o.key, o.value FROM jsonb_each(options) AS o LOOP
        CASE option
            WHEN 'lease' THEN
                changed.lease := coalesce(queue_internal.interval_option(option, value, false), fresh.lease);
                IF extract(epoch FROM changed.lease)
                   > extract(epoch FROM queue_internal.setting('max_lease', '7d')::interval) THEN
                    RAISE EXCEPTION 'option "lease" of argument "options" is longer than "queue.max_lease", which is %',
                        queue_internal.setting('max_lease', '7d')
                        USING ERRCODE = 'program_limit_exceeded', DETAIL = format('The value is %s.', value);
                END IF;
            WHEN 'timeout' THEN
                changed.timeout := queue_internal.interval_option(option, value, false);
            WHEN 'ttl' THEN
                changed.ttl := queue_internal.interval_option(option, value, false);
            WHEN 'on_expired' THEN
                changed.on_expired := coalesce(
                    queue_internal.choice_option(option, value, '{dead, cancel}'), fresh.on_expired);
            WHEN 'max_queued' THEN
                changed.max_queued := queue_internal.number_option(option, value, 1, 2147483647, true);
            WHEN 'max_attempts' THEN
                changed.max_attempts := coalesce(
                    queue_internal.number_option(option, value, 1, 10000, true), fresh.max_attempts);
            WHEN 'backoff' THEN
                changed := queue_internal.apply_backoff('options', changed, fresh, value);
            WHEN 'max_running' THEN
                changed.max_running := queue_internal.number_option(option, value, 1, 10000, true);
            WHEN 'max_running_per_group' THEN
                changed.max_running_per_group := coalesce(
                    queue_internal.number_option(option, value, 1, 10000, true), fresh.max_running_per_group);
            WHEN 'delayed_head' THEN
                changed.delayed_head := coalesce(
                    queue_internal.choice_option(option, value, '{block, pass}'), fresh.delayed_head);
            WHEN 'fair_groups' THEN
                changed.fair_groups := coalesce(
                    queue_internal.boolean_option(option, value), fresh.fair_groups);
            WHEN 'rate_limit' THEN
                changed.rate_limit := queue_internal.number_option(option, value, 1, 10000, true);
            WHEN 'group_rate_limit' THEN
                changed.group_rate_limit := queue_internal.number_option(option, value, 1, 10000, true);
            WHEN 'rate_period' THEN
                changed.rate_period := queue_internal.interval_option(option, value, false);
            WHEN 'ageing' THEN
                changed.ageing := queue_internal.interval_option(option, value, false);
            WHEN 'key_ttl' THEN
                changed.key_ttl := queue_internal.interval_option(option, value, false);
            WHEN 'on_predecessor_failure' THEN
                changed.on_predecessor_failure := coalesce(
                    queue_internal.choice_option(option, value, '{fail, cancel, continue}'),
                    fresh.on_predecessor_failure);
            WHEN 'keep_history' THEN
                changed.keep_history := coalesce(
                    queue_internal.boolean_option(option, value), fresh.keep_history);
            WHEN 'keep_payloads' THEN
                changed.keep_payloads := coalesce(
                    queue_internal.boolean_option(option, value), fresh.keep_payloads);
            WHEN 'durable_leases' THEN
                changed.durable_leases := queue_internal.choice_option(option, value, '{auto, on, off}');
            ELSE
                RAISE EXCEPTION 'argument "options" has no option "%"', left(option, 64)
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = format('The options are %s.', valid);
        END CASE;
    END LOOP;
    IF (coalesce(changed.rate_limit, changed.group_rate_limit) IS NULL) <> (changed.rate_period IS NULL) THEN
        PERFORM queue_internal.raise_invalid(
            'options', 'must have "rate_period" together with "rate_limit" or "group_rate_limit", or none of them');
    END IF;
    UPDATE queue.queues AS q
    SET lease = changed.lease, timeout = changed.timeout, ttl = changed.ttl, on_expired = changed.on_expired,
        max_queued = changed.max_queued, max_attempts = changed.max_attempts, keep_history = changed.keep_history,
        keep_payloads = changed.keep_payloads,
        backoff_kind = changed.backoff_kind, backoff_base = changed.backoff_base,
        backoff_max = changed.backoff_max, backoff_jitter = changed.backoff_jitter,
        max_running = changed.max_running, max_running_per_group = changed.max_running_per_group,
        delayed_head = changed.delayed_head, fair_groups = changed.fair_groups,
        rate_limit = changed.rate_limit, group_rate_limit = changed.group_rate_limit, rate_period = changed.rate_period, ageing = changed.ageing,
        key_ttl = changed.key_ttl, on_predecessor_failure = changed.on_predecessor_failure,
        durable_leases = changed.durable_leases
    WHERE q.name = apply_options.name;
    PERFORM queue_internal.policies_changed(before, changed, is_new);
END
$$;
COMMENT ON FUNCTION queue_internal.apply_options IS 'Checks the options of a queue and writes them.';

-- Applies changed limits to the tasks that are in the queue already. The caller has the row of the queue locked.
CREATE FUNCTION queue_internal.policies_changed(before queue.queues, source queue.queues, is_new boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    slots    CONSTANT boolean := before.max_running IS DISTINCT FROM source.max_running;
    buckets  CONSTANT boolean :=
        (before.rate_limit, before.rate_period) IS DISTINCT FROM (source.rate_limit, source.rate_period);
    tighter  CONSTANT boolean :=
        source.max_running_per_group < before.max_running_per_group
        OR source.group_rate_limit IS NOT NULL
           AND (source.group_rate_limit >= before.group_rate_limit AND source.rate_period <= before.rate_period) IS NOT TRUE;
    -- Tasks that were admitted under the old limit of their group are admitted again under the new one.
    readmit  CONSTANT boolean :=
        tighter
        OR source.group_rate_limit IS NOT NULL
           AND (before.group_rate_limit, before.rate_period)
               IS DISTINCT FROM (source.group_rate_limit, source.rate_period);
    regroup  CONSTANT boolean :=
        readmit
        OR (before.max_running_per_group, before.delayed_head, before.fair_groups, before.group_rate_limit)
           IS DISTINCT FROM
           (source.max_running_per_group, source.delayed_head, source.fair_groups, source.group_rate_limit);
BEGIN
    IF regroup AND NOT is_new THEN
        PERFORM queue_internal.check_read_committed(
            'options of groups can only be changed', 'The snapshot may not show tasks that were admitted under the old options.');
    END IF;
    IF slots OR buckets THEN
        PERFORM queue_internal.wait_for_claims(
            source.name, CASE WHEN slots THEN coalesce(source.max_running, 0) END, buckets);
    END IF;
    IF tighter THEN
        -- If claims stay open for longer, what they have admitted may still start (docs/groups.md).
        PERFORM queue_internal.lock_claimed(source.name, NULL, false, true, queue_internal.lock_patience());
    END IF;
    IF slots THEN
        PERFORM queue_internal.provide_slots(source);
    END IF;
    IF buckets THEN
        PERFORM queue_internal.provide_buckets(source);
    END IF;
    IF regroup THEN
        WITH locked AS MATERIALIZED (
            SELECT l.id FROM queue.tasks AS l
            WHERE l.queue = source.name AND l.group_key IS NOT NULL AND l.state = 'queued'
              AND (source.delayed_head = 'pass' AND l.admission = 1 AND l.run_at > clock_timestamp()
                   OR source.delayed_head = 'block' AND l.admission = 0)
            ORDER BY l.id FOR NO KEY UPDATE
        ), admitted AS MATERIALIZED (
            -- This does not wait for tasks that other transactions have locked. Events withdraw their admission.
            SELECT l.id FROM queue.tasks AS l
            WHERE l.queue = source.name AND l.group_key IS NOT NULL AND l.state = 'queued' AND l.admission = 1 AND readmit
            ORDER BY l.id FOR NO KEY UPDATE SKIP LOCKED
        )
        UPDATE queue.tasks AS t SET admission = CASE WHEN source.delayed_head = 'pass' AND t.run_at > clock_timestamp() THEN 0 ELSE 2 END
        FROM (SELECT k.id FROM locked AS k UNION SELECT a.id FROM admitted AS a) AS l WHERE t.id = l.id;
        -- With their ids, because the tasks that were open until now left no event when they came.
        INSERT INTO queue_internal.events (queue, group_key, arrived)
        SELECT t.queue, t.group_key, min(t.id) FROM queue.tasks AS t
        WHERE t.queue = source.name AND t.group_key IS NOT NULL
        GROUP BY t.queue, t.group_key;
    END IF;
    PERFORM queue_internal.announce_task(source.name, clock_timestamp());
END
$$;
COMMENT ON FUNCTION queue_internal.policies_changed IS
    'Applies changed options to the tasks that are in a queue already.';

CREATE FUNCTION queue_internal.apply_backoff(
    argument text, changed queue.queues, fresh queue.queues, value jsonb)
RETURNS queue.queues
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part text;
    item jsonb;
BEGIN
    IF jsonb_typeof(value) NOT IN ('object', 'null') THEN
        PERFORM queue_internal.raise_option('backoff', 'must be a JSON object', value, argument);
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
                changed.backoff_kind := coalesce(
                    queue_internal.choice_option('backoff.kind', item, '{fixed, linear, exponential}', argument),
                    fresh.backoff_kind);
            WHEN 'base' THEN
                changed.backoff_base := coalesce(
                    queue_internal.interval_option('backoff.base', item, true, argument), fresh.backoff_base);
            WHEN 'max' THEN
                changed.backoff_max := coalesce(
                    queue_internal.interval_option('backoff.max', item, true, argument), fresh.backoff_max);
            WHEN 'jitter' THEN
                changed.backoff_jitter := coalesce(
                    queue_internal.number_option('backoff.jitter', item, 0, 1, false, argument),
                    fresh.backoff_jitter);
            ELSE
                RAISE EXCEPTION 'argument "%" has no option "backoff.%"', argument, left(part, 64)
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = 'The options of backoff are kind, base, max, jitter.';
        END CASE;
    END LOOP;
    RETURN changed;
END
$$;
COMMENT ON FUNCTION queue_internal.apply_backoff IS
    'Checks a backoff in the named argument, and writes it into the row of a queue.';

-- Reads the defaults from the table, so that they are defined once.
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
COMMENT ON FUNCTION queue_internal.fresh_queue IS 'Returns the row of a queue with all defaults.';

-- The values of options. Each checks its JSON type, and returns null for null.

CREATE FUNCTION queue_internal.interval_option(
    option text, value jsonb, zero_allowed boolean, argument text DEFAULT 'options')
RETURNS interval
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parsed interval;
BEGIN
    IF jsonb_typeof(value) NOT IN ('string', 'null') THEN
        PERFORM queue_internal.raise_option(
            option, 'must be an interval, such as "30 seconds"', value, argument);
    END IF;
    BEGIN
        parsed := (value #>> '{}')::interval;
    EXCEPTION WHEN data_exception THEN
        PERFORM queue_internal.raise_option(
            option, 'must be an interval, such as "30 seconds"', value, argument);
    END;
    IF NOT isfinite(parsed) THEN
        PERFORM queue_internal.raise_option(option, 'must be finite', value, argument);
    ELSIF extract(epoch FROM parsed) < 0 OR extract(epoch FROM parsed) = 0 AND NOT zero_allowed THEN
        PERFORM queue_internal.raise_option(
            option, CASE WHEN zero_allowed THEN 'must not be negative' ELSE 'must be greater than zero' END,
            value, argument);
    ELSIF extract(epoch FROM parsed) > extract(epoch FROM interval '1 year') THEN
        RAISE EXCEPTION 'option "%" of argument "%" is longer than 1 year', option, argument
            USING ERRCODE = 'program_limit_exceeded', DETAIL = format('The value is %s.', value);
    END IF;
    RETURN make_interval(secs => extract(epoch FROM parsed)::float8);
END
$$;
COMMENT ON FUNCTION queue_internal.interval_option IS 'The value of an option that is an interval; null for null.';

CREATE FUNCTION queue_internal.number_option(
    option text, value jsonb, lowest numeric, highest numeric, whole boolean, argument text DEFAULT 'options')
RETURNS numeric
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind   text := CASE WHEN whole THEN 'a whole number' ELSE 'a number' END;
    number numeric;
BEGIN
    IF jsonb_typeof(value) NOT IN ('number', 'null') THEN
        PERFORM queue_internal.raise_option(option, format('must be %s', kind), value, argument);
    END IF;
    number := (value #>> '{}')::numeric;
    IF number NOT BETWEEN lowest AND highest OR whole AND number <> trunc(number) THEN
        PERFORM queue_internal.raise_option(
            option, format('must be %s from %s to %s', kind, lowest, highest), value, argument);
    END IF;
    RETURN number;
END
$$;
COMMENT ON FUNCTION queue_internal.number_option IS 'The value of an option that is a number; null for null.';

CREATE FUNCTION queue_internal.boolean_option(option text, value jsonb, argument text DEFAULT 'options')
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(value) NOT IN ('boolean', 'null') THEN
        PERFORM queue_internal.raise_option(option, 'must be true or false', value, argument);
    END IF;
    RETURN (value #>> '{}')::boolean;
END
$$;
COMMENT ON FUNCTION queue_internal.boolean_option IS 'The value of an option that is true or false; null for null.';

CREATE FUNCTION queue_internal.choice_option(
    option text, value jsonb, choices text[], argument text DEFAULT 'options')
RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(value) NOT IN ('string', 'null') OR value #>> '{}' <> ALL (choices) THEN
        PERFORM queue_internal.raise_option(
            option, 'must be one of ' || array_to_string(choices, ', '), value, argument);
    END IF;
    RETURN value #>> '{}';
END
$$;
COMMENT ON FUNCTION queue_internal.choice_option IS
    'The value of an option that is one of several words; null for null.';

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
COMMENT ON FUNCTION queue_internal.raise_option IS 'Raises 22023 for an option.';
