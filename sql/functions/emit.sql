-- queue.emit
--
--   Promise:  tasks that wait for the event, or will, go on if and only if the transaction commits
--   Waits:    for transactions that are emitting the same event, and for those in which tasks begin to wait for it
--   Touches:  queue.queues (locks the row, so that a concurrent drop comes before or after), queue_internal.emitted (inserts or updates), queue_internal.events (inserts)

CREATE FUNCTION queue.emit(queue text, event text, payload jsonb DEFAULT '{}') RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_queue(queue, 'producer');
    PERFORM queue_internal.check_step('event', event);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    -- A later queue of that name must not get the event.
    PERFORM queue_internal.hold_queue(queue);
    INSERT INTO queue_internal.emitted AS e (queue, event, payload, emitted_at)
    VALUES (emit.queue, emit.event, emit.payload, clock_timestamp())
    ON CONFLICT ON CONSTRAINT emitted_pkey
    DO UPDATE SET payload = excluded.payload, emitted_at = excluded.emitted_at WHERE e.emitted_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A new snapshot: it shows the tasks whose transactions the statement above has waited for.
    PERFORM queue_internal.wake_waiting(queue, event, 0, 10000);
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue.emit IS
'Emits an event of a queue: tasks of the queue that wait for it with queue.await_event can be claimed again, and those
that ask for it later get it at once. Returns true. The first emission stays: a later one of the same name changes
nothing and returns false. It counts once the transaction commits. The event is kept for queue.event_retention and as
long as a task waits for it; after that, the name can be emitted again. Needs the producer''s right on the queue.

- queue: name of the queue.
- event: the name of the event, 1 to 512 bytes. Put an id into it: order 17 paid.
- payload: any JSON value, which queue.await_event returns. Default {}.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: an argument is null,
invalid or too large.';
