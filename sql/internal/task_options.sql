-- queue_internal.check_task_options(...)
--
--   What push and push_many have in common: the checks of the options of a task.
--   Errors:   22004, 22023, 54000; 0A000 for the options of features still to come

CREATE FUNCTION queue_internal.check_task_options(
    queue text, priority integer, run_at timestamptz, delay interval, key text, on_duplicate text,
    group_key text, max_attempts integer, headers jsonb, after bigint[])
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('queue', queue);
    PERFORM queue_internal.check_delay('delay', delay);
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
    ELSIF on_duplicate <> 'skip' THEN
        PERFORM queue_internal.raise_unsupported('on_duplicate');
    ELSIF key IS NOT NULL THEN
        PERFORM queue_internal.raise_unsupported('key');
    ELSIF group_key IS NOT NULL THEN
        PERFORM queue_internal.raise_unsupported('group_key');
    ELSIF after IS NOT NULL THEN
        PERFORM queue_internal.raise_unsupported('after');
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_task_options(
    text, integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[]) IS
    'Checks the options of a task that is pushed.';
