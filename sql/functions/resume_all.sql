-- queue.resume_all
--
--   Touches:  queue.queues (updates, after it has locked the rows in the order of names, so that two calls cannot deadlock)

CREATE FUNCTION queue.resume_all() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    resumed bigint := 0;
    name    text;
BEGIN
    PERFORM queue_internal.check_right('operator', NULL);
    PERFORM FROM queue.queues AS q WHERE q.paused_at IS NOT NULL ORDER BY q.name FOR NO KEY UPDATE;
    FOR name IN UPDATE queue.queues AS q SET paused_at = NULL WHERE q.paused_at IS NOT NULL RETURNING q.name LOOP
        PERFORM queue_internal.announce_task(name, clock_timestamp());
        resumed := resumed + 1;
    END LOOP;
    RETURN resumed;
END
$$;
COMMENT ON FUNCTION queue.resume_all IS
'Ends the pause of all queues, as queue.resume, also of those that were paused one by one. Returns how many it resumed.
Needs the operator''s right on all queues.

Errors: 42501: no right on all queues.';
