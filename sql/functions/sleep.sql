-- queue.sleep
--
--   Waits:    as queue.release
--   Touches:  queue.tasks (updates), queue_internal.steps (inserts)

CREATE FUNCTION queue.sleep(id bigint, token bigint, until timestamptz) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task queue.tasks;
BEGIN
    IF until IS NULL THEN
        PERFORM queue_internal.raise_null('until');
    ELSIF NOT isfinite(until) THEN
        PERFORM queue_internal.raise_invalid('until', 'must be finite', until::text);
    END IF;
    task := queue_internal.leased_task(id, token, false);
    IF until <= clock_timestamp() THEN
        RETURN true;
    END IF;
    PERFORM queue_internal.suspend(task, until);
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue.sleep(bigint, bigint, timestamptz) IS
'Suspends a running task until a time: returns false, the lease has ended, and the attempt does not count. At that time
the task can be claimed again, and the same call returns true. If the cancellation of the task was requested, or it was
replaced, it is cancelled instead. Needs the worker''s right on the queue.

- id, token: the task and the token of its lease, as claim returned them.
- until: the time. If it has passed, the call returns true and does nothing.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004 or 22023: an argument is null or invalid.';

CREATE FUNCTION queue.sleep(id bigint, token bigint, name text, duration interval) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    task    queue.tasks;
    earlier record;
    until   timestamptz;
BEGIN
    PERFORM queue_internal.check_step('name', name);
    IF duration IS NULL THEN
        PERFORM queue_internal.raise_null('duration');
    END IF;
    PERFORM queue_internal.check_delay('duration', duration);
    task := queue_internal.leased_task(id, token, false);
    SELECT s.stored, s.value INTO earlier FROM queue_internal.stored_step(id, 'sleep', name) AS s;
    IF earlier.stored THEN
        until := (earlier.value #>> '{}')::timestamptz;
    ELSE
        until := clock_timestamp() + duration;
        PERFORM queue_internal.store_step(id, 'sleep', name, to_jsonb(until));
    END IF;
    IF until <= clock_timestamp() THEN
        RETURN true;
    END IF;
    PERFORM queue_internal.suspend(task, until);
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue.sleep(bigint, bigint, text, interval) IS
'Suspends a running task for some time. The time is counted from the first call with that name in this task, and stored
like a step. Otherwise it does the same as with a time: it returns false if the task is suspended, and true once the time
has passed. Needs the worker''s right on the queue.

- id, token: the task and the token of its lease, as claim returned them.
- name: the name of this sleep in the task, 1 to 512 bytes.
- duration: how long, at most 100 years.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004, 22023 or 54000: an argument is null, invalid or too large.';
