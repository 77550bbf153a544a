-- queue.resume
--
--   Touches:  queue.queues (updates; a concurrent drop comes before or after)

CREATE FUNCTION queue.resume(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    PERFORM queue_internal.hold_queue(name);
    UPDATE queue.queues AS q SET paused_at = NULL
    WHERE q.name = resume.name AND q.paused_at IS NOT NULL;
    IF FOUND THEN
        PERFORM queue_internal.announce_task(name, clock_timestamp());
    END IF;
END
$$;
COMMENT ON FUNCTION queue.resume IS
'Ends the pause of a queue, and wakes and notifies its workers. Resuming a queue that is not paused changes nothing.
Needs the operator''s right on the queue.

- name: name of the queue.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: the argument is null,
invalid or too large.';
