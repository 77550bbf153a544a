-- What queue.wait() and queue.wait_result() check before they wait.

CREATE FUNCTION queue_internal.wait_deadline(timeout interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF timeout IS NULL THEN
        PERFORM queue_internal.raise_null('timeout');
    END IF;
    PERFORM queue_internal.check_delay('timeout', timeout);
    RETURN clock_timestamp() + timeout;
END
$$;
COMMENT ON FUNCTION queue_internal.wait_deadline IS 'Checks the argument "timeout"; returns when the wait ends.';

CREATE FUNCTION queue_internal.check_wait(queue text, timeout interval, worker text) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_queue(queue, 'worker');
    PERFORM queue_internal.check_worker(worker);
    RETURN queue_internal.wait_deadline(timeout);
END
$$;
COMMENT ON FUNCTION queue_internal.check_wait(text, interval, text) IS
    'Checks the arguments of queue.wait() for one queue; returns when the wait ends.';

CREATE FUNCTION queue_internal.check_wait(queues text[], timeout interval, worker text) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    PERFORM queue_internal.check_array('queues', queues);
    IF queues = '{}' THEN
        PERFORM queue_internal.raise_invalid('queues', 'must not be empty');
    END IF;
    FOREACH name IN ARRAY queues LOOP
        PERFORM queue_internal.check_name('queues', name);
        PERFORM queue_internal.open_queue(name, 'worker');
    END LOOP;
    PERFORM queue_internal.check_worker(worker);
    RETURN queue_internal.wait_deadline(timeout);
END
$$;
COMMENT ON FUNCTION queue_internal.check_wait(text[], interval, text) IS
    'Checks the arguments of queue.wait() for several queues; returns when the wait ends.';

CREATE FUNCTION queue_internal.check_wait_result(id bigint, timeout interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deadline timestamptz;
BEGIN
    PERFORM queue_internal.check_id(id);
    deadline := queue_internal.wait_deadline(timeout);
    IF queue_internal.state_of(id, 'operator') IS NULL THEN
        PERFORM queue_internal.raise_unknown_task(id);
    END IF;
    RETURN deadline;
END
$$;
COMMENT ON FUNCTION queue_internal.check_wait_result IS
    'Checks the arguments of queue.wait_result(); returns when the wait ends.';

-- STABLE, so that one snapshot is used for all tables and a task that moves from one to another is not missed.
CREATE FUNCTION queue_internal.outcome(id bigint, OUT state text, OUT result jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    state := queue_internal.state_of(id, 'operator');
    IF state = 'completed' THEN
        SELECT h.result INTO result FROM queue.history AS h WHERE h.id = outcome.id;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.outcome IS 'Returns the state of a task, wherever it is, and its result.';
