-- queue.resume(name)
--
--   Ends a pause. Listeners are told. Resuming a queue that is not paused changes nothing.
--   API:      public; an operator's
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the argument
--   Touches:  queue.queues (updates)

CREATE FUNCTION queue.resume(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    UPDATE queue.queues AS q SET paused_at = NULL
    WHERE q.name = resume.name AND q.paused_at IS NOT NULL;
    IF FOUND THEN
        PERFORM queue_internal.announce_task(name, clock_timestamp());
    END IF;
END
$$;
COMMENT ON FUNCTION queue.resume(text) IS 'Allows claims from a queue again.';
