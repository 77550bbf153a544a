-- queue_internal.backoff(queue, task)
--
--   Returns the delay after a failed attempt. What the push of the task did not specify comes from the options of the
--   queue. Jitter spreads the retries of tasks that failed together. The maximum is never exceeded.

CREATE FUNCTION queue_internal.backoff(source queue.queues, task queue.tasks) RETURNS interval
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    base    float8;
    seconds float8;
BEGIN
    IF task.backoff IS NOT NULL THEN
        source := queue_internal.apply_backoff('backoff', source, source, task.backoff);
    END IF;
    base := extract(epoch FROM source.backoff_base);
    seconds := CASE source.backoff_kind
        WHEN 'fixed' THEN base
        WHEN 'linear' THEN base * task.attempt
        ELSE base * 2.0 ^ least(task.attempt - 1, 60)
    END;
    seconds := least(seconds, extract(epoch FROM source.backoff_max)::float8);
    RETURN make_interval(secs => seconds * (1 - source.backoff_jitter * random()));
END
$$;
COMMENT ON FUNCTION queue_internal.backoff IS 'Returns the delay after a failed attempt of a task.';
