-- queue.await_event
--
--   Promise:  an event that was emitted before, during or after the call is never missed, and what was returned once for
--             a task and an event is returned to all later attempts
--   Waits:    as queue.release, and for a transaction that is emitting the event, or in which a task waits for it before
--             any other ever did. Emissions of the event wait for the transaction of this call
--   Touches:  queue.tasks (updates), queue_internal.emitted (locks, inserts), queue_internal.awaits, queue_internal.steps

CREATE FUNCTION queue.await_event(id bigint, token bigint, event text, timeout interval DEFAULT NULL)
RETURNS TABLE (arrived boolean, payload jsonb)
LANGUAGE plpgsql ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task    queue.tasks;
    earlier record;
    awaited queue_internal.awaits;
BEGIN
    PERFORM queue_internal.check_step('event', event);
    PERFORM queue_internal.check_delay('timeout', timeout);
    task := queue_internal.leased_task(id, token, false);
    SELECT s.stored, s.value INTO earlier FROM queue_internal.stored_step(id, 'event', event) AS s;
    IF earlier.stored THEN
        arrived := earlier.value IS NOT NULL;
        payload := earlier.value;
        RETURN NEXT;
        RETURN;
    END IF;
    awaited := queue_internal.awaits_of(task, event, NULL, timeout);
    IF awaited.outcome IS NULL THEN
        SELECT l.emitted, l.payload INTO arrived, payload FROM queue_internal.lock_event(awaited.queue, event) AS l;
        -- Again, because that may have waited until the queue of the event was dropped, which ends the wait.
        awaited := queue_internal.awaits_of(task, event, NULL, timeout);
    END IF;
    IF awaited.outcome IS NOT NULL THEN
        -- A later queue of that name may have emitted such an event, which is another.
        arrived := false;
        payload := NULL;
    END IF;
    IF arrived OR awaited.outcome IS NOT NULL OR awaited.until <= clock_timestamp()
       OR NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = awaited.queue) THEN
        PERFORM queue_internal.store_step(id, 'event', event, payload);
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM queue_internal.suspend_for(task, awaited);
END
$$;
COMMENT ON FUNCTION queue.await_event IS
'Returns the payload of an event of the task''s queue, or suspends the running task until the event is emitted. Returns
one row if the task can go on: arrived is true, with the payload, if the event was emitted; false, without one, if that
timed out. Returns no row if the task was suspended: the lease has ended, and the attempt does not count. The task can
be claimed again when the event is emitted or the timeout is over, and the same call then returns a row. All later
attempts get the same row. If the cancellation of the task was requested, or it was replaced, it is cancelled instead of
suspended. An emission of the event waits until the transaction of this call has ended. Needs the worker''s right on the
queue.

- id, token: the task and the token of its lease, as claim returned them.
- event: the name of the event, 1 to 512 bytes. Events belong to the queue in which the task first waits for them.
- timeout: how long to wait, counted from the first call for this event, at most 100 years. Null (default) means for
  ever.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004, 22023 or 54000: an argument is null, invalid or too large.';
