-- first_task.sql of this edition has a scan start for each bucket, so claims do not count the entries that they read.

CREATE FUNCTION queue_internal.entries_passed() RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 0;
END
$$;
COMMENT ON FUNCTION queue_internal.entries_passed IS 'Returns 0: this edition counts no entries.';

CREATE FUNCTION queue_internal.group_entries_passed() RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 0;
END
$$;
COMMENT ON FUNCTION queue_internal.group_entries_passed IS 'Returns 0: this edition counts no entries.';

CREATE FUNCTION queue_internal.newest_event() RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 0;
END
$$;
COMMENT ON FUNCTION queue_internal.newest_event IS 'Returns 0: this edition remembers no event.';
