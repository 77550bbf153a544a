-- queue_internal.backoff(queue, attempt)
--
--   How long a task waits after its attempt number "attempt" failed. The jitter takes up to that
--   share off the wait, so that tasks that failed together do not come back together, and the
--   maximum is never exceeded.

CREATE FUNCTION queue_internal.backoff(source queue.queues, attempt integer) RETURNS interval
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    base    float8 := extract(epoch FROM source.backoff_base);
    seconds float8 := CASE source.backoff_kind
        WHEN 'fixed' THEN base
        WHEN 'linear' THEN base * attempt
        ELSE base * 2.0 ^ least(attempt - 1, 60)
    END;
BEGIN
    seconds := least(seconds, extract(epoch FROM source.backoff_max)::float8);
    RETURN make_interval(secs => seconds * (1 - source.backoff_jitter * random()));
END
$$;
COMMENT ON FUNCTION queue_internal.backoff(queue.queues, integer) IS
    'How long a task waits after the given attempt failed.';
