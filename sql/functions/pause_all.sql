-- queue.pause_all
--
--   Touches:  queue.queues (updates, after it has locked the rows in the order of names, so that two calls cannot deadlock)

CREATE FUNCTION queue.pause_all() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    paused bigint;
BEGIN
    PERFORM queue_internal.check_right('operator', NULL);
    PERFORM FROM queue.queues AS q WHERE q.paused_at IS NULL ORDER BY q.name FOR NO KEY UPDATE;
    UPDATE queue.queues AS q SET paused_at = clock_timestamp() WHERE q.paused_at IS NULL;
    GET DIAGNOSTICS paused = ROW_COUNT;
    RETURN paused;
END
$$;
COMMENT ON FUNCTION queue.pause_all IS
'Pauses all queues, as queue.pause, for example before maintenance of something that all workers need. Returns how many
it paused: those that were paused already are not counted. A queue that is created later is not paused. Needs the
operator''s right on all queues.

Errors: 42501: no right on all queues.';
