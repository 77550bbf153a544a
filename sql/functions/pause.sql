-- queue.pause
--
--   Touches:  queue.queues (updates; a concurrent drop comes before or after). Waits for a queue.configure that waits for
--             open claims

CREATE FUNCTION queue.pause(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    PERFORM queue_internal.hold_queue(name);
    UPDATE queue.queues AS q SET paused_at = clock_timestamp()
    WHERE q.name = pause.name AND q.paused_at IS NULL;
END
$$;
COMMENT ON FUNCTION queue.pause IS
'Pauses a queue: nothing is claimed from it until queue.resume. Pushes are accepted, and running tasks finish. Pausing
a paused queue changes nothing. Needs the operator''s right on the queue.

- name: name of the queue.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: the argument is null,
invalid or too large.';
