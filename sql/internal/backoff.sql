-- queue_internal.backoff(queue, task)
--
--   How long a task waits after its attempt failed: as it was pushed to, and for the rest as its queue
--   says. The jitter takes up to that share off the wait, so that tasks that failed together do not
--   come back together, and the maximum is never exceeded.

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
COMMENT ON FUNCTION queue_internal.backoff IS 'How long a task waits after its attempt failed.';
