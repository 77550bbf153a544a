-- queue_internal.may_log(kind, queue)
--
--   Whether this session may write another WARNING of this kind about the queue to the server's log. The background worker
--   logs at most five in a minute of each kind and queue, however many tasks of the queue cannot be ended or unblocked.
--   So no queue fills the log, and the warnings about other queues appear as well.
--   It is kept in a setting, because it belongs to the session. Anything else in the setting counts as nothing. A step
--   that fails as a whole after its warnings also takes back their count, and each later attempt logs them again

CREATE FUNCTION queue_internal.may_log(kind text, queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name   CONSTANT text := format('queue_log.%s_%s', kind, md5(queue));
    kept   CONSTANT text := current_setting(name, true);
    moment CONSTANT bigint := extract(epoch FROM clock_timestamp());
    since  bigint := moment;
    lines  integer := 0;
BEGIN
    IF kept ~ '^[0-9]{1,12} [1-5]$' THEN
        since := split_part(kept, ' ', 1)::bigint;
        lines := split_part(kept, ' ', 2)::integer;
    END IF;
    IF moment - since NOT BETWEEN 0 AND 59 THEN
        since := moment;
        lines := 0;
    END IF;
    IF lines = 5 THEN
        RETURN false;
    END IF;
    PERFORM set_config(name, format('%s %s', since, lines + 1), false);
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.may_log IS
    'Returns whether the session may log another warning about the queue, and counts it.';
