-- queue.channel: a channel's name has at most 63 bytes, so longer names of queues are hashed.

CREATE FUNCTION queue.channel(name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('name', name);
    -- A channel has 63 bytes at most.
    RETURN 'queue_' || CASE WHEN octet_length(name) <= 57 THEN name ELSE md5(name) END;
END
$$;
COMMENT ON FUNCTION queue.channel IS
'Returns the name of the channel on which LISTEN receives notifications when the queue has tasks to claim. A
notification is a hint without a payload, at most one per queue and queue.notify_interval. Needs any right.

- name: name of the queue, which need not exist.

Errors: 22004, 22023 or 54000: the argument is null, invalid or too large.';
