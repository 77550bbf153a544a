-- queue.pause(name)
--
--   From now on nothing is claimed from the queue. Pushes are taken, and running tasks finish.
--   Pausing a paused queue changes nothing.
--   API:      public; an operator's
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the argument
--   Touches:  queue.queues (updates)

CREATE FUNCTION queue.pause(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    UPDATE queue.queues AS q SET paused_at = clock_timestamp()
    WHERE q.name = pause.name AND q.paused_at IS NULL;
END
$$;
COMMENT ON FUNCTION queue.pause(text) IS 'Stops claims from a queue.';
