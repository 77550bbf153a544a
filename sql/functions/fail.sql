-- queue.fail(id, token, error, retry_in, permanent)
--
--   Reports that an attempt failed. The task goes back to its queue after its backoff (or
--   "retry_in"), or to the dead letters when its attempts are used up or "permanent" is true.
--   A task whose cancelling was requested is cancelled instead; so is one that was replaced, unless it failed for good.
--   API:      public; needs the worker's right on the queue
--   Returns:  the state that the task is in now: queued, failed or cancelled
--   Waits:    if the task ends with this attempt, or has a key, for transactions that have pushed after it
--   Errors:   QX001 the lease is lost; QX003 no such task; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (updates or deletes), queue.dead_letters or queue.history (inserts)

CREATE FUNCTION queue.fail(
    id        bigint,
    token     bigint,
    error     text,
    retry_in  interval DEFAULT NULL,
    permanent boolean  DEFAULT false)
RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    is_last boolean;
BEGIN
    PERFORM queue_internal.check_lease_holder(id, token);
    PERFORM queue_internal.check_delay('retry_in', retry_in);
    IF error IS NULL THEN
        PERFORM queue_internal.raise_null('error');
    ELSIF error = '' THEN
        PERFORM queue_internal.raise_invalid('error', 'must not be empty');
    ELSIF octet_length(error) > 1048576 THEN
        PERFORM queue_internal.raise_too_large('error', '1048576 bytes', octet_length(error) || ' bytes');
    ELSIF permanent IS NULL THEN
        PERFORM queue_internal.raise_null('permanent');
    ELSIF permanent AND retry_in IS NOT NULL THEN
        PERFORM queue_internal.raise_invalid('retry_in', 'cannot be combined with "permanent"', retry_in::text);
    END IF;
    is_last := permanent OR (SELECT t.attempt >= coalesce(t.max_attempts, q.max_attempts)
                             FROM queue.tasks AS t LEFT JOIN queue.queues AS q ON q.name = t.queue
                             WHERE t.id = fail.id AND t.token = fail.token);
    RETURN queue_internal.end_attempt(
        queue_internal.leased_task(id, token, is_last IS NOT FALSE), error, retry_in, permanent);
END
$$;
COMMENT ON FUNCTION queue.fail(bigint, bigint, text, interval, boolean) IS
    'Reports that an attempt failed; returns the state that the task is in now.';
