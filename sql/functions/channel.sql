-- queue.channel(name)
--
--   The channel on which LISTEN hears that the queue has tasks to claim. The notification has no
--   payload, is a hint and nothing more, and comes at most once per "queue.notify_interval".
--   API:      public
--   Errors:   22004, 22023, 54000 for the argument

CREATE FUNCTION queue.channel(name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('name', name);
    -- A channel has 63 bytes at most.
    RETURN 'queue_' || CASE WHEN octet_length(name) <= 57 THEN name ELSE md5(name) END;
END
$$;
COMMENT ON FUNCTION queue.channel(text) IS
    'The channel on which LISTEN hears that a queue has tasks to claim.';
