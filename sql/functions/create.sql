-- queue.create(name, options)
--
--   Creates a queue.
--   API:      public; an operator's
--   Options:  lease           how long a claim lasts that names no lease     "1 minute"
--             max_attempts    how often a task is tried                      20
--             backoff         how long a failed task waits:
--               kind          fixed, linear or exponential                   "exponential"
--               base          the wait after the first failure               "1 second"
--               max           the longest wait                               "1 hour"
--               jitter        the share of a wait that chance takes off      0.1
--             keep_history    whether finished tasks are kept in the history true
--   Errors:   42710 the queue exists; 22004, 22023, 54000 for the arguments and options
--   Touches:  queue.queues (inserts)

CREATE FUNCTION queue.create(name text, options jsonb DEFAULT '{}') RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('name', name);
    PERFORM queue_internal.check_options(options);
    IF name ~ '[[:cntrl:]]' THEN
        PERFORM queue_internal.raise_invalid('name', 'must not contain control characters');
    END IF;
    PERFORM queue_internal.check_right('operator', name);
    IF EXISTS (SELECT FROM queue.queues AS q WHERE q.name = "create".name) THEN
        RAISE unique_violation;
    END IF;
    INSERT INTO queue.queues (name) VALUES ("create".name);
    PERFORM queue_internal.apply_options(name, options);
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION 'queue "%" already exists', name
        USING ERRCODE = 'duplicate_object',
              HINT = format('Change its options with SELECT queue.configure(%L, ...).', name);
END
$$;
COMMENT ON FUNCTION queue.create(text, jsonb) IS
    'Creates a queue. Options: lease, max_attempts, backoff {kind, base, max, jitter}, keep_history; max_running, '
    'max_running_per_group, delayed_head, fair_groups, rate_limit, rate_period, ageing, key_ttl, on_predecessor_failure.';

CREATE FUNCTION queue_internal.check_options(options jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF options IS NULL THEN
        PERFORM queue_internal.raise_null('options');
    ELSIF jsonb_typeof(options) <> 'object' THEN
        PERFORM queue_internal.raise_invalid('options', 'must be a JSON object', 'of type ' || jsonb_typeof(options));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_options(jsonb) IS 'Checks that options are a JSON object.';
