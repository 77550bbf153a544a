-- first_task.sql keeps marks of its own, for each bucket. So no claim counts, and none sets the mark of mark.sql.

CREATE FUNCTION queue_internal.entries_passed() RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 0;
END
$$;
COMMENT ON FUNCTION queue_internal.entries_passed IS 'Nothing is counted.';

CREATE FUNCTION queue_internal.newest_event() RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 0;
END
$$;
COMMENT ON FUNCTION queue_internal.newest_event IS 'Nothing is remembered.';
