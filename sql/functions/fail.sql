-- queue.fail
--
--   Waits:    for transactions that have pushed after the task, if it ends with this attempt or has a key, and then for one
--             that ends a task which was to replace it
--   Touches:  queue.tasks (updates or deletes; at the end of a task of a group also admits the next one, and has it locked until
--             the transaction ends), queue.dead_letters or queue.history (inserts)

CREATE FUNCTION queue.fail(
    id        bigint,
    token     bigint,
    error     text,
    retry_in  interval DEFAULT NULL,
    permanent boolean  DEFAULT false,
    details   jsonb    DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_lease_holder(id, token);
    PERFORM queue_internal.check_error('error', error, details);
    PERFORM queue_internal.check_retry(retry_in, permanent);
    RETURN queue_internal.end_attempt(
        queue_internal.leased_task(id, token, queue_internal.may_be_last(id, token, permanent)),
        error, retry_in, permanent, details => details);
END
$$;
COMMENT ON FUNCTION queue.fail IS
'Reports that an attempt failed, and returns the new state of the task: queued, failed or cancelled. The task is
requeued after its backoff, or moves to the dead letters if this was its last attempt. If its cancellation was
requested, it is cancelled instead; so is a task that was replaced and has attempts left. Needs the worker''s right on
the queue.

- id, token: the task and the token of its lease, as claim returned them.
- error: what went wrong, 1 byte to 1 MB; added to the task''s errors. Of an error with more than 65536 characters, the
  beginning is kept, and a note of its length.
- retry_in: the delay before the next attempt, at most 100 years. Null (default) means the backoff.
- permanent: true moves the task to the dead letters at once. Cannot be combined with retry_in. Default false.
- details: any JSON value of at most 64 kB, such as the status and the body of a response; stored with the error. Null
  (default) means none.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004, 22023 or 54000: an argument is null, invalid or too large.';

CREATE FUNCTION queue_internal.check_error(argument text, error text, details jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF error IS NULL THEN
        PERFORM queue_internal.raise_null(argument);
    ELSIF error = '' THEN
        PERFORM queue_internal.raise_invalid(argument, 'must not be empty');
    ELSIF octet_length(error) > 1048576 THEN
        PERFORM queue_internal.raise_too_large(argument, '1048576 bytes', octet_length(error) || ' bytes');
    ELSIF octet_length(details::text) > 65536 THEN
        PERFORM queue_internal.raise_too_large('details', '65536 bytes', octet_length(details::text) || ' bytes');
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_error IS 'Checks the error of an attempt, and its details, which may be null.';

CREATE FUNCTION queue_internal.check_retry(retry_in interval, permanent boolean) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_delay('retry_in', retry_in);
    IF permanent IS NULL THEN
        PERFORM queue_internal.raise_null('permanent');
    ELSIF permanent AND retry_in IS NOT NULL THEN
        PERFORM queue_internal.raise_invalid('retry_in', 'cannot be combined with "permanent"', retry_in::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_retry IS 'Checks when an attempt that failed is to be retried.';

-- Read before the task is locked, to lock it as strongly as needed.
CREATE FUNCTION queue_internal.may_be_last(id bigint, token bigint, permanent boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN permanent OR (
        SELECT t.attempt >= coalesce(t.max_attempts, q.max_attempts)
        FROM queue.tasks AS t LEFT JOIN queue.queues AS q ON q.name = t.queue
        WHERE t.id = may_be_last.id AND t.token = may_be_last.token) IS NOT FALSE;
END
$$;
COMMENT ON FUNCTION queue_internal.may_be_last IS 'Returns whether a task may end if its attempt fails.';
