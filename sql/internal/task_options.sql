-- queue_internal.check_task_options(...)
--
--   Checks the options of a task, for push and push_many.
--   Errors:   22004, 22023, 54000

CREATE FUNCTION queue_internal.check_task_options(
    queue text, priority integer, run_at timestamptz, delay interval, key text, on_duplicate text,
    group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb, key_ttl interval,
    on_predecessor_failure text, key_ttl_from text DEFAULT NULL, kind text DEFAULT NULL, lease interval DEFAULT NULL,
    timeout interval DEFAULT NULL, start_by timestamptz DEFAULT NULL, ttl interval DEFAULT NULL, weight integer DEFAULT 1,
    batch bigint DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A call costs more than all checks here.
    IF queue IS NULL OR octet_length(queue) NOT BETWEEN 1 AND 128 THEN
        PERFORM queue_internal.check_name('queue', queue);
    ELSIF delay IS NOT NULL THEN
        PERFORM queue_internal.check_delay('delay', delay);
    END IF;
    IF priority IS NULL THEN
        PERFORM queue_internal.raise_null('priority');
    ELSIF run_at IS NOT NULL AND delay IS NOT NULL THEN
        PERFORM queue_internal.raise_invalid('delay', 'cannot be combined with "run_at"', delay::text);
    ELSIF NOT isfinite(run_at) THEN
        PERFORM queue_internal.raise_invalid('run_at', 'must be finite', run_at::text);
    ELSIF max_attempts < 1 THEN
        PERFORM queue_internal.raise_invalid('max_attempts', 'must be greater than zero', max_attempts::text);
    ELSIF max_attempts > 10000 THEN
        PERFORM queue_internal.raise_too_large('max_attempts', '10000', max_attempts::text);
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        PERFORM queue_internal.raise_invalid('headers', 'must be a JSON object', 'of type ' || jsonb_typeof(headers));
    ELSIF on_duplicate IS NULL THEN
        PERFORM queue_internal.raise_null('on_duplicate');
    ELSIF on_duplicate NOT IN ('skip', 'replace', 'reschedule', 'error') THEN
        PERFORM queue_internal.raise_invalid(
            'on_duplicate', 'must be one of skip, replace, reschedule, error', quote_literal(left(on_duplicate, 64)));
    ELSIF key IS NULL AND on_duplicate <> 'skip' THEN
        PERFORM queue_internal.raise_invalid('on_duplicate', 'needs a key', quote_literal(on_duplicate));
    END IF;
    IF key IS NOT NULL OR group_key IS NOT NULL OR backoff IS NOT NULL OR key_ttl IS NOT NULL
       OR after IS NOT NULL OR on_predecessor_failure IS NOT NULL OR key_ttl_from IS NOT NULL THEN
        PERFORM queue_internal.check_policy_options(
            key, group_key, after, backoff, key_ttl, on_predecessor_failure, key_ttl_from);
    END IF;
    IF batch IS NOT NULL THEN
        PERFORM queue_internal.check_batch(batch);
    END IF;
    IF weight IS DISTINCT FROM 1 THEN
        PERFORM queue_internal.check_weight(queue, group_key, weight);
    END IF;
    IF kind IS NOT NULL AND octet_length(kind) NOT BETWEEN 1 AND 128 THEN
        PERFORM queue_internal.check_name('kind', kind);
    ELSIF lease IS NOT NULL OR timeout IS NOT NULL THEN
        PERFORM queue_internal.check_times(lease, timeout);
    END IF;
    IF start_by IS NOT NULL OR ttl IS NOT NULL THEN
        PERFORM queue_internal.check_deadline(start_by, ttl);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_task_options IS 'Checks the options of a task that is pushed.';

CREATE FUNCTION queue_internal.check_policy_options(
    key text, group_key text, after bigint[], backoff jsonb, key_ttl interval, on_predecessor_failure text,
    key_ttl_from text)
RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_key('key', key);
    PERFORM queue_internal.check_key('group_key', group_key);
    PERFORM queue_internal.check_delay('key_ttl', key_ttl);
    PERFORM queue_internal.check_backoff(backoff);
    IF key_ttl IS NOT NULL AND key IS NULL THEN
        PERFORM queue_internal.raise_invalid('key_ttl', 'needs a key', key_ttl::text);
    ELSIF extract(epoch FROM key_ttl) = 0 THEN
        PERFORM queue_internal.raise_invalid('key_ttl', 'must be greater than zero', key_ttl::text);
    ELSIF key_ttl_from NOT IN ('end', 'push') THEN
        PERFORM queue_internal.raise_invalid(
            'key_ttl_from', 'must be one of end, push', quote_literal(left(key_ttl_from, 64)));
    ELSIF key_ttl_from IS NOT NULL AND key_ttl IS NULL THEN
        PERFORM queue_internal.raise_invalid('key_ttl_from', 'needs "key_ttl"', quote_literal(key_ttl_from));
    END IF;
    IF after IS NOT NULL THEN
        PERFORM queue_internal.check_array('after', after);
        IF 1 > ANY (after) THEN
            PERFORM queue_internal.raise_invalid('after', 'must have ids greater than zero');
        END IF;
    END IF;
    IF on_predecessor_failure NOT IN ('fail', 'cancel', 'continue') THEN
        PERFORM queue_internal.raise_invalid(
            'on_predecessor_failure', 'must be one of fail, cancel, continue',
            quote_literal(left(on_predecessor_failure, 64)));
    ELSIF on_predecessor_failure IS NOT NULL AND after IS NULL THEN
        PERFORM queue_internal.raise_invalid(
            'on_predecessor_failure', 'needs "after"', quote_literal(on_predecessor_failure));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_policy_options IS
    'Checks the options of a task that concern the policies of its queue.';

CREATE FUNCTION queue_internal.check_backoff(backoff jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(backoff) <> 'object' THEN
        PERFORM queue_internal.raise_invalid('backoff', 'must be a JSON object', 'of type ' || jsonb_typeof(backoff));
    ELSIF backoff IS NOT NULL THEN
        PERFORM queue_internal.apply_backoff('backoff', NULL, NULL, backoff);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_backoff IS 'Checks the backoff of a task, which may be null.';

CREATE FUNCTION queue_internal.check_times(lease interval, timeout interval) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.checked_lease(lease, NULL);
    IF NOT isfinite(timeout) THEN
        PERFORM queue_internal.raise_invalid('timeout', 'must be finite', timeout::text);
    ELSIF extract(epoch FROM timeout) <= 0 THEN
        PERFORM queue_internal.raise_invalid('timeout', 'must be greater than zero', timeout::text);
    ELSIF extract(epoch FROM timeout) > extract(epoch FROM interval '1 year') THEN
        PERFORM queue_internal.raise_too_large('timeout', '1 year', timeout::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_times IS 'Checks the lease and the timeout of a task, which may be null.';

-- Reports the limits of a queue only to roles that may push to it. "queue" is null if there may be several.
CREATE FUNCTION queue_internal.check_weight(queue text, group_key text, weight integer) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues;
BEGIN
    IF weight IS NULL THEN
        PERFORM queue_internal.raise_null('weight');
    ELSIF weight < 1 THEN
        PERFORM queue_internal.raise_invalid('weight', 'must be greater than zero', weight::text);
    ELSIF weight > 1000000 THEN
        PERFORM queue_internal.raise_too_large('weight', '1000000', weight::text);
    END IF;
    SELECT q.* INTO source FROM queue.queues AS q
    WHERE q.name = check_weight.queue AND queue_internal.has_right('producer', q.name);
    IF weight > source.rate_limit THEN
        PERFORM queue_internal.raise_too_heavy(weight, source.name, 'rate_limit', source.rate_limit);
    ELSIF weight > source.group_rate_limit AND group_key IS NOT NULL THEN
        PERFORM queue_internal.raise_too_heavy(weight, source.name, 'group_rate_limit', source.group_rate_limit);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_weight IS 'Checks the weight of a task against its bounds and the limits of its queue.';

-- For pushes that were configured or made under a larger limit, and for pushes to several queues: they do not fail because
-- a limit is smaller than the weight.
CREATE FUNCTION queue_internal.possible_weight(queue text, group_key text, weight integer) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF weight = 1 THEN
        RETURN weight;
    END IF;
    RETURN coalesce(
        (SELECT least(weight, q.rate_limit, CASE WHEN possible_weight.group_key IS NOT NULL THEN q.group_rate_limit END)
         FROM queue.queues AS q WHERE q.name = possible_weight.queue), weight);
END
$$;
COMMENT ON FUNCTION queue_internal.possible_weight IS
    'Returns the weight of a task, or the limit of its queue or group if that is smaller.';

-- For tasks that were not inserted by a push. The trigger tasks_inserted has the same conditions, in one query for all tasks.
CREATE FUNCTION queue_internal.check_columns(task queue.tasks) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT isfinite(task.run_at) THEN
        PERFORM queue_internal.raise_invalid('run_at', 'must be finite', task.run_at::text);
    ELSIF task.max_attempts NOT BETWEEN 1 AND 10000 THEN
        PERFORM queue_internal.raise_invalid('max_attempts', 'must be from 1 to 10000', task.max_attempts::text);
    ELSIF task.state NOT IN ('waiting', 'queued', 'running') THEN
        PERFORM queue_internal.raise_invalid('state', 'must be waiting, queued or running');
    ELSIF jsonb_typeof(task.headers) <> 'object' THEN
        PERFORM queue_internal.raise_invalid('headers', 'must be a JSON object', 'of type ' || jsonb_typeof(task.headers));
    ELSIF octet_length(task.kind) NOT BETWEEN 1 AND 128 THEN
        PERFORM queue_internal.check_name('kind', task.kind);
    -- 1000 years and 1 year in seconds. queue.max_lease may have been lowered since the push.
    ELSIF extract(epoch FROM task.lease) NOT BETWEEN 0.000001 AND 31557600000 THEN
        PERFORM queue_internal.raise_invalid('lease', 'must be from 1 microsecond to 1000 years', task.lease::text);
    ELSIF extract(epoch FROM task.timeout) NOT BETWEEN 0.000001 AND 31557600 THEN
        PERFORM queue_internal.raise_invalid('timeout', 'must be from 1 microsecond to 1 year', task.timeout::text);
    ELSIF NOT isfinite(task.start_by) THEN
        PERFORM queue_internal.raise_invalid('start_by', 'must be finite', task.start_by::text);
    ELSIF task.weight NOT BETWEEN 1 AND 1000000 THEN
        PERFORM queue_internal.raise_invalid('weight', 'must be from 1 to 1000000', task.weight::text);
    ELSIF NOT (isfinite(task.created_at) AND isfinite(task.updated_at) AND isfinite(coalesce(task.lease_until, task.run_at))
               AND isfinite(coalesce(task.claimed_at, task.run_at))
               AND isfinite(coalesce(task.cancel_requested_at, task.run_at))) THEN
        RAISE EXCEPTION 'the times of a task must be finite' USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_columns IS 'Refuses a task that could never run.';
